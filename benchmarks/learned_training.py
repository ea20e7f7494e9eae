"""Options of programs that train policies, and costs of tasks under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.entrants import SORTED
from experiments.learned.policy_training import LEARNERS
from experiments.learned.tasks import learned_entrant

import shardwright as sw
from benchmarks.program import Options
from shardwright.cli.learn import options_from_texts
from shardwright.cost import CostModel, cost_model_for
from shardwright.errors import InfeasibleTask
from shardwright.task import Task

TRAINING: dict[str, Any] = {
    "strategies": (list(LEARNERS), "", list(LEARNERS)),
    "seeds": (1, "trainings of each policy, with seeds 0, 1, …"),
    **{
        f"{name}_option": (str, f"how {name} learns", {"action": "append", "metavar": "NAME=VALUE"})
        for name in LEARNERS
    },
}
"""The options of programs that train policies."""


def training_options(strategy: str, seed: int, options: Options, *more: str) -> Any:
    """Return the options of a training: those of the command line, and more."""
    given = [*(getattr(options, f"{strategy}_option") or []), *more]
    return options_from_texts(LEARNERS[strategy].options, {"seed": seed}, given)


def costs(strategy: str, path: Path, tasks: Sequence[Task], model: CostModel) -> dict[int, float]:
    """Return the costs of tasks placed by a policy, in its own kind of cost, by task number; tasks it cannot place are left out."""
    placed = {}
    for number, task in enumerate(tasks):
        try:
            plan = sw.plan(task, strategy=learned_entrant(strategy, policy=path).strategy, cost_model=model)
        except InfeasibleTask:
            continue
        assert plan.cost is not None
        placed[number] = LEARNERS[strategy].cost(plan.cost)
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
