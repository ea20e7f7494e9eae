"""Bundled policies against policies trained as published, on the same tasks: writes results/learned_published.md.

    python -m benchmarks.learned_published --tasks 10

"here" is the bundled policy, which reads prices. "published" is trained now with `--option preset=published` on the tasks of
`published_policies.yaml`, and kept in out/learned/policies. All policies place the same test tasks, of tables that none has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from experiments.learned.policy_training import learned, training_seconds
from experiments.learned.tasks import Setting, draw_tasks

from benchmarks import results_table
from benchmarks.learned_training import TRAINING, costs, heuristic_ms, training_options
from benchmarks.program import options_of
from shardwright.cli.learn import PRESET
from shardwright.cost import cost_model_for
from shardwright.learned.policy_files import bundled_policy
from shardwright.task import Task
from shardwright.workload.training_tasks import load_training_tasks

NAME = "learned_published"


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks_file=(Path(__file__).parent / "published_policies.yaml", "training tasks"),
        setting=(Setting(50, 4), "of the test tasks", Setting.of), tasks=(10, "test tasks"),
        policies=(Path("out/learned/policies"), "where policies are kept"), **TRAINING,
    )  # fmt: skip
    training = load_training_tasks(options.tasks_file)
    tasks = draw_tasks(options.setting, options.tasks)
    rows = []
    for strategy in options.strategies:
        rows += [(strategy, "best heuristic", "", f"{heuristic_ms(strategy, tasks):.3f}", str(len(tasks)))]
        rows.append(row(strategy, "here, bundled", "", bundled_policy(strategy), tasks))
        for seed in range(options.seeds):
            how = training_options(strategy, seed, options, PRESET)
            path = learned(strategy, "published", training.tasks, how, options.policies)
            seconds = f"{training_seconds(strategy, path):.0f}"
            rows.append(row(strategy, f"published, seed {seed}", seconds, path, tasks))
    note = (
        f"Learned from {training.description}, on the bundled CPU model; {options.tasks} test tasks {options.setting.name} of the other "
        "half of the tables. Mean predicted cost of the placements: the step for dreamshard, the slowest device's kernels for autoshard."
    )
    columns = ("strategy", "method", "training, s", "mean cost, ms", "placed")
    command = results_table.command_of(NAME, arguments)
    results_table.write_results(NAME, "Learned strategies as published", [(note, columns, rows)], command)


def row(strategy: str, method: str, seconds: str, policy: Path, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return the row with a policy's mean cost on the tasks."""
    by_task = costs(strategy, policy, tasks, cost_model_for("cpu"))
    mean = f"{np.mean(list(by_task.values())):.3f}" if by_task else "—"
    return strategy, method, seconds, mean, str(len(by_task))


if __name__ == "__main__":
    main()
