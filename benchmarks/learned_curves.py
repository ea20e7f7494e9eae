"""Learning curves of policies: figures of every round, and the cost of validation tasks under the policy after it.

    python -m benchmarks.learned_curves --seeds 3

Policies with separate cost networks train on the tasks of `published_policies.yaml`, with the bundled CPU model as the world. Validation
tasks come from the other half of the pool. Every round adds some rows to `results/learned_curves.csv`; finished trainings are not repeated.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.entrants import model_version
from experiments.learned.tasks import VALIDATION_SEED, Setting, draw_tasks

from benchmarks import learned_training, results_table
from benchmarks.learned_curves_page import COLUMNS, VALIDATION, plot, tables
from benchmarks.learned_journal import Journal, Row
from benchmarks.learned_training import TRAINING, training_options
from benchmarks.program import Options, options_of
from shardwright.cost import cost_model_for
from shardwright.learned.policy_files import SavedPolicy, save_policy
from shardwright.learned.worlds import SimulatedWorld
from shardwright.task import Task
from shardwright.workload.training_tasks import TrainingTasks, load_training_tasks

NAME = "learned_curves"
Round = tuple[dict[str, float], SavedPolicy]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks_file=(Path(__file__).parent / "published_policies.yaml", "training tasks"),
        setting=(Setting(50, 4), "of the validation tasks", Setting.of), tasks=(10, "validation tasks"),
        **TRAINING | {"seeds": (3, TRAINING["seeds"][1])},
    )  # fmt: skip
    training = load_training_tasks(options.tasks_file)
    validation = draw_tasks(options.setting, options.tasks, seed=VALIDATION_SEED)
    journal = Journal(results_table.RESULTS / f"{NAME}.csv", COLUMNS)
    versions = {strategy: version(training, strategy, options) for strategy in options.strategies}
    for strategy in options.strategies:
        for seed in range(options.seeds):
            if not is_finished(journal.rows, strategy, versions[strategy], seed):
                train(journal, strategy, versions[strategy], seed, training, validation, options)
    rows = [
        row
        for row in journal.rows
        if versions.get(row["strategy"]) == row["version"] and int(row["seed"]) < options.seeds
    ]
    command = results_table.command_of(NAME, arguments)
    page = tables(rows, validation, f"{options.tasks} tasks {options.setting.name}", training.description)
    results_table.write_results(NAME, "Learning curves", page, command)
    for strategy in options.strategies:
        plot([row for row in rows if row["strategy"] == strategy], strategy, validation, f"{NAME}_{strategy}")


def version(training: TrainingTasks, strategy: str, options: Options) -> str:
    """Return the version of a training: everything besides the seed that its rows depend on."""
    return " ".join(
        [
            training.digest,
            model_version("cpu"),
            f"{options.setting.name} {options.tasks}",
            *(getattr(options, f"{strategy}_option") or []),
        ]
    )


def is_finished(rows: list[Row], strategy: str, found: str, seed: int) -> bool:
    """Whether the rows of a training reach its last round."""
    own = [row for row in rows if (row["strategy"], row["version"], row["seed"]) == (strategy, found, str(seed))]
    return any(row["round"] == row["rounds"] for row in own)


def train(
    journal: Journal,
    strategy: str,
    known_as: str,
    seed: int,
    training: TrainingTasks,
    validation: Sequence[Task],
    options: Options,
) -> None:
    """Train with one seed; replaces rows that an earlier run left of the same training."""
    journal.keep(lambda row: (row["strategy"], row["version"], row["seed"]) != (strategy, known_as, str(seed)))
    chosen = training_options(strategy, seed, options)
    rounds, spent, begin = chosen.rounds, 0.0, time.monotonic()
    for number, (figures, policy) in enumerate(rounds_of(training.tasks, chosen), start=1):
        spent += time.monotonic() - begin
        found = figures | {VALIDATION: validated(strategy, policy, validation), "seconds": spent}
        for name, value in found.items():
            values = (strategy, known_as, seed, number, rounds, name, f"{value:.6g}")
            journal.add(dict(zip(COLUMNS, map(str, values), strict=True)))
        print(f"{strategy}, seed {seed}, {number}/{rounds}: {found[VALIDATION]:.3f} ms", file=sys.stderr, flush=True)
        begin = time.monotonic()


def rounds_of(tasks: Sequence[Task], options: Any) -> Iterator[Round]:
    """Yield figures and policy after each round."""
    from shardwright.learned.trainer import trainer

    training = trainer(tasks, SimulatedWorld(cost_model_for("cpu")), options)
    for _ in range(options.rounds):
        figures = training.make_round()
        training.round += 1
        yield figures, SavedPolicy(options.strategy, training.weights(), {"method": options.method})


def validated(strategy: str, policy: SavedPolicy, tasks: Sequence[Task]) -> float:
    """Mean cost, of the strategy's kind, of the validation tasks that the policy places; NaN if it places none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        save_policy(policy, path)
        found = learned_training.costs(strategy, path, tasks, cost_model_for("cpu"))
    return float(np.mean(list(found.values()))) if found else float("nan")


if __name__ == "__main__":
    main()
