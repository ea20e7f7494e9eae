"""Search time and peak memory against tables and devices: writes results/search_scaling.md and results/search_scaling.svg.

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
from collections.abc import Sequence

import numpy as np

from benchmarks.program import HIDDEN, Options, options_of, said_apart
from benchmarks.scaling_points import Point, Size, peak_memory, size_of

BOTH = ((25, 4), (50, 4), (100, 8), (200, 16), (500, 64), (1000, 128), (2000, 256), (5000, 1024), (10000, 4096))
TABLES = ((50, 16), (100, 16), (200, 16), (400, 16), (800, 16), (1600, 16))
DEVICES = ((400, 4), (400, 8), (400, 16), (400, 32), (400, 64), (400, 128))
STRATEGIES = ("certified", "neuroshard")
PATIENCE = 4  # a process is killed after this many time limits
START_S = 120  # plus this many seconds for its start
BATCH = {"cpu": 1024, "h100": 65_536}


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
    from benchmarks.results_table import command_of
    from benchmarks.scaling_page import write_page

    series = {
        name: [size for size in sizes if size[0] <= options.largest[0] and size[1] <= options.largest[1]]
        for name, sizes in {
            "both": BOTH,
            **({} if options.diagonal else {"tables": TABLES, "devices": DEVICES}),
        }.items()
    }
    series = {name: sizes for name, sizes in series.items() if sizes}
    sizes = list(dict.fromkeys(size for of_series in series.values() for size in of_series))
    points = {(strategy, size): measure(strategy, size, options) for size in sizes for strategy in options.strategies}
    write_page(points, series, options, command_of("search_scaling", arguments))


def measure(strategy: str, size: Size, options: Options) -> Point:
    """Measure one size; returns medians over processes. A size that reaches the time limit is not repeated."""
    runs, end = [], "by itself"
    for seed in range(options.repeats):
        run, end = measure_apart(strategy, size, seed, options)
        print(f"{strategy} {size[0]}x{size[1]}: {end} {run or ''}", file=sys.stderr, flush=True)
        if run:
            runs.append(run)
        if end != "by itself":
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
    given = [
        "--point", f"{size[0]}x{size[1]}", "--strategies", strategy, "--seed", seed, "--time-limit", options.time_limit,
    ]  # fmt: skip
    given += ["--model", options.model, *["--heavy-tail"] * options.heavy_tail]
    try:
        found: dict[str, float | None] = said_apart(
            "search_scaling", *given, timeout_s=PATIENCE * options.time_limit + START_S
        )
    except subprocess.TimeoutExpired:
        return None, "killed"
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return None, "failed"
    return found, "by itself" if (found["search_s"] or 0.0) < options.time_limit else "at the limit"


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


if __name__ == "__main__":
    main()
