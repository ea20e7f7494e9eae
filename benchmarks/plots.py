"""Figures of the benchmark programs: SVG files beside the tables, the same bytes for the same data. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import results_table
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"certified": "#0b6e4f", "neuroshard": "#c1440e", "greedy": "#4062bb", "best sorted": "#777777"}
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "svg.hashsalt": "shardwright",
    "svg.fonttype": "none",
}


def panels(
    titles: Sequence[Sequence[str]], *, width: float = 3.4, height: float = 2.7
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of titled axes, row by row; the last row may have fewer."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * len(titles[0]), height * len(titles)), layout="constrained")
        axes = figure.subplots(len(titles), len(titles[0]), squeeze=False)
    for row, names in zip(axes, titles, strict=True):
        for one, name in zip(row, names, strict=False):
            one.set_title(name, fontsize=9)
        for surplus in row[len(names) :]:
            surplus.remove()
    return figure, [list(row) for row in axes]


def mark(axis: Axes, values: Sequence[float]) -> None:
    """Ticks at these values of a logarithmic x axis, as plain numbers, and no others."""
    axis.set_xticks(values, [f"{value:,g}" for value in values], rotation=45, fontsize=7)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")


def save(figure: Figure, name: str) -> Path:
    """Write `results/<name>.svg`."""
    results_table.RESULTS.mkdir(exist_ok=True)
    path = results_table.RESULTS / f"{name}.svg"
    with mpl.rc_context(_STYLE):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path
