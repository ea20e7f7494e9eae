"""Steps of pooled tables by `shardwright.runtime` against TorchRec's, over hosts with slow links.

    python -m benchmarks.runtime_steps --rows runtime.jsonl

Hosts are network namespaces (`benchmarks/hosts`), which need root. Five entries train in turns, round by round, on the same batches. The
plan of TorchRec's planner and our plan for TorchRec run by `DistributedModelParallel` and by `ShardedEmbeddings`. Our plan for
`shardwright.runtime`, which may cut tables in any way, runs by `ShardedEmbeddings` alone.

Each entry of a case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes
some minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from experiments.experiment import ResultTable

import shardwright as sw
from benchmarks import results_table
from benchmarks.hosts import HostBed
from benchmarks.program import MEASURED_ROWS, mean_and_range, options_of
from benchmarks.steps_measured import (
    BEDS,
    MODELS,
    RATES,
    SAMPLES,
    Case,
    Rows,
    asked,
    measured_rows,
    rows_of_plans,
    saved,
    topology_of,
)
from benchmarks.steps_page import Measured, grouped, priced, ratio_mean
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import InvalidPlan
from shardwright.integrations.torchrec.steps.run import PHASES, STEP
from shardwright.sharding import Plan
from shardwright.sharding.runtimes import training_runtime
from shardwright.task import Task
from shardwright.task.topology import Exchange

FEW = {"rounds": 4, "steps": 7, "warm_up": 3, "profiled": 4}
SHARED = Exchange(collectives="shared")
_SEARCH_S = 8.0
BASE = "torchrec planner, DMP"
ENTRIES = (
    (BASE, "theirs", "torchrec"), ("torchrec planner, runtime", "theirs", "shardwright"),
    ("our plan for torchrec, DMP", "ours", "torchrec"), ("our plan for torchrec, runtime", "ours", "shardwright"),
    ("our free plan, runtime", "free", "shardwright"),
)  # fmt: skip
"""Title of each entry, its plan, and what runs it."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, **MEASURED_ROWS, name=("runtime_steps", "name of the page (default: %(default)s)"),
        rates=(",".join(RATES), "rates of the links, in order (default: %(default)s)"),
        tables=("pooled", "models of tables, in order (default: %(default)s)"),
    )  # fmt: skip
    wanted = partial(cases, rates=options.rates.split(","), models=options.tables.split(","))
    if (rows := measured_rows(options, wanted, measure)) is None:
        return
    model = options.model and resolve_cost_model(options.model, Task(MODELS["pooled"], sw.Topology(), SAMPLES))
    command = results_table.command_of("runtime_steps", arguments)
    print(write_page(priced(rows.read(), model), command, options.name).read_text())


def cases(quick: bool, rates: Sequence[str] = RATES, models: Sequence[str] = ("pooled",)) -> list[Case]:
    """The beds with their rates, model after model."""
    if quick:
        return [Case(2, 1, "300mbit", "pooled")]
    return [Case(*bed, rate, model) for model in models for rate in rates for bed in BEDS]


def measure(case: Case, rows: Rows, model: Path | None) -> list[dict[str, Any]]:
    """Time a bed's collectives, plan for them, and train all entries in turns."""
    with HostBed(case.hosts, case.per_host, case.rate) as bed, tempfile.TemporaryDirectory() as folder:
        topology = topology_of(case, rows, bed)
        plans = planned(Task(MODELS[case.model], topology, SAMPLES * topology.devices), model)
        entries = [run_by(plans[name], by) for _, name, by in ENTRIES]
        reply = asked(bed, "runtime_rank", {"plans": saved(entries, folder), "rounds": FEW})
    return rows_of_plans([(plan, [title]) for plan, (title, *_) in zip(entries, ENTRIES, strict=True)], **reply)


def planned(task: Task, model: Path | None) -> dict[str, Plan]:
    """The plans by name."""
    options: dict[str, Any] = {"cost_model": model, "time_limit": _SEARCH_S}
    return {
        "theirs": sw.plan(task, strategy="torchrec", runs_on="torchrec", **options),
        "ours": sw.plan(task, runs_on="torchrec", **options),
        "free": sw.plan(replace(task, exchange=SHARED), runs_on="shardwright", **options),
    }


def run_by(plan: Plan, runtime: str) -> Plan:
    """The plan in the exchange of a runtime, which decides what trains it.

    Raises:
        InvalidPlan: the runtime does not train the plan.
    """
    exchange = SHARED if runtime == "shardwright" else Exchange()
    placed = replace(plan, task=replace(plan.task, exchange=exchange), cost=None, bound_ms=None)
    if (by := training_runtime(placed)) != runtime:
        raise InvalidPlan(f"{by} would train the plan, not {runtime}; plan for runs_on {runtime!r}")
    return placed


def write_page(entries: Sequence[Measured], command: str, name: str = "runtime_steps") -> Path:
    return results_table.write_measured(
        name,
        "Steps of pooled tables: shardwright.runtime beside TorchRec",
        [_summary(entries), _ABOUT],
        [
            _overview(entries),
            _truth(entries),
            *(_steps(own) for _, own in grouped(entries, lambda entry: entry.case[2])),
        ],
        command,
        [entry.row for entry in entries],
        "priced at ",
    )


_ABOUT = (
    "Hosts are network namespaces of one machine; links are limited to their rate in each direction, and four ranks share two cores. A "
    f"rank has {SAMPLES} samples in a step. Entries take turns, round by round, on the same fresh batches, and all ranks start a step at "
    "one instant. A step is forward, backward and optimizer of the tables, without dense layers: the slowest rank's, the median of a "
    "round's steps, the median of the rounds. Phases are run one by one after these steps, each started by all ranks together, so links "
    "that rested may send their first bytes above their rate. On two hosts at 100 Mbit/s, steps of DMP are longer than their phases "
    "together: gloo's two directions may take turns. The bytes are those of all hosts' links in five further steps, by their counters. "
    "Predictions price what runs an entry: TorchRec's collectives, or the runtime's exchange, and the time of a module, half of which "
    "counts in each kernel phase. `shardwright calibrate --links` measured these on each bed, before the steps, or after them if the "
    "command has --links."
)


def gains(entries: Sequence[Measured], title: str, against: str = BASE) -> list[float]:
    """An entry's step over another's in each case: the median of the rounds' ratios."""
    by_case = [{entry.names[0]: entry.steps.rounds(STEP) for entry in case} for _, case in _cases(entries)]
    return [median(own / other for own, other in zip(case[title], case[against], strict=True)) for case in by_case]


def _cases(entries: Sequence[Measured]) -> list[tuple[Any, list[Measured]]]:
    return grouped(entries, lambda entry: entry.case)


def _summary(entries: Sequence[Measured]) -> str:
    ratios = "; ".join(f"{title}: {mean_and_range(gains(entries, title))}" for title, *_ in ENTRIES[1:])
    return (
        f"**Steps over those of TorchRec's planner in DistributedModelParallel: {ratios}** (geometric means, smallest and largest "
        f"of {len(_cases(entries))} cases; below 1 is faster)."
    )


def _overview(entries: Sequence[Measured]) -> ResultTable:
    cells = [
        (model, bed, rate, *(f"{gains(case, title)[0]:.2f}" for title, *_ in ENTRIES))
        for (bed, rate, model), case in _cases(entries)
    ]
    return ResultTable(
        "Steps over those of TorchRec's planner in DistributedModelParallel (DMP), by model, bed (hosts × devices) and rate of the links: "
        "medians of the rounds' ratios.",
        ("model", "bed", "links", *(title for title, *_ in ENTRIES)),
        cells,
    )


def _truth(entries: Sequence[Measured]) -> ResultTable:
    cells = []
    for title, own in grouped(entries, lambda entry: entry.names[0]):
        phases = (f"{ratio_mean(entry.ratio(phase) for entry in own):.2f}" for phase in PHASES)
        error = fmean(entry.error for entry in own)
        cells.append((title, len(own), f"{error:.1%}", mean_and_range([entry.ratio(STEP) for entry in own]), *phases))
    return ResultTable(
        "Predicted over measured steps (geometric means, smallest and largest) and phases, and mean errors of steps.",
        ("entry", "cases", "mean error", "step", *PHASES),
        cells,
    )


def _steps(entries: Sequence[Measured]) -> ResultTable:
    cells = [
        (*entry.case[:2], entry.names[0], f"{entry.predicted:.1f}", f"{entry.steps.step_ms:.1f}", f"{entry.steps.spread:.0%}",
         *(f"{entry.steps.measured(phase):.1f}" for phase in PHASES), f"{entry.row['link_bytes'] / 1e3:,.0f}")
        for entry in entries
    ]  # fmt: skip
    return ResultTable(
        f"Model `{entries[0].case[2]}`: predicted and measured ms of a step, the spread of the rounds (largest less smallest), measured ms "
        "of its phases, and the bytes on all links.",
        ("bed", "links", "entry", "predicted", "step", "apart", *PHASES, "kB on links"),
        cells,
    )


if __name__ == "__main__":
    main()
