"""Rows of `ablations` beside each other: a variant's plan and that of the full system for the same task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.ablations.parts import SEARCH
from experiments.experiment import Row, Value
from experiments.summaries import grouped, mean_interval

_SAME = 1e-6
_TASK = ("devices", "max_dim", "task")


@dataclass(frozen=True)
class Beside:
    """A variant beside the full system, over the tasks that both were tried on.

    Attributes:
        tried: tasks that both were tried on.
        own_failures: of these, tasks that the variant did not place.
        full_failures: tasks that the full system did not place.
        pairs: rows of the full system and of the variant, of the tasks that both placed.
    """

    tried: int
    own_failures: int
    full_failures: int
    pairs: Sequence[tuple[Row, Row]]

    def ratios(self, column: str = "step_ms") -> list[float]:
        """Figures of the variant divided by those of the full system; for times of searches, seconds by seconds."""
        return [float(own[column] or 0.0) / float(full[column] or 1e-9) for full, own in self.pairs]

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of the tasks on which the variant's step is longer, equal and shorter."""
        ratios = np.array(self.ratios())
        worse, better = float((ratios > 1 + _SAME).mean()), float((ratios < 1 - _SAME).mean())
        return worse, max(0.0, 1 - worse - better), better

    @property
    def same_plans(self) -> int:
        """Tasks for which both plans have the same shards."""
        return sum(full["shards"] == own["shards"] for full, own in self.pairs)


def beside(rows: Sequence[Row], system: str, variant: str, full: str) -> Beside:
    """A variant beside its full system.

    Args:
        rows: rows of the experiment.
        system: "neuroshard" or "certified".
        variant: name of the variant.
        full: name of the full system.
    """
    by_variant = {
        name: {_task(row): row for row in of_variant}
        for (name,), of_variant in grouped(searches(rows, system), "variant").items()
    }
    own, all_parts = by_variant.get(variant, {}), by_variant.get(full, {})
    both = [(all_parts[task], own[task]) for task in all_parts if task in own]
    placed = [(one, other) for one, other in both if one["step_ms"] is not None and other["step_ms"] is not None]
    failures = [sum(pair[index]["step_ms"] is None for pair in both) for index in range(2)]
    return Beside(len(both), failures[1], failures[0], placed)


def searches(rows: Sequence[Row], system: str) -> list[Row]:
    """Rows of the searches of a system."""
    return [row for row in rows if (row["part"], row["system"]) == (SEARCH, system)]


def geometric(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean with its 95% interval by bootstrap; NaN without ratios."""
    low_high = mean_interval([float(np.log(ratio)) for ratio in ratios])
    mean, low, high = (float(np.exp(value)) for value in low_high)
    return mean, low, high


def _task(row: Row) -> tuple[Value, ...]:
    return tuple(row[name] for name in _TASK)
