"""How figures look, and how they are saved: the same bytes for the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardwright.errors import InvalidInput
from shardwright.report.palette import Palette

FORMATS = (".png", ".svg", ".pdf")
_NARROW, _WIDEST = 6.5, 12.0  # inches
_LONGEST = 40  # characters


def axes(palette: Palette, *, width: float = 6.4, height: float = 3.0) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes in the palette's colours."""
    figure = Figure(figsize=(min(width, _WIDEST), height), layout="constrained", facecolor=palette.panel)
    one = figure.subplots()
    one.set_facecolor(palette.panel)
    one.set_axisbelow(True)
    one.grid(axis="y", color=palette.line, linewidth=0.8)
    for name, spine in one.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(palette.muted)
    one.tick_params(colors=palette.muted, labelsize=8, length=0)
    return figure, one


def label(one: Axes, palette: Palette, title: str, *, x: str = "", y: str = "") -> None:
    """Title and axis labels; names of tables and files are shown as they are, dollars and all."""
    one.set_title(title, loc="left", fontsize=10, color=palette.ink, parse_math=False)
    one.set_xlabel(x, fontsize=8.5, color=palette.muted, parse_math=False)
    one.set_ylabel(y, fontsize=8.5, color=palette.muted, parse_math=False)


def legend(figure: Figure, palette: Palette) -> None:
    """A legend below the axes, without a frame; in two columns where the figure is narrow."""
    columns = 5 if figure.get_figwidth() > _NARROW else 2
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, labelcolor=palette.ink)


def save(figure: Figure, path: str | Path, *, dpi: int = 200) -> Path:
    """Write a figure; the end of the name decides the format.

    Args:
        figure: what one of the functions of this package returned.
        path: a name that ends in .png, .svg or .pdf.
        dpi: dots per inch of a PNG file.

    Raises:
        InvalidInput: another ending.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in FORMATS:
        raise InvalidInput(f"{path}: the name must end in one of {', '.join(FORMATS)}, which decides the format")
    metadata: dict[str, Any] = {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }[kind]
    style: dict[Any, Any] = {"svg.hashsalt": "shardwright", "svg.fonttype": "none"}
    with mpl.rc_context(style):
        figure.savefig(target, dpi=dpi, metadata=metadata)
    return target


def shown_name(text: str) -> str:
    """A name as axes can hold it: cut where it is very long, and not read as mathematics."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return short.replace("$", r"\$")
