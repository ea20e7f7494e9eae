"""Measured plans of `ablations`: those found under the mlp head beside those found under the convex head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.reproduce.ablations.parts import MEASURED
from shardwright.reproduce.experiment import Row
from shardwright.reproduce.summaries import grouped

_CASE = ("devices", "max_dim", "task", "seed")


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
        pairs = [(heads["convex"], heads["mlp"]) for heads in by_case if len(heads) == 2]
        if pairs:
            found[str(strategy)] = HeadPairs(pairs)
    return found
