"""Plans of every strategy on real kernels: predicted against measured, over several tasks.

    python -m benchmarks.plans_measured --tasks 20 --devices 4 8

The tasks are NeuroShard's (T in [10, 60) on 4 devices, [20, 120) on 8; max dim 128), with batch 1,024. The cost model is this machine's
default, so run 'shardwright calibrate' first. Every device of every plan takes one visit a round, at about two visits a second; --estimate
prints the number of visits. Links are not measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import shardwright as sw
from benchmarks import results_table
from benchmarks.measured_tables import (
    Measurement,
    gain_table,
    main_table,
    model_and_state,
    order_of,
    placed_plans,
    total_table,
)
from benchmarks.program import Options, options_of
from shardwright.cost import CostModel
from shardwright.cost.choice import resolve_cost_model
from shardwright.measure.measuring import MeasuredPlan, measure_plans
from shardwright.sharding import Plan
from shardwright.workload import paper_tasks

BATCH_SIZE = 1024
MEASURED_A_SECOND = 2


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=(20, "tasks of each size"), devices=[4, 8], rounds=3,
        model=(None, "cost model file; by default the one that planning takes on this machine"), strategies=list(sw.strategy_names()),
        time_limit=(20.0, "seconds a search"), page=("plans_measured", "name of the page among the results"),
        estimate=(False, "only plan, and print how long measuring would take"),
    )  # fmt: skip
    tasks = [
        (devices, number, task)
        for devices in options.devices
        for number, task in enumerate(
            paper_tasks(options.tasks, devices=devices, seed=11, batch_size=BATCH_SIZE, device="cpu")
        )
    ]
    model = resolve_cost_model(options.model, tasks[0][2])
    placed = [
        (devices, number, plan)
        for devices, number, task in tasks
        for plan in placed_plans(task, options.strategies, options.time_limit, model)
    ]
    if (measured := measured_plans([plan for *_, plan in placed], options)) is None:
        return
    measurements = [
        Measurement(devices, number, result) for (devices, number, _), result in zip(placed, measured, strict=True)
    ]
    write_page(measurements, model, options, results_table.command_of("plans_measured", arguments))


def measured_plans(plans: Sequence[Plan], options: Options) -> Sequence[MeasuredPlan] | None:
    """Measure plans in `options.rounds` rounds and print an estimate of the time; None if only the estimate is wanted."""
    count = options.rounds * sum(bool(held) for plan in plans for held in plan.by_device)
    say(f"{len(plans)} plans, at most {count} measurements: about {count / MEASURED_A_SECOND / 60:.0f} minutes")
    return None if options.estimate else measure_plans(plans, rounds=options.rounds, progress=progress())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def progress() -> Callable[[int, int, str], None]:
    """Return a reporter that prints a line a minute: measurements done, and the time left."""
    start = last = time.monotonic()

    def report(done: int, wanted: int, detail: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done and (now - last > 60 or done in (100, wanted)):
            last = now
            say(f"{done}/{wanted} measured, {(now - start) / done * (wanted - done) / 60:.0f} minutes left")

    return report


def write_page(measurements: list[Measurement], model: CostModel, options: Options, command: str) -> None:
    tables = []
    controls = measurements[0].result.controls
    said = model_and_state(model, controls)
    for devices in options.devices:
        of_size = [plan for plan in measurements if plan.devices == devices]
        caption = (
            f"{options.tasks} tasks on {devices} devices, batch {BATCH_SIZE}; slowest forward plus slowest backward kernel, ms, means over "
            f"the tasks that a strategy placed. Measured in {options.rounds} interleaved rounds on fresh batches. {said} Floor: the "
            "smallest measured total of any plan of the task, over the devices. Within a task, predicted and measured order of the "
            f"strategies correlate by {order_of(of_size):.3f} (mean)."
        )
        gains = (
            f"Measured time on {devices} devices divided by another strategy's on the same task: under 1 is faster. Faster: share of "
            "the tasks. Interval: 95% of the median, by resampling tasks. Gain kept: measured over predicted gain, medians."
        )
        totals = "Total work of all devices over that of `greedy` on the same task: the work that cuts and replicas add or save. Medians."
        tables += [
            (caption, *main_table(of_size, getattr(model, "metadata", {}))),
            (gains, *gain_table(of_size)),
            (totals, *total_table(of_size)),
        ]
    results_table.write_results(options.page, "Strategies on real CPU kernels", tables, command)


if __name__ == "__main__":
    main()
