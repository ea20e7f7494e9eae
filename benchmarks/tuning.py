"""Gains of `tune` on tasks that this machine can measure: calibrate, plan, measure, correct, plan again.

Run it on a quiet machine. Calibrated for each task, a task takes 5 to 6 minutes; calibrated once for all tasks, under 3 minutes:

    python -m benchmarks.tuning --tasks 6 --devices 4
    python -m benchmarks.tuning --tasks 20 --devices 4 --once
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from time import monotonic

import numpy as np

import shardwright as sw
from benchmarks import results_table
from benchmarks.program import options_of
from shardwright.modelling.accuracy import Accuracy
from shardwright.workload import paper_tasks

HEADS = (
    "task", "tables", "calibrated: mean error", "first plan, ms", "best plan, ms", "best / first", "first over floor", "best over floor",
    "best over bound", "promised once corrected, measured / promised", "stopped by",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=6, devices=4, minutes=(3.0, "minutes of a calibration"),
        once=(False, "calibrate once, for tasks of any tables, not for each task"), tune_minutes=2.5,
        most_minutes=(math.inf, "no task begins after this time"), seed=77,
    )  # fmt: skip
    tasks = paper_tasks(options.tasks, devices=options.devices, seed=options.seed, batch_size=1024, device="cpu")
    rows: list[list[object]] = []
    promises: list[float] = []
    began = monotonic()
    with tempfile.TemporaryDirectory() as cache:
        for number, task in enumerate(tasks):
            if monotonic() - began > 60 * options.most_minutes:
                break
            if not (options.once and rows):
                os.environ["SHARDWRIGHT_CACHE"] = f"{cache}/{number}"
                calibrated = sw.calibrate(None if options.once else task, minutes=options.minutes, seed=number)
            row, kept = tuned(number, task, calibrated.accuracy, options.tune_minutes)
            rows.append(row)
            promises += kept
            print(row, flush=True)
    within = f"{np.mean(np.abs(np.array(promises) - 1) <= 0.1):.0%}" if promises else "none"
    what = "once for tasks of any tables" if options.once else "for each task"
    caption = (
        f"NeuroShard's tasks for {options.devices} devices at batch 1,024: {options.minutes:g} minutes of calibration {what}, then "
        f"{options.tune_minutes:g} minutes of tuning a task. Floor: the smallest measured total of any plan, over the devices. Bound: "
        f"by the corrected model, no plan is faster. Of {len(promises)} plans promised after the first correction "
        f"{within} were measured within 10%. {_medians(rows)}"
    )
    results_table.write_results(
        f"tuning-{options.devices}{'-once' if options.once else ''}",
        f"Plans tuned on {options.devices} devices" + (", calibrated once" if options.once else ""),
        [(caption, HEADS, rows)],
        results_table.command_of("tuning", arguments),
    )


def tuned(number: int, task: sw.Task, accuracy: Accuracy | None, minutes: float) -> tuple[list[object], list[float]]:
    """Return a row of the table, and measured / promised time of the plans chosen by a corrected model."""
    result = sw.tune(task, minutes=minutes)
    tuning = result.plan.tuning
    assert tuning is not None
    kept = [visit.measured_ms / visit.promised_ms for visit in tuning.history if visit.round > 0]
    first, best, floor = tuning.first_ms, tuning.measured_ms, tuning.floor_ms
    return [
        number, len(task.tables), f"{accuracy.mean_error:.1%}" if accuracy else "none", f"{first:.2f}", f"{best:.2f}",
        f"{best / first:.3f}", f"{first / floor - 1:.1%}", f"{best / floor - 1:.1%}",
        f"{best / result.bound_ms - 1:.1%}" if result.bound_ms else "none", f"{np.median(kept):.3f}" if kept else "none", result.stopped,
    ], kept  # fmt: skip


def _medians(rows: Sequence[Sequence[object]]) -> str:
    """A sentence with the medians of the columns that compare plans."""
    medians = []
    for name in ("best / first", "first over floor", "best over floor", "best over bound"):
        texts = [text for row in rows if (text := str(row[HEADS.index(name)])) != "none"]
        if texts:
            unit = "%" if texts[0].endswith("%") else ""
            medians.append(f"{name} {np.median([float(text.removesuffix('%')) for text in texts]):.3g}{unit}")
    return f"Medians: {', '.join(medians)}."


if __name__ == "__main__":
    main()
