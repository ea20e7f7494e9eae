"""The page and the figure of `search_scaling.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks import plots, results_table
from benchmarks.program import Options
from benchmarks.scaling_points import Point, Size

Points = Mapping[tuple[str, Size], Point]
Series = Mapping[str, list[Size]]

ENDED = "by itself"
GROWING = {
    "both": "tables and devices",
    "tables": "tables, 16 devices",
    "devices": "devices, 400 tables",
}
AXES = {"both": ((0, "tables"), (1, "devices")), "tables": ((0, "tables"),), "devices": ((1, "devices"),)}
"""For each series, the parts of the size that grow, and their names."""

_MEASURES: dict[str, Callable[[Point], float]] = {
    "seconds": lambda point: point.search_s,
    "MB beyond the start": lambda point: max(point.peak_mb - point.before_mb, 0.1),
}


def write_page(points: Points, series: Series, options: Options, command: str) -> None:
    """Write the page and the figure; their name ends in the model and the tail if these are not the defaults."""
    name = "_".join(
        ["search_scaling", *([options.model] if options.model != "cpu" else []), *["heavy"] * options.heavy_tail]
    )
    tail = "with a heavy tail" if options.heavy_tail else "of the pool"
    caption = (
        f"Medians over the tasks of each size ({options.repeats}): tables {tail}, hosts of 8 devices, the cost model of device type "
        f"'{options.model}'. `certified` stops at a gap of 1%, and every search after {options.time_limit:g} s; such a size is not "
        "repeated. CPU time is that of all threads. Memory at the start is that of the interpreter, libraries and task."
    )
    heads = (
        "strategy", "tables × devices", "search s", "CPU s", "gap", "gap ≤ 1%", "ended", "peak MB", "MB at the start",
    )  # fmt: skip
    slopes = (
        "Slopes of log time and log memory (beyond the start), by least squares, over the searches that ended by themselves: 1 is linear "
        "growth. If tables and devices grow together, the slope against one includes the growth of the other."
    )
    tables = [
        (caption, heads, [row(point) for point in points.values()]),
        (slopes, ("strategy", "growing", "against", "slope of time", "slope of memory", "sizes"), slope_rows(points, series)),
    ]  # fmt: skip
    results_table.write_results(name, "Search time and memory", tables, command)
    plot(points, series, name)


def row(point: Point) -> tuple[str, ...]:
    """Return a point's row in the table."""
    return (
        point.strategy, f"{point.size[0]:,} × {point.size[1]:,}", shown(point.search_s, ".3g"), shown(point.cpu_s, ".3g"),
        "–" if point.gap is None else f"{point.gap:.2%}", "–" if point.gap is None else f"{point.within:.0%}", point.end,
        shown(point.peak_mb, ".0f"), shown(point.before_mb, ".0f"),
    )  # fmt: skip


def shown(number: float, how: str) -> str:
    """Return a number as text, or a dash if nothing was measured."""
    return "–" if np.isnan(number) else format(number, how)


def slope_rows(points: Points, series: Series) -> list[tuple[str, ...]]:
    """Return the slopes by strategy and series."""
    rows = []
    for strategy in strategies(points):
        for name, sizes in series.items():
            finished = [points[strategy, size] for size in sizes if points[strategy, size].end == ENDED]
            for part, against in AXES[name]:
                found = [slope(finished, part, measure) for measure in _MEASURES.values()]
                rows.append((strategy, GROWING[name], against, *found, str(len(finished))))
    return rows


def slope(points: list[Point], part: int, measure: Callable[[Point], float]) -> str:
    """Return the least-squares slope in logarithms; a dash if nothing grows."""
    grown = [point.size[part] for point in points]
    if len(set(grown)) < 2:
        return "–"
    logs = np.log([max(measure(point), 1e-6) for point in points])
    return f"{np.polyfit(np.log(grown), logs, 1)[0]:.2f}"


def strategies(points: Points) -> list[str]:
    """Return the names of the strategies, in order."""
    return list(dict.fromkeys(strategy for strategy, _ in points))


def plot(points: Points, series: Series, name: str) -> None:
    """Draw time above, memory below, and a column for each axis of each series. Hollow marks did not end by themselves."""
    columns = [(grown, part, against) for grown in series for part, against in AXES[grown]]
    titles = [[GROWING[grown] if what == "seconds" else "" for grown, _, _ in columns] for what in _MEASURES]
    figure, axes = plots.panels(titles)
    for (what, measure), of_row in zip(_MEASURES.items(), axes, strict=True):
        for (grown, part, against), axis in zip(columns, of_row, strict=True):
            for strategy in strategies(points):
                line = [points[strategy, size] for size in series[grown]]
                colour = plots.COLOURS.get(strategy, "black")
                axis.loglog([p.size[part] for p in line], [measure(p) for p in line], color=colour, label=strategy)
                for p in line:
                    fill = colour if p.end == ENDED else "white"
                    axis.plot(p.size[part], measure(p), "o", markersize=4, color=colour, markerfacecolor=fill)
            plots.mark(axis, sorted({size[part] for size in series[grown]}))
            axis.set_xlabel(against)
        of_row[0].set_ylabel(what)
    axes[0][0].legend(frameon=False)
    plots.save(figure, name)
