"""Throughput of training a DLRM by `shardwright.runtime` against TorchRec, over hosts with slow links.

    python -m benchmarks.runtime_dlrm --rows runtime_dlrm.jsonl

The DLRM, its batches and the beds are those of `dlrm_throughput.py`, the entries those of `runtime_steps.py`: they train in turns, from the
same weights and on the same batches, so that the losses must agree. Hosts need root.

Each case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes some
minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from experiments.experiment import ResultTable

from benchmarks import results_table
from benchmarks.dlrm_throughput import TABLES, cases, check_losses
from benchmarks.program import MEASURED_ROWS, options_of
from benchmarks.runtime_steps import BASE, ENTRIES, MINUTES, trained
from benchmarks.steps_measured import SAMPLES, Case, Rows, measured_rows
from shardwright.sharding.files import plan_to_dict
from shardwright.task import Task

FEW = {"rounds": 3, "batches": 25, "warm_up": 5}


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, **MEASURED_ROWS, minutes=MINUTES)
    rows = measured_rows(options, cases, lambda case, rows: measure(case, rows, options.model), options.minutes)
    if rows is None:
        return
    print(write_page(rows.read(), results_table.command_of("runtime_dlrm", arguments)).read_text())


def measure(case: Case, rows: Rows, model: Path | None) -> None:
    """Time a bed's collectives, plan for them, and train all entries in turns; adds the row.

    Raises:
        MeasurementFailed: a rank failed, or the losses of two entries differ.
    """
    started = time.monotonic()
    plans, found = trained(
        case,
        rows,
        lambda topology: Task(TABLES, topology, SAMPLES * topology.devices, optimizer="sgd"),
        model,
        "runtime_dlrm_rank",
        FEW,
    )
    apart = check_losses(found["losses"])
    shown = {title: seconds for (title, *_), seconds in zip(ENTRIES, found["seconds"], strict=True)}
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    row = {
        "document": plan_to_dict(plans["free"]),
        "seconds": shown,
        "apart": apart,
        "at": at,
        "batches": FEW["batches"],
    }
    rows.add([{**case.key, **row}])
    print(f"{case.key}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def write_page(rows: Sequence[dict[str, Any]], command: str) -> Path:
    """Write the page of rows; returns its file."""
    return results_table.write_measured(
        "runtime_dlrm",
        "Throughput of training a DLRM: shardwright.runtime beside TorchRec",
        [_summary(rows), _ABOUT.format(apart=max(row["apart"] for row in rows))],
        [_table(rows)],
        command,
        rows,
    )


_ABOUT = (
    "The DLRM, its batches and the beds are those of `dlrm_throughput.md`; gradients of dense layers are averaged by "
    "DistributedDataParallel with TorchRec, and in one all-reduce with the runtime. Entries take turns, round by round, from the same "
    "weights and on the same "
    "batches; their losses differ by at most a share of {apart:.1g}. The machine did other work at the time, so single figures are noisy."
)


def _ratio(row: dict[str, Any], title: str) -> float:
    """An entry's throughput over that of TorchRec's planner in DistributedModelParallel: the median of the rounds' ratios."""
    return median(other / own for own, other in zip(row["seconds"][title], row["seconds"][BASE], strict=True))


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    told = []
    for title, *_ in ENTRIES[1:]:
        found = [_ratio(row, title) for row in rows]
        told.append(f"{title}: {geometric_mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    return (
        f"**Throughput over that of TorchRec's planner in DistributedModelParallel: {'; '.join(told)}** (geometric means, smallest and "
        f"largest of {len(rows)} cases; above 1 is faster)."
    )


def _table(rows: Sequence[dict[str, Any]]) -> ResultTable:
    found = []
    for row in rows:
        samples = row["batches"] * row["document"]["task"]["batch_size"]
        for title, *_ in ENTRIES:
            seconds = row["seconds"][title]
            apart = (max(seconds) - min(seconds)) / median(seconds)
            rate = samples / median(seconds)
            found.append((row["bed"], row["rate"], title, f"{rate:,.0f}", f"{apart:.0%}", f"{_ratio(row, title):.2f}"))
    return ResultTable(
        "Training throughput by bed (hosts × devices): the median over the rounds, the spread of the rounds (largest less smallest), "
        "and the ratio to the first entry (median of the rounds' ratios).",
        ("bed", "links", "entry", "samples/s", "apart", "over the first"),
        found,
    )


if __name__ == "__main__":
    main()
