"""Time of one placement by learned policies: writes results/learned_speed.md.

    python -m benchmarks.learned_speed [--repeats 9]

A time is that of the call from a task to a plan, by the bundled policies or the policies named. Every repeat places its own task, drawn
with replacement from the test half of the pool; `greedy` serves as comparison. Compiled code and policy are loaded before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from experiments.entrants import LEARNED, Entrant
from experiments.learned.tasks import BATCH, DIM, Setting, halves, whole

from benchmarks import learned_strategies
from benchmarks.learned_strategies import entrants
from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost import CostModel, cost_model_for
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.priced.task import PricedTask
from shardwright.task import Task
from shardwright.workload import random_task

NAME = "learned_speed"
SIZES = (Setting(50, 4), Setting(100, 8), Setting(200, 16), Setting(500, 32), Setting(1000, 128))


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, repeats=(9, "tasks of each size"), sizes=(SIZES, "", {"metavar": "TxD", "type": Setting.of}),
        **learned_strategies.asked((*LEARNED[:2], "greedy")),
    )  # fmt: skip
    model = cost_model_for("cpu")
    rows = []
    for entrant in entrants(options):
        entrant.strategy.search(drawn(Setting(10, 2), 0), model, seed=0, deadline=None)
        rows += [row(entrant, setting, options.repeats, model) for setting in options.sizes]
    caption = (
        f"Medians over {options.repeats} tasks, one process. CPU time excludes other programs; prices: the part from the "
        "task to its units at the prices of the cost model, which every policy needs."
    )
    heads = ("strategy", "made with", "tables × devices", "call, ms", "CPU ms", "prices, ms")
    write_results(NAME, "Inference of learned policies", [(caption, heads, rows)], command_of(NAME, arguments))


def drawn(setting: Setting, number: int) -> Task:
    """Return a task of any size, with enough memory for it."""
    task = random_task(
        number, pool=halves()[1], tables=setting.tables, devices=setting.devices, dims=(DIM,), memory="16 GB", batch_size=BATCH,
        device="cpu", replacement=True, fill=None,
    )  # fmt: skip
    return whole(task)


def row(entrant: Entrant, setting: Setting, repeats: int, model: CostModel) -> tuple[str, ...]:
    """Return the times of one size."""
    tasks = [drawn(setting, number) for number in range(repeats)]
    call, cpu = median_times(lambda task: entrant.strategy.search(task, model, seed=0, deadline=None), tasks)
    prices, _ = median_times(lambda task: priced(task, model), [replace(task) for task in tasks])
    shown = (f"{1e3 * seconds:.1f}" for seconds in (call, cpu, prices))
    return entrant.name, entrant.version, f"{setting.tables} × {setting.devices}", *shown


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


def priced(task: Task, model: CostModel) -> PricedTask:
    """Return a task as policies read it."""
    return PricedTask.of(PlacementArrays.of(task, features=False), model)


if __name__ == "__main__":
    main()
