"""The matrices of `autoshard-transfer`: losses of policies against the policy trained on the target, and degrees of balance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.autoshard.kinds import Kind, Part
from experiments.entrants import SORTED
from experiments.experiment import ResultTable, Row
from experiments.learned.policy_training import LEARNERS
from experiments.summaries import NOTHING, resampled, with_interval
from shardwright.sharding.plan import Plan

Floats = npt.NDArray[np.float64]
Placed = dict[tuple[int, int], float]
"""Cost in ms by seed and task, for tasks that were placed."""
_BOUNDS = {"step_ms": "bound_ms", "compute_ms": "compute_bound_ms"}


@dataclass(frozen=True)
class Loss:
    """The excess of one mean cost over another on the same tasks, as a share of the other.

    Attributes:
        share: mean over mean, minus 1; NaN without common tasks.
        low: lower end of the 95% bootstrap interval over tasks.
        high: upper end of that interval.
        tasks: number of common tasks, counted once per seed.
    """

    share: float
    low: float
    high: float
    tasks: int


def loss(placed: Placed, base: Placed) -> Loss:
    """The loss of costs against other costs, over the tasks that both placed."""
    both = sorted(placed.keys() & base.keys())
    if not both:
        return Loss(float("nan"), float("nan"), float("nan"), 0)
    own, other = (np.array([costs[at] for at in both]) for costs in (placed, base))
    drawn = resampled(len(both))
    low, high = np.percentile(own[drawn].sum(axis=1) / other[drawn].sum(axis=1) - 1, (2.5, 97.5))
    return Loss(float(own.sum() / other.sum() - 1), float(low), float(high), len(both))


class Costs:
    """The costs that a learning strategy minimises, of all strategies.

    Args:
        rows: rows of all strategies.
        strategy: the learning strategy.
    """

    def __init__(self, rows: Sequence[Row], strategy: str) -> None:
        self.strategy, column = strategy, LEARNERS[strategy].column
        self._costs: dict[tuple[str, str, str], Placed] = {}
        self._bounds: dict[str, Placed] = {}
        for row in rows:
            about = (str(row["strategy"]), str(row["trained"]), str(row["tested"]))
            at = (int(row["seed"] or 0), int(row["task"] or 0))
            costs = self._costs.setdefault(about, {})
            if row[column] is not None:
                costs[at] = float(row[column] or 0.0)
            bound = row[_BOUNDS[column]]
            if about[0] == "certified" and bound is not None:
                self._bounds.setdefault(about[2], {})[at] = float(bound)
        self._seeds = sorted(
            {seed for (name, *_), costs in self._costs.items() if name == strategy for seed, _ in costs}
        )

    def policy(self, trained: str, tested: Kind) -> Placed:
        """Costs of a policy's placements; the bundled policy's costs count for every seed."""
        costs = self._costs.get((self.strategy, trained, tested.name), {})
        return self._for_all_seeds(costs) if trained == "bundled" else costs

    def other(self, name: str, tested: Kind) -> Placed:
        """Costs of the placements of a strategy that learns nothing, for every seed."""
        return self._for_all_seeds(self._costs.get((name, "nothing", tested.name), {}))

    def bound(self, tested: Kind) -> Placed:
        """Proven bounds, for every seed."""
        return self._for_all_seeds(self._bounds.get(tested.name, {}))

    def best_heuristic(self, tested: Kind) -> Placed:
        """Costs of the sorted heuristic with the lowest mean over the tasks that all heuristics placed."""
        by_heuristic = [costs for name in SORTED if (costs := self.other(name, tested))]
        tasks = set.intersection(*map(set, by_heuristic)) if by_heuristic else set()
        return min(by_heuristic, key=lambda costs: sum(costs[task] for task in tasks)) if tasks else {}

    def _for_all_seeds(self, costs: Placed) -> Placed:
        return {(seed, task): ms for seed in self._seeds or [0] for (_, task), ms in costs.items()}


@dataclass(frozen=True)
class Matrix:
    """Losses of one strategy in one part.

    Attributes:
        part: kinds and labels of the matrix.
        losses: losses by row and column, against the policy trained on the column's kind.
        bundled: losses of the bundled policy by column.
        heuristic: losses of the best heuristic by column.
        random: losses of random placement by column.
        certified: losses of `certified` by column.
        target: mean ms of the target's policy by column; NaN if it has no rows.
        above_bound: losses of the target's policy against the proven bound by column.
    """

    part: Part
    losses: list[list[Loss]]
    bundled: list[Loss]
    heuristic: list[Loss]
    random: list[Loss]
    certified: list[Loss]
    target: list[float]
    above_bound: list[Loss]

    @property
    def shares(self) -> Floats:
        """`(rows, columns)` losses as shares."""
        return np.array([[entry.share for entry in row] for row in self.losses])

    @property
    def off_target(self) -> list[tuple[str, str, Loss, Loss]]:
        """Row, column, loss and best heuristic's loss, for each known loss of a policy not trained on the column's target kind."""
        return [
            (label, column, own, heuristic)
            for (kind, label), row in zip(self.part.trained, self.losses, strict=True)
            for (_, column), target, own, heuristic in zip(
                self.part.tested, self.part.targets, row, self.heuristic, strict=True
            )
            if kind != target and own.tasks
        ]


def matrix(costs: Costs, part: Part) -> Matrix:
    """The losses of a part."""
    kinds = [kind for kind, _ in part.tested]
    own = [costs.policy(target.name, kind) for target, kind in zip(part.targets, kinds, strict=True)]
    pairs = list(zip(kinds, own, strict=True))
    return Matrix(
        part,
        [[loss(costs.policy(trained.name, kind), base) for kind, base in pairs] for trained, _ in part.trained],
        [loss(costs.policy("bundled", kind), base) for kind, base in pairs],
        [loss(costs.best_heuristic(kind), base) for kind, base in pairs],
        [loss(costs.other("random", kind), base) for kind, base in pairs],
        [loss(costs.other("certified", kind), base) for kind, base in pairs],
        [float(np.mean(list(base.values()))) if base else float("nan") for base in own],
        [loss(base, costs.bound(kind)) for kind, base in pairs],
    )


BALANCE = "compute_balance"
"""Column of the degree of balance: least kernel time of a device over the largest."""
_BUNDLED = "bundled"


def degree_of_balance(plan: Plan | None) -> float | None:
    """The degree of balance of a plan's predicted kernel times; None without a plan, costs or work."""
    devices = [device.compute_ms for device in plan.cost.devices] if plan is not None and plan.cost else []
    return min(devices) / max(devices) if devices and max(devices) > 0 else None


def balance_table(rows: Sequence[Row], parts: Iterable[Part]) -> ResultTable:
    """Mean degrees of balance by kind of tasks: AutoShard's policies on and off their target, and other strategies."""
    heads = (
        "part", "tested on", "trained on the same kind", "on other kinds", "bundled policy", "best sorted heuristic", "random",
        "certified",
    )  # fmt: skip
    caption = (
        "AutoShard's own measure, the degree of balance: kernel time of the fastest over that of the slowest device, "
        "mean over tasks with its 95% interval (1 is even). Best sorted heuristic: the one with the highest mean of its column."
    )
    return ResultTable(caption, heads, [line for part in parts for line in _lines(rows, part)])


def _lines(rows: Sequence[Row], part: Part) -> Iterator[tuple[object, ...]]:
    for (kind, label), target in zip(part.tested, part.targets, strict=True):
        other = [each.name for each, _ in part.trained if each != target]
        heuristics = [_degrees(rows, kind, name) for name in SORTED]
        best = max(filter(None, heuristics), key=lambda degrees: sum(degrees) / len(degrees), default=[])
        shown = (
            _degrees(rows, kind, "autoshard", [target.name]), _degrees(rows, kind, "autoshard", other),
            _degrees(rows, kind, "autoshard", [_BUNDLED]), best, _degrees(rows, kind, "random"), _degrees(rows, kind, "certified"),
        )  # fmt: skip
        yield (part.name, label, *(with_interval(degrees) if degrees else NOTHING for degrees in shown))


def _degrees(rows: Sequence[Row], kind: Kind, strategy: str, trained: Sequence[str] | None = None) -> list[float]:
    """Degrees of balance of all tasks of a kind that a strategy placed; if `trained` is given, only by policies trained on these kinds."""
    return [
        float(balance)
        for row in rows
        if row["tested"] == kind.name
        and row["strategy"] == strategy
        and (trained is None or row["trained"] in trained)
        and (balance := row[BALANCE]) is not None
    ]
