"""Bundled policies against policies trained as published, on the same tasks: writes results/learned_published.md.

    python -m benchmarks.learned_published --tasks 10

"here" is the bundled policy, which reads prices. "published" is trained now with `--option preset=published` on the tasks of
`published_policies.yaml`, and kept in out/learned/policies. All policies place the same test tasks, of tables that none has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.entrants import SORTED
from experiments.learned.policy_training import LEARNERS, learned, training_seconds
from experiments.learned.tasks import Setting, draw_tasks, learned_entrant

import shardwright as sw
from benchmarks import results_table
from benchmarks.program import Options, options_of
from shardwright.cli.learn import PRESET, options_from_texts
from shardwright.cost import cost_model_for
from shardwright.errors import InfeasibleTask
from shardwright.learned.policy_files import bundled_policy
from shardwright.task import Task
from shardwright.workload.training_tasks import load_training_tasks

NAME = "learned_published"
TRAINING: dict[str, Any] = {
    "strategies": (list(LEARNERS), "", list(LEARNERS)),
    "seeds": (1, "trainings of each policy, with seeds 0, 1, …"),
    **{
        f"{name}_option": (str, f"how {name} learns", {"action": "append", "metavar": "NAME=VALUE"})
        for name in LEARNERS
    },
}
"""Options of the training."""


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
            how = training_options(strategy, seed, options)
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
    placed = costs(strategy, policy, tasks)
    return strategy, method, seconds, f"{np.mean(placed):.3f}" if placed else "—", str(len(placed))


def training_options(strategy: str, seed: int, options: Options) -> Any:
    """Return the options of a training: those of the command line, and the published preset."""
    given = [*(getattr(options, f"{strategy}_option") or []), PRESET]
    return options_from_texts(LEARNERS[strategy].options, {"seed": seed}, given)


def costs(strategy: str, path: Path, tasks: Sequence[Task]) -> list[float]:
    """Return the costs, of the strategy's kind, of the tasks that a policy places."""
    placed, entrant = [], learned_entrant(strategy, policy=path)
    for task in tasks:
        try:
            plan = sw.plan(task, strategy=entrant.strategy, cost_model=cost_model_for("cpu"))
        except InfeasibleTask:
            continue
        assert plan.cost is not None
        placed.append(LEARNERS[strategy].cost(plan.cost))
    return placed


def heuristic_ms(strategy: str, tasks: Sequence[Task]) -> float:
    """Return the lowest mean cost of a heuristic, in the strategy's kind of cost; NaN if each fails on some task."""
    means = []
    for name in SORTED:
        try:
            plans = [sw.plan(task, strategy=name, cost_model=cost_model_for("cpu")) for task in tasks]
        except InfeasibleTask:
            continue
        means.append(float(np.mean([LEARNERS[strategy].cost(plan.cost) for plan in plans if plan.cost])))
    return min(means, default=float("nan"))


if __name__ == "__main__":
    main()
