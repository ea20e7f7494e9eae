"""Search time of NeuroShard against tables and devices: writes results/neuroshard_speed.md.

    python -m benchmarks.neuroshard_speed [--repeats 7]

Tasks are the paper's, with the bundled CPU cost model. Every repeat searches its own task; libraries are loaded before the
first. Encoding is the part from the task to arrays of encoded pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.program import options_of
from benchmarks.results_table import write_results
from shardwright.cost import CostModel, cost_model_for
from shardwright.search.neuroshard import NeuroShard, make_pieces
from shardwright.search.units import take_apart
from shardwright.task import Task
from shardwright.workload import random_task

SIZES = ((30, 4), (100, 8), (200, 16), (500, 64), (1000, 128))


def main() -> None:
    repeats = options_of(__doc__, None, repeats=(7, "tasks of each size")).repeats
    model = cost_model_for("cpu")
    NeuroShard().search(
        random_task(0, tables=10, devices=2, device="cpu"), model, seed=0, deadline=None
    )  # loads libraries
    rows = [row(model, tables, devices, repeats) for tables, devices in SIZES]
    heads = (
        "tables × devices", "encoding ms", "1 thread ms", "1 thread CPU ms", "2 threads ms", "encoding, share of CPU",
    )  # fmt: skip
    caption = f"Medians over {repeats} tasks, N=10, K=3, L=10, M=11, max dim 128. CPU time excludes other programs."
    write_results(
        "neuroshard_speed", "Search time of NeuroShard", [(caption, heads, rows)],
        f"python -m benchmarks.neuroshard_speed --repeats {repeats}",
    )  # fmt: skip


def row(model: CostModel, tables: int, devices: int, repeats: int) -> tuple[object, ...]:
    """Return the times of one size."""
    tasks = [random_task(seed, tables=tables, devices=devices, device="cpu") for seed in range(repeats)]
    encode = median_times(lambda task: make_pieces(task, take_apart(task), model), tasks)
    one = median_times(lambda task: NeuroShard(threads=1).search(task, model, seed=0, deadline=None), tasks)
    two = median_times(lambda task: NeuroShard(threads=2).search(task, model, seed=0, deadline=None), tasks)
    shown = [f"{1e3 * seconds:.0f}" for seconds in (encode[0], *one, two[0])]
    return f"{tables} × {devices}", *shown, f"{encode[1] / one[1]:.0%}"


def median_times(call: Callable[[Task], object], tasks: list[Task]) -> tuple[float, float]:
    """Return the median wall seconds and CPU seconds of a call."""
    times = []
    for task in tasks:
        fresh = replace(task)  # drops anything that an earlier call cached on the task
        start = time.perf_counter(), time.process_time()
        call(fresh)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    clock, cpu = np.median(times, axis=0)
    return float(clock), float(cpu)


if __name__ == "__main__":
    main()
