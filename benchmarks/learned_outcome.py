"""One strategy's plan of one task: the rows that `learned_quality.py` collects."""

from __future__ import annotations

from dataclasses import dataclass

from learned_bound import compute_bound
from learned_journal import Row
from learned_strategies import Entrant
from learned_tasks import Setting

import shardwright as sw
from shardwright.cost import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.task import Task

COSTS = ("step_ms", "embedding_cost_ms", "compute_ms")
COLUMNS = ("tables", "devices", "task", "strategy", "version", *COSTS, "bound_ms", "compute_bound_ms", "search_s")


@dataclass(frozen=True)
class Outcome:
    """What a strategy made of a task.

    Attributes:
        setting: the task's setting.
        task: the task's number.
        strategy: name of the strategy.
        costs: step, embedding cost and slowest device's kernels in ms, by the names of `COSTS`; None where the task was not placed.
        bounds: proven bounds on step and slowest device's kernels, where `strategy` is certified.
        search_s: seconds of the search.
    """

    setting: Setting
    task: int
    strategy: str
    costs: dict[str, float] | None
    bounds: dict[str, float]
    search_s: float

    @classmethod
    def of(cls, row: Row) -> Outcome:
        """From a row of the journal."""
        costs = {name: float(row[name]) for name in COSTS} if row["step_ms"] else None
        bounds = {
            name: float(row[f"{short}_ms"])
            for name, short in (("step_ms", "bound"), ("compute_ms", "compute_bound"))
            if row[f"{short}_ms"]
        }
        setting = Setting(int(row["tables"]), int(row["devices"]))
        return cls(setting, int(row["task"]), row["strategy"], costs, bounds, float(row["search_s"]))


def key(row: Row) -> tuple[str, ...]:
    """What a row is about."""
    return tuple(row[name] for name in COLUMNS[:5])


def planned(entrant: Entrant, setting: Setting, number: int, task: Task, model: CostModel) -> Row:
    """The row of a strategy's plan; empty costs where it found none."""
    numbers = dict.fromkeys(COLUMNS[5:], "")
    try:
        plan = sw.plan(task, strategy=entrant.strategy, cost_model=model, seed=number, time_limit=entrant.time_limit)
    except InfeasibleTask:
        numbers["search_s"] = "0"
    else:
        assert plan.cost is not None
        numbers["step_ms"] = f"{plan.cost.step_ms:.6g}"
        numbers["embedding_cost_ms"] = f"{plan.cost.embedding_cost_ms:.6g}"
        numbers["compute_ms"] = f"{max(device.compute_ms for device in plan.cost.devices):.6g}"
        numbers["search_s"] = f"{plan.search_s:.4g}"
        if entrant.name == "certified" and plan.bound_ms is not None:
            numbers["bound_ms"] = f"{plan.bound_ms:.6g}"
            numbers["compute_bound_ms"] = f"{compute_bound(task, model):.6g}"
    facts = (setting.tables, setting.devices, number, entrant.name, entrant.version)
    return dict(zip(COLUMNS[:5], map(str, facts), strict=True)) | numbers


def line(row: Row) -> str:
    """A line about a row for people who wait."""
    cost = f"{float(row['step_ms']):.3f} ms" if row["step_ms"] else "not placed"
    return f"{row['tables']} × {row['devices']}, task {row['task']}, {row['strategy']}: {cost} in {float(row['search_s']):.2f} s"
