"""Comparisons of the searches and of the heads in the rows of `ablations`, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.ablations.pieces import BUNDLED, MEASURED, SEARCH, TRAINED
from experiments.ablations.variants import CERTIFIED, FULL, NEUROSHARD, VARIANTS
from experiments.experiment import Row, Value
from experiments.pages import COLOURS, panels
from experiments.summaries import grouped, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAME = 1e-6
_TASK = ("devices", "max_dim", "task")
_CASE = (*_TASK, "seed")


@dataclass(frozen=True)
class Beside:
    """A variant compared with the full system, over the tasks that both were tried on.

    Attributes:
        tried: number of tasks that both were tried on.
        own_failures: number of these tasks that the variant did not place.
        full_failures: number of these tasks that the full system did not place.
        pairs: rows of the full system and of the variant, for each task that both placed.
    """

    tried: int
    own_failures: int
    full_failures: int
    pairs: Sequence[tuple[Row, Row]]

    def ratios(self, column: str = "step_ms") -> list[float]:
        """Figures of a column for the variant, divided by the figures for the full system."""
        return [float(own[column] or 0.0) / float(full[column] or 1e-9) for full, own in self.pairs]

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of the tasks on which the variant's step is longer, equal and shorter."""
        ratios = np.array(self.ratios())
        worse, better = float((ratios > 1 + _SAME).mean()), float((ratios < 1 - _SAME).mean())
        return worse, max(0.0, 1 - worse - better), better

    @property
    def same_plans(self) -> int:
        """Number of tasks for which both plans have the same shards."""
        return sum(full["shards"] == own["shards"] for full, own in self.pairs)


def beside(rows: Sequence[Row], system: str, variant: str, full: str) -> Beside:
    """Compare a variant with its full system.

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
    placed = [
        (full_row, other)
        for full_row, other in both
        if full_row["step_ms"] is not None and other["step_ms"] is not None
    ]
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


@dataclass(frozen=True)
class HeadPairs:
    """Measured plans of one strategy under both heads.

    Attributes:
        pairs: rows under the convex and the mlp head, for the same task and seed.
    """

    pairs: Sequence[tuple[Row, Row]]

    def ratios(self, column: str) -> list[float]:
        """Figures of a column under the mlp head, divided by the figures under the convex head."""
        return [float(mlp[column] or 0.0) / float(convex[column] or 1e-9) for convex, mlp in self.pairs]

    @property
    def same_plans(self) -> int:
        """Number of pairs whose plans have the same shards."""
        return sum(convex["shards"] == mlp["shards"] for convex, mlp in self.pairs)

    def optimism(self, head: int) -> float:
        """Median of predicted / measured − 1 under the convex (0) or mlp (1) head."""
        each = [
            float(pair[head]["predicted_ms"] or 0.0) / float(pair[head]["measured_ms"] or 1e-9) for pair in self.pairs
        ]
        return float(np.median(each)) - 1


def head_pairs(rows: Sequence[Row]) -> dict[str, HeadPairs]:
    """The pairs of each strategy that has any."""
    there = [row for row in rows if row["part"] == MEASURED and row["measured_ms"] is not None]
    by_strategy = {}
    for (strategy,), group in grouped(there, "strategy").items():
        by_case = [{row["head"]: row for row in of_case} for of_case in grouped(group, *_CASE).values()]
        pairs = [(heads["convex"], heads["mlp"]) for heads in by_case if {"convex", "mlp"} <= heads.keys()]
        if pairs:
            by_strategy[str(strategy)] = HeadPairs(pairs)
    return by_strategy


def beside_greedy(rows: Sequence[Row], strategy: str, head: str, column: str) -> list[float]:
    """A strategy's figure over that of `greedy` for the same task, head and seed; for each task, the geometric mean over its seeds."""
    there = [row for row in rows if row["part"] == MEASURED and row["head"] == head and row["measured_ms"] is not None]
    ratios = []
    for of_task in grouped(there, *_TASK).values():
        by_plan = {(row["strategy"], row["seed"]): float(row[column] or 0.0) for row in of_task}
        pairs = [(own, by_plan.get(("greedy", seed))) for (name, seed), own in by_plan.items() if name == strategy]
        logs = [np.log(own / other) for own, other in pairs if own and other]
        ratios += [float(np.exp(np.mean(logs)))] if logs else []
    return ratios


def beside_bundled(rows: Sequence[Row], strategy: str, head: str) -> list[float]:
    """Measured time of a strategy's plans under a head over that under the bundled model; for each task, a geometric mean."""
    there = [row for row in rows if row["part"] == MEASURED and row["strategy"] == strategy and row["measured_ms"]]
    ratios = []
    for of_task in grouped(there, *_TASK).values():
        own, other = (
            [np.log(float(row["measured_ms"] or 1.0)) for row in of_task if row["head"] == name]
            for name in (head, BUNDLED)
        )
        ratios += [float(np.exp(np.mean(own) - np.mean(other)))] if own and other else []
    return ratios


_HEADS = {"convex": "#0b6e4f", "mlp": "#c1440e"}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the picture: searches above, heads below."""
    titles = [["neuroshard without …", "certified without …"], ["held-out error of the heads", "plans on real kernels"]]
    figure, axes = panels(titles, width=4.4)
    draw_searches(axes[0][0], rows, NEUROSHARD)
    draw_searches(axes[0][1], rows, CERTIFIED)
    draw_errors(axes[1][0], rows)
    draw_measured(axes[1][1], rows)
    return figure


def draw_searches(axis: Axes, rows: Sequence[Row], system: str) -> None:
    """Draw the ratios of all tasks for each variant, and a dot for their geometric mean with its interval."""
    names = list(VARIANTS[system])[1:][::-1]
    for place, name in enumerate(names):
        over = [100 * (ratio - 1) for ratio in beside(rows, system, name, FULL).ratios()]
        if over:
            mean, low, high = (100 * (value - 1) for value in geometric([1 + value / 100 for value in over]))
            axis.plot(over, [place - 0.22] * len(over), "|", color="#bbbbbb", markersize=5)
            axis.errorbar(
                mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color=COLOURS[system], markersize=4, capsize=2
            )
    axis.axvline(0, color="#444444", linewidth=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xscale("symlog", linthresh=1.0)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("longer step, % (dot: mean with 95% interval)", fontsize=7)


def draw_errors(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the mean error of each training, and the noise of measuring."""
    trained = [row for row in rows if row["part"] == TRAINED]
    for place, (head, colour) in enumerate(_HEADS.items()):
        errors = [100 * float(row["mean_error"] or 0.0) for row in trained if row["head"] == head]
        axis.plot([place] * len(errors), errors, "o", color=colour, markersize=5)
    noise = [100 * float(row["repeat_error"]) for row in trained if row["repeat_error"] is not None]
    if noise:
        axis.axhline(noise[0], color="#444444", linestyle="--", linewidth=0.8, label="repeat noise")
        axis.legend(fontsize=7, frameon=False)
    axis.set_xticks(range(len(_HEADS)), list(_HEADS))
    axis.set_xlim(-0.5, len(_HEADS) - 0.5)
    axis.set_ylabel("mean error, %")


def draw_measured(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the measured time of plans under the mlp head relative to the convex head, by strategy."""
    by_strategy = head_pairs(rows)
    for place, pairs in enumerate(by_strategy.values()):
        over = [100 * (ratio - 1) for ratio in pairs.ratios("measured_ms")]
        mean, low, high = (100 * (value - 1) for value in geometric(pairs.ratios("measured_ms")))
        jitter = np.linspace(-0.15, 0.15, len(over))
        axis.plot(place + jitter, over, "o", color="#bbbbbb", markersize=3)
        axis.errorbar(
            place, mean, yerr=[[mean - low], [high - mean]], fmt="o", color="#4062bb", markersize=5, capsize=3
        )
    axis.axhline(0, color="#444444", linewidth=0.8)
    axis.set_xticks(range(len(by_strategy)), list(by_strategy))
    axis.set_ylabel("mlp against convex,\nmeasured, %", fontsize=8)
