"""Throughput of training a DLRM by `shardwright.runtime` against TorchRec, over hosts with slow links.

    python -m benchmarks.runtime_dlrm --rows runtime_dlrm.jsonl

The DLRM, its batches and the beds are those of `dlrm_throughput.py`, the entries those of `runtime_steps.py`: they train in turns, from the
same weights and on the same batches, so that the losses must agree. Hosts need root.

Each case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes some
minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from experiments.experiment import ResultTable
from experiments.pages import commit, hardware, markdown

from benchmarks import results_table
from benchmarks.dlrm_throughput import TABLES, cases, check_losses
from benchmarks.hosts import HostBed
from benchmarks.runtime_steps import BASE, ENTRIES, planned
from benchmarks.steps_measured import SAMPLES, Case, Rows, asked, links_of, measured_rows
from shardwright.files import write_atomically
from shardwright.sharding.files import plan_to_dict
from shardwright.task import Task, Topology

FEW = {"rounds": 3, "batches": 25, "warm_up": 5}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parsed(arguments)
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
    with HostBed(case.hosts, case.per_host, case.rate) as bed:
        links = rows.links(case) or links_of(bed)
        topology = Topology(case.hosts, case.per_host, "cpu", "200 MB", links=links)
        plans = planned(Task(TABLES, topology, SAMPLES * topology.devices, optimizer="sgd"), model)
        with tempfile.TemporaryDirectory() as folder:
            for name, plan in plans.items():
                plan.save(Path(folder) / f"{name}.json")
            entries = [{"plan": str(Path(folder) / f"{name}.json"), "by": by} for _, name, by in ENTRIES]
            found = asked(bed, "runtime_dlrm_rank", {"entries": entries, **FEW})
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
    days = sorted({row["at"][:10] for row in rows})
    text = markdown(
        "Throughput of training a DLRM: shardwright.runtime beside TorchRec",
        [_summary(rows), _ABOUT.format(apart=max(row["apart"] for row in rows))],
        [_table(rows)],
        command,
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))} · commit {commit()} · {hardware()}",
    )
    path = results_table.RESULTS / "runtime_dlrm.md"
    write_atomically(path, text)
    return path


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


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime_dlrm", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="file of the measured rows")
    parser.add_argument("--model", type=Path, help="cost model of the kernels; by default that of this machine")
    parser.add_argument("--page", action="store_true", help="measure nothing, make the page of the rows")
    parser.add_argument("--minutes", type=float, default=600.0, help="no case begins later (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one bed, some minutes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
