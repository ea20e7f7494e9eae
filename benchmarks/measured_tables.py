"""Predicted and measured times of strategies, and measured gains: tables of `plans_measured.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.measure.plans import MeasuredPlan
from shardwright.reproduce.neuroshard.plans_on_kernels import orders
from shardwright.sharding import Plan
from shardwright.task import Task

Rows = list[tuple[str, ...]]
HeadsAndRows = tuple[tuple[str, ...], Rows]

RIVALS = ("random", "neuroshard")


@dataclass(frozen=True)
class Measurement:
    """A measured plan.

    Attributes:
        devices: size of its task.
        number: the task among those of this size.
        result: plan and times.
    """

    devices: int
    number: int
    result: MeasuredPlan

    @property
    def strategy(self) -> str:
        """Who made the plan."""
        return self.result.plan.strategy

    @property
    def predicted_ms(self) -> float:
        """Slowest forward plus slowest backward kernel, predicted."""
        assert self.result.plan.cost is not None
        return self.result.plan.cost.compute_ms

    @property
    def measured_ms(self) -> float:
        """The same, measured."""
        return self.result.compute_ms


def placed_plans(task: Task, strategies: list[str], time_limit: float) -> list[Plan]:
    """The plans of all strategies that can place a task."""
    plans = []
    for name in strategies:
        try:
            plans.append(sw.plan(task, strategy=name, time_limit=time_limit))
        except InfeasibleTask:
            continue
    return plans


def by_strategy(found: list[Measurement]) -> dict[str, dict[int, Measurement]]:
    """Measurements by strategy and task."""
    result: dict[str, dict[int, Measurement]] = {}
    for one in found:
        result.setdefault(one.strategy, {})[one.number] = one
    return result


def main_table(found: list[Measurement]) -> HeadsAndRows:
    """Predicted and measured means by strategy."""
    heads = (
        "strategy",
        "placed",
        "predicted",
        "measured",
        "mean difference",
        "signed, median",
        "10th to 90th percentile",
    )
    rows: Rows = []
    for name, of_task in by_strategy(found).items():
        predicted = np.array([one.predicted_ms for one in of_task.values()])
        measured = np.array([one.measured_ms for one in of_task.values()])
        errors = predicted / measured - 1
        low, middle, high = np.percentile(errors, (10, 50, 90))
        rows.append(
            (
                name, str(len(of_task)), f"{predicted.mean():.2f}", f"{measured.mean():.2f}", f"{np.abs(errors).mean():.1%}",
                f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}",
            )
        )  # fmt: skip
    return heads, rows


def gain_table(found: list[Measurement]) -> HeadsAndRows:
    """Measured times divided by rivals' on the same tasks, beside what was predicted."""
    heads = (
        "strategy", "rival", "tasks", "measured ratio, median", "10th to 90th percentile", "range", "faster", "predicted ratio, median",
    )  # fmt: skip
    groups = by_strategy(found)
    rows: Rows = []
    for name, own in groups.items():
        for rival in (rival for rival in RIVALS if rival in groups and rival != name):
            pairs = [(own[number], groups[rival][number]) for number in own.keys() & groups[rival].keys()]
            if not pairs:
                continue
            measured = np.array([mine.measured_ms / theirs.measured_ms for mine, theirs in pairs])
            predicted = np.array([mine.predicted_ms / theirs.predicted_ms for mine, theirs in pairs])
            low, middle, high = np.percentile(measured, (10, 50, 90))
            rows.append(
                (
                    name, rival, str(len(pairs)), f"{middle:.3f}", f"{low:.3f} to {high:.3f}",
                    f"{measured.min():.3f} to {measured.max():.3f}", f"{(measured < 1).mean():.0%}", f"{np.median(predicted):.3f}",
                )
            )  # fmt: skip
    return heads, rows


def order_of(found: list[Measurement]) -> float:
    """Mean over tasks of the rank correlation of predicted and measured times of the strategies."""
    by_task: dict[int, list[tuple[float, float]]] = {}
    for one in found:
        by_task.setdefault(one.number, []).append((one.predicted_ms, one.measured_ms))
    correlations = orders(by_task.values())
    return float(np.mean(correlations)) if correlations else float("nan")
