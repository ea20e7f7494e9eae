"""Our plans against TorchRec's: the tables of `torchrec_quality.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from shardwright.measure.measuring import MeasuredPlan
from shardwright.sharding import Plan

Rows = list[tuple[str, ...]]
HeadsAndRows = tuple[tuple[str, ...], Rows]
Key = tuple[str, str]
Measured = Mapping[Key, MeasuredPlan]
RESAMPLES = 10_000


@dataclass(frozen=True)
class Compared:
    """A plan of one planner for one task.

    Attributes:
        setting: setting in whose rows the plan counts.
        case: name of the task.
        planner: planner that made the plan.
        plan: the scored plan.
        measurable: whether the plan fits this machine.
    """

    setting: str
    case: str
    planner: str
    plan: Plan
    measurable: bool

    @property
    def key(self) -> Key:
        """Task and planner."""
        return self.case, self.planner

    @property
    def predicted_ms(self) -> float:
        """Predicted embedding cost."""
        assert self.plan.cost is not None
        return self.plan.cost.embedding_cost_ms

    @property
    def predicted_step_ms(self) -> float:
        """Predicted step: collectives wait for the slowest device."""
        assert self.plan.cost is not None
        return self.plan.cost.step_ms

    def measured_ms(self, measured: Measured) -> float:
        """Embedding cost with measured kernels and predicted links."""
        assert self.plan.cost is not None
        links = [
            device.forward_communication_ms + device.backward_communication_ms for device in self.plan.cost.devices
        ]
        return float((measured[self.key].device_ms + np.array(links)).max())


def gains(
    compared: Iterable[Compared], measured: Measured, rivals: Iterable[str], heuristics: Iterable[str]
) -> HeadsAndRows:
    """Return our cost divided by each rival's, by setting."""
    heads = (
        "setting", "planner", "rival", "tasks", "predicted", "interval", "predicted step", "measured", "interval", "worst", "better on",
    )  # fmt: skip
    rows: Rows = []
    groups = _with_best_heuristic(list(compared), set(heuristics))
    for setting in dict.fromkeys(setting for setting, _ in groups):
        for planner in ("certified", "neuroshard", "best heuristic"):
            for rival in rivals:
                ours, theirs = groups.get((setting, planner), {}), groups.get((setting, rival), {})
                pairs = [(ours[case], theirs[case]) for case in ours if case in theirs]
                if pairs:
                    rows.append((setting, planner, rival, str(len(pairs)), *_cells(pairs, measured)))
    return heads, rows


def _cells(pairs: list[tuple[Compared, Compared]], measured: Measured) -> tuple[str, ...]:
    predicted = _ratios(pairs, lambda plan: plan.predicted_ms)
    step = _ratios(pairs, lambda plan: plan.predicted_step_ms)
    known = [pair for pair in pairs if all(plan.key in measured for plan in pair)]
    cells = (f"{geometric_mean(predicted):.3f}", _interval(predicted), f"{geometric_mean(step):.3f}")
    if not known:
        return (*cells, "–", "–", f"{predicted.max():.3f}", f"{(predicted < 1).mean():.0%}")
    real = _ratios(known, lambda plan: plan.measured_ms(measured))
    return (*cells, f"{geometric_mean(real):.3f}", _interval(real), f"{real.max():.3f}", f"{(real < 1).mean():.0%}")


def _ratios(pairs: list[tuple[Compared, Compared]], cost: Callable[[Compared], float]) -> np.ndarray:
    return np.array([cost(ours) / cost(theirs) for ours, theirs in pairs])


def _interval(ratios: np.ndarray) -> str:
    """Return the 95% bootstrap interval of the geometric mean."""
    rng = np.random.default_rng(0)
    means = np.exp(np.log(ratios)[rng.integers(ratios.size, size=(RESAMPLES, ratios.size))].mean(axis=1))
    low, high = np.percentile(means, (2.5, 97.5))
    return f"{low:.3f} to {high:.3f}"


def _with_best_heuristic(compared: list[Compared], heuristics: set[str]) -> dict[tuple[str, str], dict[str, Compared]]:
    """Group plans by setting and planner, then by task; a task's cheapest heuristic is added as "best heuristic"."""
    groups: dict[tuple[str, str], dict[str, Compared]] = {}
    for plan in compared:
        groups.setdefault((plan.setting, plan.planner), {})[plan.case] = plan
        if plan.planner in heuristics:
            best = groups.setdefault((plan.setting, "best heuristic"), {})
            if plan.case not in best or plan.predicted_ms < best[plan.case].predicted_ms:
                best[plan.case] = plan
    return groups


def planning_table(compared: Iterable[Compared]) -> HeadsAndRows:
    """Return the seconds of planning by setting and planner."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for own in compared:
        seconds.setdefault((own.setting, own.planner), []).append(own.plan.search_s or 0.0)
    heads = ("setting", "planner", "tasks", "median s", "most s")
    rows = [
        (setting, planner, str(len(times)), f"{np.median(times):.2f}", f"{max(times):.2f}")
        for (setting, planner), times in seconds.items()
    ]
    return heads, rows
