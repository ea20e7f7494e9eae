"""Gains of tuning on tasks that this machine can measure: calibrate for the task, plan, measure, correct, plan again.

python -m benchmarks.tuning --tasks 6 --devices 4     # 5 to 6 minutes a task, on a quiet machine
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence

import numpy as np

import shardwright as sw
from benchmarks import results_table
from shardwright.workload import paper_tasks

HEADS = (
    "task",
    "tables",
    "calibrated: mean error",
    "first plan, ms",
    "best plan, ms",
    "best / first",
    "first over floor",
    "best over floor",
    "best over bound",
    "promised once corrected, measured / promised",
    "stopped by",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of calibration per task")
    parser.add_argument("--tune-minutes", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args(arguments)
    tasks = paper_tasks(options.tasks, devices=options.devices, seed=options.seed, batch_size=1024, device="cpu")
    rows: list[list[object]] = []
    promises: list[float] = []
    with tempfile.TemporaryDirectory() as cache:
        for number, task in enumerate(tasks):
            os.environ["SHARDWRIGHT_CACHE"] = f"{cache}/{number}"
            row, kept = tuned(number, task, options.minutes, options.tune_minutes)
            rows.append(row)
            promises += kept
            print(row, flush=True)
    within = np.mean(np.abs(np.array(promises) - 1) <= 0.1) if promises else 0.0
    caption = (
        f"NeuroShard's tasks for {options.devices} devices at batch 1,024: {options.minutes:g} minutes of calibrating for each task, then "
        f"{options.tune_minutes:g} minutes of tuning. Floor: the smallest measured total of any plan, over the devices. Bound: by the "
        f"corrected model, no plan is faster. Of {len(promises)} plans promised after the first correction "
        f"{within:.0%} were measured within 10%."
    )
    results_table.write_results(
        f"tuning-{options.devices}",
        f"Plans tuned on {options.devices} devices",
        [(caption, HEADS, rows)],
        results_table.command_of("tuning", arguments),
    )


def tuned(number: int, task: sw.Task, minutes: float, tune_minutes: float) -> tuple[list[object], list[float]]:
    """Return a row of the table, and measured / promised time of the plans chosen by a corrected model."""
    calibrated = sw.calibrate(task, minutes=minutes, seed=number)
    found = sw.tune(task, minutes=tune_minutes)
    tuning = found.plan.tuning
    assert tuning is not None
    kept = [visit.measured_ms / visit.promised_ms for visit in tuning.history if visit.round > 0]
    first, best, floor = tuning.first_ms, tuning.measured_ms, tuning.floor_ms
    return [
        number,
        len(task.tables),
        f"{calibrated.accuracy.mean_error:.1%}",
        f"{first:.2f}",
        f"{best:.2f}",
        f"{best / first:.3f}",
        f"{first / floor - 1:.1%}",
        f"{best / floor - 1:.1%}",
        f"{best / found.bound_ms - 1:.1%}" if found.bound_ms else "none",
        f"{np.median(kept):.3f}" if kept else "none",
        found.stopped,
    ], kept


if __name__ == "__main__":
    main()
