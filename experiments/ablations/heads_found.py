"""Measured plans of `ablations`: those found under the mlp head beside those found under the convex head, and strategies beside another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.ablations.parts import BUNDLED, MEASURED
from experiments.experiment import Row
from experiments.summaries import grouped

_TASK = ("devices", "max_dim", "task")
_CASE = (*_TASK, "seed")


@dataclass(frozen=True)
class HeadPairs:
    """Plans of one strategy.

    Attributes:
        pairs: rows under the convex and under the mlp head, of the same task and seed; both measured.
    """

    pairs: Sequence[tuple[Row, Row]]

    def ratios(self, column: str) -> list[float]:
        """Figures under mlp divided by those under convex."""
        return [float(mlp[column] or 0.0) / float(convex[column] or 1e-9) for convex, mlp in self.pairs]

    @property
    def same_plans(self) -> int:
        """Pairs of plans with the same shards."""
        return sum(convex["shards"] == mlp["shards"] for convex, mlp in self.pairs)

    def optimism(self, head: int) -> float:
        """Median of predicted / measured − 1 under the convex (0) or mlp (1) head."""
        each = [
            float(pair[head]["predicted_ms"] or 0.0) / float(pair[head]["measured_ms"] or 1e-9) for pair in self.pairs
        ]
        return float(np.median(each)) - 1


def head_pairs(rows: Sequence[Row]) -> dict[str, HeadPairs]:
    """By strategy, those with any pair."""
    there = [row for row in rows if row["part"] == MEASURED and row["measured_ms"] is not None]
    found = {}
    for (strategy,), group in grouped(there, "strategy").items():
        by_case = [{row["head"]: row for row in of_case} for of_case in grouped(group, *_CASE).values()]
        pairs = [(heads["convex"], heads["mlp"]) for heads in by_case if {"convex", "mlp"} <= heads.keys()]
        if pairs:
            found[str(strategy)] = HeadPairs(pairs)
    return found


def beside_greedy(rows: Sequence[Row], strategy: str, head: str, column: str) -> list[float]:
    """A strategy's figure divided by that of `greedy` with the same task, head and seed: geometric means over the seeds of each task."""
    there = [row for row in rows if row["part"] == MEASURED and row["head"] == head and row["measured_ms"] is not None]
    found = []
    for of_task in grouped(there, *_TASK).values():
        by_plan = {(row["strategy"], row["seed"]): float(row[column] or 0.0) for row in of_task}
        pairs = [(own, by_plan.get(("greedy", seed))) for (name, seed), own in by_plan.items() if name == strategy]
        logs = [np.log(own / other) for own, other in pairs if own and other]
        found += [float(np.exp(np.mean(logs)))] if logs else []
    return found


def beside_bundled(rows: Sequence[Row], strategy: str, head: str) -> list[float]:
    """Measured time of a strategy's plans under a head divided by that under the bundled model: a geometric mean for each task."""
    there = [row for row in rows if row["part"] == MEASURED and row["strategy"] == strategy and row["measured_ms"]]
    found = []
    for of_task in grouped(there, *_TASK).values():
        own, other = (
            [np.log(float(row["measured_ms"] or 1.0)) for row in of_task if row["head"] == name]
            for name in (head, BUNDLED)
        )
        found += [float(np.exp(np.mean(own) - np.mean(other)))] if own and other else []
    return found
