"""Pictures of results: SVG files, the same bytes for the same data. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import MissingDependency
from shardwright.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "random": "#bbbbbb", "size": "#999999", "dim": "#999999", "lookup": "#999999", "size_lookup": "#777777", "best sorted": "#777777",
    "greedy": "#4062bb", "rnn": "#b58900", "autoshard": "#7b3f98", "dreamshard": "#d81b60", "dreamshard+": "#2aa198", "torchrec": "#e8871e",
    "neuroshard": "#c1440e", "certified": "#0b6e4f",
}  # fmt: skip
"""The colour of each strategy in all pictures."""

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
    """A figure with a grid of titled axes, row by row; the last row may have fewer.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    mpl = require_matplotlib()
    from matplotlib.figure import Figure

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


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG."""
    mpl = require_matplotlib()
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    write_atomically(path, buffer.getvalue())


def require_matplotlib() -> Any:
    """The matplotlib package.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependency(
            f"pictures need matplotlib ({error}); install it with: pip install 'shardwright[report]'"
        ) from error
    return mpl
