"""The picture of `ablations`: how much longer a step is without each part, and plans of both heads on real kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.ablations.found import beside, geometric
from experiments.ablations.heads_found import head_pairs
from experiments.ablations.parts import TRAINED
from experiments.ablations.variants import CERTIFIED, FULL, NEUROSHARD, VARIANTS
from experiments.experiment import Row
from experiments.pictures import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEADS = {"convex": "#0b6e4f", "mlp": "#c1440e"}


def draw(rows: Sequence[Row]) -> Figure:
    """Searches above, heads below."""
    titles = [["neuroshard without …", "certified without …"], ["held-out error of the heads", "plans on real kernels"]]
    figure, axes = panels(titles, width=4.4)
    draw_searches(axes[0][0], rows, NEUROSHARD)
    draw_searches(axes[0][1], rows, CERTIFIED)
    draw_errors(axes[1][0], rows)
    draw_measured(axes[1][1], rows)
    return figure


def draw_searches(axis: Axes, rows: Sequence[Row], system: str) -> None:
    """A dot for the geometric mean of each variant with its interval, over the ratios of all tasks."""
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
    """Mean error of each training, and the noise of measuring."""
    trained = [row for row in rows if row["part"] == TRAINED]
    for place, (head, colour) in enumerate(_HEADS.items()):
        found = [100 * float(row["mean_error"] or 0.0) for row in trained if row["head"] == head]
        axis.plot([place] * len(found), found, "o", color=colour, markersize=5)
    noise = [100 * float(row["repeat_error"]) for row in trained if row["repeat_error"] is not None]
    if noise:
        axis.axhline(noise[0], color="#444444", linestyle="--", linewidth=0.8, label="repeat noise")
        axis.legend(fontsize=7, frameon=False)
    axis.set_xticks(range(len(_HEADS)), list(_HEADS))
    axis.set_xlim(-0.5, len(_HEADS) - 0.5)
    axis.set_ylabel("mean error, %")


def draw_measured(axis: Axes, rows: Sequence[Row]) -> None:
    """Measured time under the mlp head, relative to the convex one, by strategy."""
    found = head_pairs(rows)
    for place, pairs in enumerate(found.values()):
        over = [100 * (ratio - 1) for ratio in pairs.ratios("measured_ms")]
        mean, low, high = (100 * (value - 1) for value in geometric(pairs.ratios("measured_ms")))
        jitter = np.linspace(-0.15, 0.15, len(over))
        axis.plot(place + jitter, over, "o", color="#bbbbbb", markersize=3)
        axis.errorbar(
            place, mean, yerr=[[mean - low], [high - mean]], fmt="o", color="#4062bb", markersize=5, capsize=3
        )
    axis.axhline(0, color="#444444", linewidth=0.8)
    axis.set_xticks(range(len(found)), list(found))
    axis.set_ylabel("mlp against convex,\nmeasured, %", fontsize=8)
