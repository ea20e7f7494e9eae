"""Throughput of training a small DLRM, dense layers included, on plans of three planners over hosts with slow links.

    python -m benchmarks.dlrm_throughput --rows dlrm.jsonl

Hosts are network namespaces (`benchmarks/hosts`), which need root. The planners are TorchRec's, ours and `size`, which gives the
next-largest table to the emptiest device. Their plans train in turns by `DistributedModelParallel`, dense layers by
`DistributedDataParallel`. Weights and batches are the same for all, so the losses must agree.

Each plan on a bed appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes
some minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from experiments.experiment import ResultTable

from benchmarks import results_table
from benchmarks.hosts import HostBed
from benchmarks.program import MEASURED_ROWS, mean_and_range, options_of, spread
from benchmarks.steps_measured import (
    BEDS,
    SAMPLES,
    Case,
    Rows,
    asked,
    distinct,
    measured_rows,
    rows_of_plans,
    saved,
    topology_of,
)
from benchmarks.steps_page import Measured, grouped, priced
from shardwright.cost import CostModel
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import MeasurementFailed
from shardwright.task import Table, Task, Topology

RATES = ("300mbit", "1gbit")
PLANNERS = {"torchrec": "torchrec", "ours": "auto", "size": "size"}
AGREE = 1e-3  # largest relative difference of losses: plans sum in different orders
FEW = {"rounds": {"rounds": 5, "steps": 7, "warm_up": 2, "profiled": 1}, "batches": 30, "warm_up": 5}

_DIM = 32  # a DLRM needs one width
_ROWS = (200_000, 150_000, 100_000, 80_000, 50_000, 40_000, 20_000, 10_000, 5_000, 3_000, 1_500, 800, 400, 200, 100, 50)
_POOLINGS = (2.0, 1.0, 6.0, 1.0, 10.0, 1.0, 4.0, 15.0, 1.0, 3.0, 1.0, 8.0, 1.0, 2.0, 1.0, 1.0)
TABLES = tuple(
    Table(f"t{number}", rows, _DIM, pooling)
    for number, (rows, pooling) in enumerate(zip(_ROWS, _POOLINGS, strict=True))
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, **MEASURED_ROWS)
    if (rows := measured_rows(options, cases, measure)) is None:
        return
    model = None if options.model is None else resolve_cost_model(options.model, task_on(Topology()))
    print(write_page(rows.read(), model, results_table.command_of("dlrm_throughput", arguments)).read_text())


def cases(quick: bool) -> list[Case]:
    """The beds with their rates."""
    return [Case(2, 1, "300mbit", "dlrm")] if quick else [Case(*bed, rate, "dlrm") for rate in RATES for bed in BEDS]


def measure(case: Case, rows: Rows, model: Path | None) -> list[dict[str, Any]]:
    """Time a bed's collectives, plan for them, and train on all plans in turns.

    Raises:
        MeasurementFailed: a rank failed, or the losses of two plans differ.
    """
    with HostBed(case.hosts, case.per_host, case.rate) as bed, tempfile.TemporaryDirectory() as folder:
        task = task_on(topology_of(case, rows, bed))
        named = distinct([(name, task, strategy) for name, strategy in PLANNERS.items()], model)
        reply = asked(bed, "dlrm_rank", {"plans": saved([plan for plan, _ in named], folder), **FEW})
    check_losses(reply["losses"])
    made = rows_of_plans(named, **{name: reply[name] for name in ("reports", "seconds", "losses")})
    return [{**row, "batches": FEW["batches"]} for row in made]


def task_on(topology: Topology) -> Task:
    """The DLRM's tables on a topology. By SGD, columns of a row learn alike wherever they lie; other optimizers keep state by block."""
    return Task(TABLES, topology, SAMPLES * topology.devices, optimizer="sgd")


def check_losses(losses: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the largest difference between two plans' losses of a batch, relative to the loss.

    Args:
        losses: losses by plan, round and batch.

    Raises:
        MeasurementFailed: it exceeds `AGREE`.
    """
    by_plan = np.array(losses).reshape(len(losses), -1)
    largest = float((np.ptp(by_plan, axis=0) / by_plan.min(axis=0)).max())
    if not largest <= AGREE:
        raise MeasurementFailed(
            f"the losses of two plans differ by {largest:.2g} of a loss, must be at most {AGREE:g}: one of them trains another model"
        )
    return largest


def write_page(rows: Sequence[dict[str, Any]], model: CostModel | None, command: str) -> Path:
    measured = priced(rows, model)
    by_case = [of_case for _, of_case in grouped(measured, lambda plan: plan.case)]
    largest = max(check_losses([plan.row["losses"] for plan in of_case]) for of_case in by_case)
    return results_table.write_measured(
        "dlrm_throughput",
        "Throughput of training a DLRM over slow links",
        [_summary(by_case), _ABOUT, f"The losses of the plans differ by at most a share of {largest:.1g}."],
        [_throughput(by_case), _steps(by_case)],
        command,
        rows,
        "priced at ",
    )


_ABOUT = (
    f"A DLRM of {len(TABLES)} tables of {_DIM} columns and {sum(_ROWS):,} rows with dense layers (13 – 64 – {_DIM}; interactions; "
    "128 – 64 – 1), trained by TorchRec's DistributedModelParallel over gloo: tables by SGD, dense layers by DistributedDataParallel and "
    "Adam. Hosts are network namespaces of one machine; links are limited to their rate in each direction, and four ranks share two cores. "
    f"A rank has {SAMPLES} samples in a step, drawn before. Plans take turns, round by round, from the same weights and on the same "
    "batches. Throughput is that of a round's batches at full speed, until the last rank has ended. The embedding step is that of the "
    "tables alone, predicted with links measured on the bed beforehand and a kernel model for another optimizer."
)


def _rates(plan: Measured) -> list[float]:
    """Samples a second, by round."""
    samples = plan.steps.plan.task.batch_size * plan.row["batches"]
    return [samples / seconds for seconds in plan.row["seconds"]]


def _gain(of_case: Sequence[Measured], plan: Measured, against: str) -> float | None:
    """A plan's throughput over that of another planner's plan in the same rounds, the median; None without that plan."""
    rivals = [rival for rival in of_case if against in rival.names]
    return median(own / other for own, other in zip(_rates(plan), _rates(rivals[0]), strict=True)) if rivals else None


def _summary(by_case: Sequence[Sequence[Measured]]) -> str:
    ratios = []
    for against in ("torchrec", "size"):
        gains = [gain for of_case in by_case for plan in of_case if "ours" in plan.names
                 if (gain := _gain(of_case, plan, against)) is not None]  # fmt: skip
        if gains:  # else no bed had a plan of that planner
            ratios.append(f"{mean_and_range(gains, '.3f')} times that of `{against}`")
    spreads = [spread(_rates(plan)) for of_case in by_case for plan in of_case]
    return (
        f"**The throughput of our plans is {' and '.join(ratios)}** (geometric means, smallest and largest of {len(by_case)} cases); the "
        f"rounds of one plan lie {median(spreads):.1%} apart (median), {max(spreads):.1%} at most."
    )


def _throughput(by_case: Sequence[Sequence[Measured]]) -> ResultTable:
    rows = []
    for of_case in by_case:
        for plan in of_case:
            gains = (_gain(of_case, plan, against) for against in PLANNERS)
            ratios = ("–" if gain is None else f"{gain:.2f}" for gain in gains)
            rates, (bed, rate, _) = _rates(plan), plan.case
            rows.append((bed, rate, ", ".join(plan.names), f"{median(rates):,.0f}", f"{spread(rates):.1%}", *ratios))
    return ResultTable(
        "Training throughput by bed (hosts × devices): the median over the rounds, the spread of the rounds (largest less smallest), "
        "and the ratio to each planner's plan (median of the rounds' ratios).",
        ("bed", "links", "plan", "samples/s", "apart", *(f"over {name}" for name in PLANNERS)),
        rows,
    )


def _steps(by_case: Sequence[Sequence[Measured]]) -> ResultTable:
    rows = []
    for plan in (plan for of_case in by_case for plan in of_case):
        whole, own = 1e3 * median(plan.row["seconds"]) / plan.row["batches"], plan.steps.step_ms
        bed, rate, _ = plan.case
        figures = (f"{plan.predicted:.2f}", f"{own:.2f}", f"{whole:.2f}", f"{own / whole:.0%}")
        rows.append((bed, rate, ", ".join(plan.names), *figures))
    return ResultTable(
        "The embedding step and the whole step, ms.",
        ("bed", "links", "plan", "embedding step, predicted", "measured", "whole step", "embeddings' share"),
        rows,
    )


if __name__ == "__main__":
    main()
