"""Parts of the gap that the bound and the plan cause, on tasks small enough for `exact`.

    python -m benchmarks.exact_gaps

The page is results/exact_gaps.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import shardwright as sw
from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost.choice import resolve_cost_model
from shardwright.search.exact.formulation import EACH_PHASE, Effort, all_ways, solve
from shardwright.workload import paper_tasks

SIZES = ["4x2", "6x2", "8x2", "4x4"]
MODELS = {"cpu": ("CPU, learned", 1024), "h100": ("H100, published", 65_536)}
SEED = 41
PROVEN = 1e-4
HEADS = (
    "tables", "devices", "cost model", "tasks", "optimum above the bound: median", "worst", "`certified` above the optimum: median",
    "worst", "`exact` s: median", "worst",
)  # fmt: skip
LOSSES = (
    "tables", "devices", "cost model", "tasks", "the mean device, tables whole numbers of pieces",
    "+ one maximum, of the sum of all phases", "+ kernels and links apart", "+ forward and backward apart: the step",
)  # fmt: skip
"""Objectives, each closer to the step than the one before: their values limit what a better bound can gain."""
OBJECTIVES = ((), ((0, 1, 2, 3),), ((0, 3), (1, 2)), EACH_PHASE)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=(10, "tasks of each setting (default: %(default)s)"),
        limit=(120.0, "seconds for each proof (default: %(default)s)"), sizes=(SIZES, "tables x devices (default: %(default)s)"),
        models=(list(MODELS), "default: both", list(MODELS)), losses=(0, "tasks of each setting whose gap is taken apart (default: none)"),
    )  # fmt: skip
    settings = [(size, model) for model in options.models for size in options.sizes]
    rows = [_row(size, model, options.tasks, options.limit) for size, model in settings]
    caption = (
        "Tables of the papers' pool, dims 4 to 128. Optimum: the plan of `exact`, proven to be the best plan that the bound covers, "
        f"with a gap of at most {PROVEN:.2%}; tasks that it did not prove within {options.limit:g} s are left out, and counted. The "
        "bound is the one that `certified` gives with its plan; it stops at a gap of 1%."
    )
    command = command_of("exact_gaps", arguments)
    tables = [(caption, HEADS, rows)]
    if options.losses:
        losses = [_losses(size, model, options.losses, options.limit) for size, model in settings]
        why = (
            "Sources of the gap: the best values of four objectives, each closer to the step than the one before. A figure is the "
            "median excess over the column before, in the first column over the bound: the most that a bound can gain by including it."
        )
        tables.append((why, LOSSES, losses))
    write_results("exact_gaps", "The bound and the best plan", tables, command)


def _row(size: str, model: str, count: int, limit: float) -> tuple[object, ...]:
    """Return the row of one setting: the shares of the gap over the proven tasks."""
    head, tasks = _drawn(size, model, count)
    shares = [share for task in tasks if (share := _shares(task, limit)) is not None]
    columns = list(zip(*shares, strict=True)) or [(), (), ()]
    cells = (_two(column, spec) for column, spec in zip(columns, (".2%", ".2%", ".1f"), strict=True))
    return *head, f"{len(shares)} of {count}", *(text for pair in cells for text in pair)


def _drawn(size: str, model: str, count: int) -> tuple[tuple[object, ...], list[sw.Task]]:
    """Return the first cells of a setting's row, and its tasks."""
    (tables, devices), (name, batch_size) = map(int, size.split("x")), MODELS[model]
    tasks = paper_tasks(count, devices=devices, tables=tables, seed=SEED, device=model, batch_size=batch_size)
    return (tables, devices, name), list(tasks)


def _shares(task: sw.Task, limit: float) -> tuple[float, float, float] | None:
    """Return optimum / bound − 1, `certified` / optimum − 1, and seconds of the proof; None without a proof in time."""
    try:
        best = sw.plan(task, strategy="exact", time_limit=limit)
        own = sw.plan(task, strategy="certified")
    except sw.InfeasibleTask:
        return None
    if best.gap is None or best.gap > PROVEN or best.cost is None or own.cost is None or own.bound_ms is None:
        return None
    optimum = best.cost.step_ms
    return optimum / own.bound_ms - 1, own.cost.step_ms / optimum - 1, best.search_s or 0.0


def _losses(size: str, model: str, count: int, limit: float) -> tuple[object, ...]:
    """Return the row of one setting: how much each objective exceeds the one before it."""
    head, tasks = _drawn(size, model, count)
    excesses = [excess for task in tasks if (excess := _steps_of(task, limit)) is not None]
    steps = [f"{statistics.median(values):.2%}" for values in zip(*excesses, strict=True)] or ["–"] * len(OBJECTIVES)
    return *head, f"{len(excesses)} of {count}", *steps


def _steps_of(task: sw.Task, limit: float) -> list[float] | None:
    """Return how much each objective's best value exceeds the previous one; None if one was not proven in time."""
    model = resolve_cost_model(None, task)
    try:
        values = [sw.plan(task, strategy="certified").bound_ms or 0.0]
    except sw.InfeasibleTask:
        return None
    ways = all_ways(task, model, None)
    for maxima in OBJECTIVES:
        begin = time.monotonic()
        value = solve(task, model, ways, Effort(begin + limit, None, PROVEN), maxima).bound_ms
        if time.monotonic() - begin >= limit or values[0] <= 0:
            return None
        values.append(value)
    return [after / before - 1 for before, after in pairwise(values)]


def _two(values: Sequence[float], spec: str) -> tuple[str, str]:
    """Return the median and the largest value."""
    return (format(statistics.median(values), spec), format(max(values), spec)) if values else ("–", "–")


if __name__ == "__main__":
    main()
