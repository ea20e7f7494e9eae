"""Predicted and measured times of strategies, and measured gains: tables of `plans_measured.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from experiments.neuroshard.plans_on_kernels import orders

import shardwright as sw
from shardwright.cost import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.measure.measuring import MeasuredPlan
from shardwright.measure.visits import Controls
from shardwright.sharding import Plan
from shardwright.task import Task

Floats: TypeAlias = npt.NDArray[np.float64]
Rows = list[tuple[str, ...]]
HeadsAndRows = tuple[tuple[str, ...], Rows]

RIVALS = ("random", "greedy", "neuroshard")


def model_and_state(model: CostModel, controls: Controls) -> str:
    """A sentence for captions: the cost model, its training, and the control sets now against then."""
    facts = getattr(model, "metadata", {})
    learned = (
        f" ({facts['samples']} sets, held-out error {float(facts['mean_error']):.1%})" if "mean_error" in facts else ""
    )
    slower = controls.slower_than(facts)
    state = "not known" if slower is None else f"{slower - 1:+.1%}"
    return f"Cost model {model.name}{learned}; the control sets, against their time when it was learned: {state}."


@dataclass(frozen=True)
class Measurement:
    """A measured plan.

    Attributes:
        devices: number of devices of its task.
        number: number of the task among those of this size.
        result: plan and measured times.
    """

    devices: int
    number: int
    result: MeasuredPlan

    @property
    def strategy(self) -> str:
        """Strategy that made the plan."""
        return self.result.plan.strategy

    @property
    def predicted_ms(self) -> float:
        """Predicted slowest forward plus slowest backward kernel."""
        assert self.result.plan.cost is not None
        return self.result.plan.cost.compute_ms

    def usual(self, mean_error: float) -> float:
        """The usual ratio of measured over predicted time, if the model is off by `mean_error` for each device."""
        assert self.result.plan.cost is not None
        return self.result.plan.cost.expected_compute_ms(mean_error) / self.predicted_ms

    @property
    def measured_ms(self) -> float:
        """Measured slowest forward plus slowest backward kernel."""
        return self.result.compute_ms


def placed_plans(task: Task, strategies: list[str], time_limit: float, model: CostModel) -> list[Plan]:
    """Return the plans of all strategies that can place a task."""
    plans = []
    for name in strategies:
        try:
            plans.append(sw.plan(task, strategy=name, time_limit=time_limit, cost_model=model))
        except InfeasibleTask:
            continue
    return plans


def by_strategy(measurements: list[Measurement]) -> dict[str, dict[int, Measurement]]:
    """Group measurements by strategy and task."""
    result: dict[str, dict[int, Measurement]] = {}
    for plan in measurements:
        result.setdefault(plan.strategy, {})[plan.number] = plan
    return result


def main_table(measurements: list[Measurement], metadata: Mapping[str, str] | None = None) -> HeadsAndRows:
    """Return predicted and measured means by strategy, and how far measured times lie above the floor.

    Args:
        measurements: plans measured together.
        metadata: metadata of the cost model; None if it is not known on this machine.
    """
    heads = (
        "strategy", "placed", "predicted", "measured", "measured / predicted, median", "10th to 90th percentile", "over the controls'",
        "usual for the model's error", "above the floor, median", "of this noise", "shards a device",
    )  # fmt: skip
    floors, facts = floors_of(measurements), metadata or {}
    state, error = measurements[0].result.controls.slower_than(facts), facts.get("mean_error")
    rows: Rows = []
    for name, of_task in by_strategy(measurements).items():
        own = list(of_task.values())
        predicted, measured = (
            np.array([getattr(placed, f"{kind}_ms") for placed in own]) for kind in ("predicted", "measured")
        )
        ratios = measured / predicted
        low, middle, high = np.percentile(ratios, (10, 50, 90))
        above = np.median([placed.measured_ms / floors[placed.number] - 1 for placed in own])
        noise = np.median([placed.result.excess for placed in own])
        usual = f"{np.median([placed.usual(float(error)) for placed in own]):.3f}" if error else "–"
        shards = np.mean([len(held) for placed in own for held in placed.result.plan.by_device])
        rows.append(
            (
                name, str(len(own)), f"{predicted.mean():.2f}", f"{measured.mean():.2f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}",
                f"{middle / state:.3f}" if state else "–", usual, f"{above:+.1%}", f"{noise:.1%}", f"{shards:.1f}",
            )
        )  # fmt: skip
    return heads, rows


def floors_of(measurements: list[Measurement]) -> dict[int, float]:
    """By task, the smallest measured total of any plan, over the devices: no plan with as much work is faster."""
    floors: dict[int, float] = {}
    for plan in measurements:
        mean = float(plan.result.device_ms.mean())
        floors[plan.number] = min(mean, floors.get(plan.number, mean))
    return floors


def total_table(measurements: list[Measurement], rival: str = "greedy") -> HeadsAndRows:
    """Return the total work of a strategy's plans over a rival's, predicted and measured."""
    heads = ("strategy", "rival", "tasks", "total, predicted ratio", "total, measured ratio", "difference, points")
    groups = by_strategy(measurements)
    rows: Rows = []
    for name, own in groups.items():
        shared = sorted(own.keys() & groups.get(rival, {}).keys())
        if name == rival or not shared:
            continue
        predicted, measured = np.array([_totals(own[n]) / _totals(groups[rival][n]) for n in shared]).T
        apart = 100 * np.median(measured - predicted)
        rows.append((
            name, rival, str(len(shared)), f"{np.median(predicted):.3f}", f"{np.median(measured):.3f}", f"{apart:+.1f}",
        ))  # fmt: skip
    return heads, rows


def _totals(measurement: Measurement) -> Floats:
    """`(2,)` predicted and measured kernel ms of all devices together."""
    assert measurement.result.plan.cost is not None
    predicted = sum(device.compute_ms for device in measurement.result.plan.cost.devices)
    return np.array([predicted, measurement.result.device_ms.sum()])


def gain_table(measurements: list[Measurement], rivals: Sequence[str] = RIVALS) -> HeadsAndRows:
    """Return measured times over rivals' on the same tasks, beside predicted ratios; "gain kept" needs a predicted gain of 1%."""
    heads = (
        "strategy", "rival", "tasks", "measured ratio, median", "interval", "geometric mean", "range", "faster",
        "predicted ratio, median", "gain kept",
    )  # fmt: skip
    groups = by_strategy(measurements)
    rows: Rows = []
    for name, own in groups.items():
        for rival in (rival for rival in rivals if rival in groups and rival != name):
            pairs = [(own[number], groups[rival][number]) for number in own.keys() & groups[rival].keys()]
            if not pairs:
                continue
            measured = np.array([mine.measured_ms / theirs.measured_ms for mine, theirs in pairs])
            predicted = np.array([mine.predicted_ms / theirs.predicted_ms for mine, theirs in pairs])
            middle, promised = float(np.median(measured)), float(np.median(predicted))
            low, high = _interval(measured)
            kept = f"{(1 - middle) / (1 - promised):.0%}" if promised <= 0.99 else "–"
            rows.append(
                (
                    name, rival, str(len(pairs)), f"{middle:.3f}", f"{low:.3f} to {high:.3f}",
                    f"{np.exp(np.log(measured).mean()):.3f}", f"{measured.min():.3f} to {measured.max():.3f}",
                    f"{(measured < 1).mean():.0%}", f"{promised:.3f}", kept,
                )
            )  # fmt: skip
    return heads, rows


def _interval(ratios: Floats) -> tuple[float, float]:
    """95% interval of the median, by resampling."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, ratios.size)), axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), float(high)


def order_of(measurements: list[Measurement]) -> float:
    """Mean over tasks of the rank correlation between predicted and measured times of the strategies."""
    by_task: dict[int, list[tuple[float, float]]] = {}
    for plan in measurements:
        by_task.setdefault(plan.number, []).append((plan.predicted_ms, plan.measured_ms))
    correlations = orders(by_task.values())
    return float(np.mean(correlations)) if correlations else float("nan")
