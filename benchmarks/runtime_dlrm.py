"""Throughput of training a DLRM by `shardwright.runtime` against TorchRec, over hosts with slow links.

    python -m benchmarks.runtime_dlrm --rows runtime_dlrm.jsonl

The DLRM, its batches and the beds are those of `dlrm_throughput.py`, the entries those of `runtime_steps.py`, and one that sends the ids of
each next batch ahead. Entries train in turns, from the same weights and on the same batches, so the losses must agree. Hosts need root.

Each case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes some
minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.experiment import ResultTable

from benchmarks import results_table
from benchmarks.dlrm_throughput import cases, check_losses, task_on
from benchmarks.hosts import HostBed
from benchmarks.program import MEASURED_ROWS, mean_and_range, options_of, spread
from benchmarks.runtime_steps import BASE, planned
from benchmarks.runtime_steps import ENTRIES as OF_STEPS
from benchmarks.steps_measured import Case, Rows, asked, measured_rows, saved, topology_of
from shardwright.sharding.files import plan_to_dict

FEW = {"rounds": 3, "batches": 25, "warm_up": 5}
ENTRIES = (*OF_STEPS, ("our free plan, runtime, ids ahead", "free", "ahead"))


def main(arguments: Sequence[str] | None = None) -> None:
    if (rows := measured_rows(options_of(__doc__, arguments, **MEASURED_ROWS), cases, measure)) is None:
        return
    print(write_page(rows.read(), results_table.command_of("runtime_dlrm", arguments)).read_text())


def measure(case: Case, rows: Rows, model: Path | None) -> list[dict[str, Any]]:
    """Time a bed's collectives, plan for them, and train all entries in turns.

    Raises:
        MeasurementFailed: a rank failed, or the losses of two entries differ.
    """
    with HostBed(case.hosts, case.per_host, case.rate) as bed, tempfile.TemporaryDirectory() as folder:
        plans = planned(task_on(topology_of(case, rows, bed)), model)
        files = dict(zip(plans, saved(list(plans.values()), folder), strict=True))
        entries = [{"plan": files[name], "by": by} for _, name, by in ENTRIES]
        reply = asked(bed, "runtime_dlrm_rank", {"entries": entries, **FEW})
    seconds = {title: taken for (title, *_), taken in zip(ENTRIES, reply["seconds"], strict=True)}
    facts = {"apart": check_losses(reply["losses"]), "batches": FEW["batches"]}
    return [{"document": plan_to_dict(plans["free"]), "seconds": seconds, **facts}]


def write_page(rows: Sequence[dict[str, Any]], command: str) -> Path:
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
    "weights and on the same batches; their losses differ by at most a share of {apart:.1g}. *Ids ahead* sends those of the next batch "
    "before the backward pass (`ShardedEmbeddings.prefetch`); TorchRec trains without a pipeline. Four ranks share two cores."
)


def _ratio(row: dict[str, Any], title: str) -> float:
    """An entry's throughput over that of TorchRec's planner in DistributedModelParallel: the median of the rounds' ratios."""
    return median(other / own for own, other in zip(row["seconds"][title], row["seconds"][BASE], strict=True))


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    titles = [title for title, *_ in ENTRIES[1:] if all(title in row["seconds"] for row in rows)]
    ratios = "; ".join(f"{title}: {mean_and_range([_ratio(row, title) for row in rows])}" for title in titles)
    return (
        f"**Throughput over that of TorchRec's planner in DistributedModelParallel: {ratios}** (geometric means, smallest and "
        f"largest of {len(rows)} cases; above 1 is faster)."
    )


def _table(rows: Sequence[dict[str, Any]]) -> ResultTable:
    cells = []
    for row in rows:
        samples = row["batches"] * row["document"]["task"]["batch_size"]
        for title, seconds in row["seconds"].items():
            figures = (f"{samples / median(seconds):,.0f}", f"{spread(seconds):.0%}", f"{_ratio(row, title):.2f}")
            cells.append((row["bed"], row["rate"], title, *figures))
    return ResultTable(
        "Training throughput by bed (hosts × devices): the median over the rounds, the spread of the rounds (largest less smallest), "
        "and the ratio to the first entry (median of the rounds' ratios).",
        ("bed", "links", "entry", "samples/s", "apart", "over the first"),
        cells,
    )


if __name__ == "__main__":
    main()
