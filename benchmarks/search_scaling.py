"""Search time and peak memory against tables and devices: writes results/search_scaling.md.

    python -m benchmarks.search_scaling [--largest 1000x128] [--repeats 3]

Every point runs in its own process. It loads libraries by planning a small task, then plans one task. `certified` runs until its gap is
at most 1% or it ends by itself, `neuroshard` until it ends, both for at most --time-limit seconds. Each repeat has its own task; figures
are medians. Besides sizes that grow in both, tables grow alone on 16 devices, and devices grow alone under 400 tables.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.program import HIDDEN, Options, Size, options_of, peak_memory, run_apart, size_of

BOTH = ((25, 4), (50, 4), (100, 8), (200, 16), (500, 64), (1000, 128), (2000, 256), (5000, 1024), (10000, 4096))
TABLES = ((50, 16), (100, 16), (200, 16), (400, 16), (800, 16), (1600, 16))
DEVICES = ((400, 4), (400, 8), (400, 16), (400, 32), (400, 64), (400, 128))
STRATEGIES = ("certified", "neuroshard")
PATIENCE = 4  # a process is killed after this many time limits
START_S = 120  # plus this many seconds for its start
BATCH = {"cpu": 1024, "h100": 65_536}


@dataclass(frozen=True)
class Point:
    """Figures of one strategy on one size, as medians over the repeats.

    Attributes:
        strategy: name of the strategy.
        size: numbers of tables and devices.
        search_s: wall seconds of the search.
        cpu_s: processor seconds of all its threads.
        before_mb: peak memory of the process before the search: interpreter, libraries and task.
        peak_mb: peak memory at the end.
        gap: gap to the bound; None without a bound.
        within: share of the repeats that reached a gap of 1%.
        end: how the last search ended: "by itself", "at the limit", "killed" (it ran long past the limit) or "failed".
    """

    strategy: str
    size: Size
    search_s: float
    cpu_s: float
    before_mb: float
    peak_mb: float
    gap: float | None
    within: float
    end: str


Points = Mapping[tuple[str, Size], Point]
Series = Mapping[str, list[Size]]

ENDED = "by itself"
GROWING = {"both": "tables and devices", "tables": "tables, 16 devices", "devices": "devices, 400 tables"}
AXES = {"both": ((0, "tables"), (1, "devices")), "tables": ((0, "tables"),), "devices": ((1, "devices"),)}
"""For each series, the parts of the size that grow, and their names."""

_MEASURES: tuple[Callable[[Point], float], ...] = (
    lambda point: point.search_s,
    lambda point: max(point.peak_mb - point.before_mb, 0.1),
)
"""Seconds of a search, and MB beyond the start."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, largest=("{}x{}".format(*BOTH[-1]), "leave out what is larger", size_of),
        repeats=(3, "tasks of each size"), time_limit=(60.0, "seconds a search"), strategies=list(STRATEGIES),
        model=("cpu", "device type, and with it the cost model", list(BATCH)),
        heavy_tail=(False, "tables with a heavy tail (cluster_tasks.py)"), diagonal=(False, "only sizes that grow in tables and devices"),
        point=(None, HIDDEN, {"metavar": "TxD", "type": size_of}), seed=(0, HIDDEN),
    )  # fmt: skip
    if options.point:
        print(json.dumps(measure_here(options.strategies[0], options.point, options)))
        return
    wanted = {"both": BOTH} if options.diagonal else {"both": BOTH, "tables": TABLES, "devices": DEVICES}
    fitting = {
        name: [size for size in sizes if size[0] <= options.largest[0] and size[1] <= options.largest[1]]
        for name, sizes in wanted.items()
    }
    series = {name: sizes for name, sizes in fitting.items() if sizes}
    sizes = list(dict.fromkeys(size for of_series in series.values() for size in of_series))
    points = {(strategy, size): measure(strategy, size, options) for size in sizes for strategy in options.strategies}
    write_page(points, series, options, arguments)


def measure(strategy: str, size: Size, options: Options) -> Point:
    """Measure one size; returns medians over processes. A size that reaches the time limit is not repeated."""
    runs, end = [], ENDED
    for seed in range(options.repeats):
        run, end = measure_apart(strategy, size, seed, options)
        print(f"{strategy} {size[0]}x{size[1]}: {end} {run or ''}", file=sys.stderr, flush=True)
        if run:
            runs.append(run)
        if end != ENDED:
            break
    middle = {
        key: float(np.median([run[key] or 0.0 for run in runs] or [np.nan]))
        for key in ("search_s", "cpu_s", "before_mb", "peak_mb")
    }
    gaps = [gap for run in runs if (gap := run["gap"]) is not None]
    return Point(
        strategy, size, **middle, gap=float(np.median(gaps)) if gaps else None,
        within=sum(gap <= 0.01 for gap in gaps) / max(len(runs), 1), end=end,
    )  # fmt: skip


def measure_apart(strategy: str, size: Size, seed: int, options: Options) -> tuple[dict[str, float | None] | None, str]:
    """Run one search in its own process; returns its figures and how it ended."""
    given = ["--point", f"{size[0]}x{size[1]}", "--strategies", strategy, "--seed", seed, "--model", options.model]
    given += ["--time-limit", options.time_limit, *["--heavy-tail"] * options.heavy_tail]
    limit = PATIENCE * options.time_limit + START_S
    try:
        run: dict[str, float | None] = run_apart("search_scaling", *given, timeout_s=limit)
    except subprocess.TimeoutExpired:
        return None, "killed"
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return None, "failed"
    return run, ENDED if (run["search_s"] or 0.0) < options.time_limit else "at the limit"


def measure_here(strategy: str, size: Size, options: Options) -> dict[str, float | None]:
    """Run one search in this process."""
    import shardwright as sw
    from benchmarks.cluster_tasks import cluster_task
    from shardwright.cost import cost_model_for
    from shardwright.workload import random_task

    model, batch = cost_model_for(options.model), BATCH[options.model]
    small = random_task(0, tables=12, devices=2, device=options.model, batch_size=batch)
    sw.plan(small, strategy=strategy, cost_model=model)  # loads libraries
    task = cluster_task(
        options.seed, tables=size[0], devices=size[1], device=options.model, batch_size=batch, heavy_tail=options.heavy_tail
    )  # fmt: skip
    before, start = peak_memory() / 1e6, cpu_s()
    plan = sw.plan(task, strategy=strategy, cost_model=model, time_limit=options.time_limit)
    return {
        "search_s": plan.search_s,
        "cpu_s": cpu_s() - start,
        "before_mb": before,
        "peak_mb": peak_memory() / 1e6,
        "step_ms": plan.cost.step_ms if plan.cost else None,
        "gap": plan.gap,
    }


def cpu_s() -> float:
    """Return the processor seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write_page(points: Points, series: Series, options: Options, arguments: Sequence[str] | None) -> None:
    """Write the page; its name ends in the model and the tail if these are not the defaults."""
    from benchmarks.results_table import command_of, write_results

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
    write_results(name, "Search time and memory", tables, command_of("search_scaling", arguments))


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
    for strategy in dict.fromkeys(strategy for strategy, _ in points):
        for name, sizes in series.items():
            finished = [points[strategy, size] for size in sizes if points[strategy, size].end == ENDED]
            for part, against in AXES[name]:
                slopes = [slope(finished, part, measure) for measure in _MEASURES]
                rows.append((strategy, GROWING[name], against, *slopes, str(len(finished))))
    return rows


def slope(points: list[Point], part: int, measure: Callable[[Point], float]) -> str:
    """Return the least-squares slope in logarithms; a dash if nothing grows."""
    grown = [point.size[part] for point in points]
    if len(set(grown)) < 2:
        return "–"
    logs = np.log([max(measure(point), 1e-6) for point in points])
    return f"{np.polyfit(np.log(grown), logs, 1)[0]:.2f}"


if __name__ == "__main__":
    main()
