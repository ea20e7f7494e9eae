"""Steps of pooled tables by `shardwright.runtime` against TorchRec's, over hosts with slow links.

    python -m benchmarks.runtime_steps --rows runtime.jsonl

Hosts are network namespaces (`benchmarks/hosts`), which need root. Five entries train in turns, round by round, on the same batches. The
plan of TorchRec's planner and our plan for TorchRec run by `DistributedModelParallel` and by `ShardedEmbeddings`. Our plan for
`shardwright.runtime`, which may cut tables in any way, runs by `ShardedEmbeddings` alone.

Each case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes some
minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from experiments.experiment import ResultTable

import shardwright as sw
from benchmarks import results_table
from benchmarks.hosts import HostBed
from benchmarks.program import MEASURED_ROWS, mean_and_range, options_of, spread
from benchmarks.steps_measured import (
    BEDS,
    MODELS,
    RATES,
    SAMPLES,
    Case,
    Rows,
    asked,
    measured_rows,
    saved,
    topology_of,
)
from benchmarks.steps_page import plan_of
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.score import score
from shardwright.sharding import Plan
from shardwright.sharding.files import plan_to_dict
from shardwright.task import Task, Topology
from shardwright.task.topology import Exchange

FEW = {"rounds": 4, "steps": 7, "warm_up": 3}
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
    )  # fmt: skip
    if (rows := measured_rows(options, partial(cases, rates=options.rates.split(",")), measure)) is None:
        return
    priced = [{**row, "predicted": predicted_of(row, options.model)} for row in rows.read()]
    print(write_page(priced, results_table.command_of("runtime_steps", arguments), options.name).read_text())


def cases(quick: bool, rates: Sequence[str] = RATES) -> list[Case]:
    """The beds with their rates, pooled models first."""
    if quick:
        return [Case(2, 1, "300mbit", "pooled")]
    return [Case(*bed, rate, model) for model in ("pooled", "mixed") for rate in rates for bed in BEDS]


def measure(case: Case, rows: Rows, model: Path | None) -> list[dict[str, Any]]:
    """Time a bed's collectives, plan for them, and train all entries in turns."""
    plans, reply = trained(case, rows, lambda topology: _task(case, topology), model, "runtime_rank", {"rounds": FEW})
    entries = {title: measured for (title, *_), measured in zip(ENTRIES, reply["entries"], strict=True)}
    documents = {name: plan_to_dict(plan) for name, plan in plans.items()}
    return [{"document": documents["theirs"], "documents": documents, "entries": entries}]


def predicted_of(row: dict[str, Any], model: Path | None) -> dict[str, float]:
    """Predicted step of each entry of a row, by today's cost function and cost model."""
    plans = {name: plan_of(document) for name, document in row["documents"].items()}
    return {title: predicted_ms(plans[name], by, model) for title, name, by in ENTRIES}


def predicted_ms(plan: Plan, by: str, model: Path | None) -> float:
    """Predicted step of a plan in the exchange of what runs it."""
    task = replace(plan.task, exchange=SHARED if by == "shardwright" else Exchange())
    return score(task, plan.shards, resolve_cost_model(model, task)).step_ms


def _task(case: Case, topology: Topology) -> Task:
    return Task(MODELS[case.model], topology, SAMPLES * topology.devices)


def trained(
    case: Case,
    rows: Rows,
    task: Callable[[Topology], Task],
    model: Path | None,
    program: str,
    request: Mapping[str, Any],
    entries: Sequence[tuple[str, str, str]] = ENTRIES,
) -> tuple[dict[str, Plan], dict[str, Any]]:
    """Time a bed's collectives, plan the task of its topology, and train all entries by a rank program; returns plans and its reply."""
    with HostBed(case.hosts, case.per_host, case.rate) as bed, tempfile.TemporaryDirectory() as folder:
        plans = planned(task(topology_of(case, rows, bed)), model)
        files = dict(zip(plans, saved(list(plans.values()), folder), strict=True))
        of_entries = [{"plan": files[name], "by": by} for _, name, by in entries]
        return plans, asked(bed, program, {"entries": of_entries, **request})


def planned(task: Task, model: Path | None) -> dict[str, Plan]:
    """The plans by name."""
    options: dict[str, Any] = {"cost_model": model, "time_limit": _SEARCH_S}
    return {
        "theirs": sw.plan(task, strategy="torchrec", runs_on="torchrec", **options),
        "ours": sw.plan(task, runs_on="torchrec", **options),
        "free": sw.plan(replace(task, exchange=SHARED), runs_on="shardwright", **options),
    }


def write_page(rows: Sequence[dict[str, Any]], command: str, name: str = "runtime_steps") -> Path:
    return results_table.write_measured(
        name,
        "Steps of pooled tables: shardwright.runtime beside TorchRec",
        [_summary(rows), _ABOUT],
        [
            _overview(rows),
            _truth(rows),
            *(_steps([row for row in rows if row["model"] == model]) for model in _models(rows)),
        ],
        command,
        rows,
        "priced at ",
    )


_ABOUT = (
    "Hosts are network namespaces of one machine; links are limited to their rate in each direction, and four ranks share two cores. A "
    f"rank has {SAMPLES} samples in a step. Entries take turns, round by round, on the same fresh batches, and all ranks start a step at "
    "one instant. A step is forward, backward and optimizer of the tables, without dense layers: the slowest rank's, the median of a "
    "round's steps, the median of the rounds. The bytes are those of all hosts' links in a step, by their counters, with the start signals "
    "of the measurement. Predictions price what runs an entry: TorchRec's collectives and module, or the runtime's exchange and module. "
    "`shardwright calibrate --links` measured them on the bed before. The machine did other work at the time, so single figures are noisy; "
    "the spread of the rounds shows how much."
)


def step_ms(measured: Sequence[dict[str, Any]]) -> list[float]:
    """Median step of each round, in ms."""
    passes = [zip(of_round["forward_ms"], of_round["backward_ms"], strict=True) for of_round in measured]
    return [median(map(sum, of_round)) for of_round in passes]


def gains(rows: Sequence[dict[str, Any]], title: str, against: str = BASE) -> list[float]:
    """An entry's step over another's, the median over the rounds of each row."""
    steps = [(step_ms(row["entries"][title]), step_ms(row["entries"][against])) for row in rows]
    return [median(own / other for own, other in zip(*both, strict=True)) for both in steps]


def _models(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    ratios = "; ".join(f"{title}: {mean_and_range(gains(rows, title))}" for title, *_ in ENTRIES[1:])
    return (
        f"**Steps over those of TorchRec's planner in DistributedModelParallel: {ratios}** (geometric means, smallest and largest "
        f"of {len(rows)} cases; below 1 is faster)."
    )


def _overview(rows: Sequence[dict[str, Any]]) -> ResultTable:
    names = ("model", "bed", "rate")
    cells = [
        (*(row[name] for name in names), *(f"{gains([row], title)[0]:.2f}" for title, *_ in ENTRIES)) for row in rows
    ]
    return ResultTable(
        "Steps over those of TorchRec's planner in DistributedModelParallel (DMP), by model, bed (hosts × devices) and rate of the links: "
        "medians of the rounds' ratios.",
        ("model", "bed", "links", *(title for title, *_ in ENTRIES)),
        cells,
    )


def _truth(rows: Sequence[dict[str, Any]]) -> ResultTable:
    cells = []
    for title, *_ in ENTRIES:
        ratios = [row["predicted"][title] / median(step_ms(row["entries"][title])) for row in rows]
        error = fmean(abs(ratio - 1) for ratio in ratios)
        cells.append((title, len(ratios), f"{error:.1%}", mean_and_range(ratios)))
    return ResultTable(
        "Predicted over measured steps (geometric means, smallest and largest), and mean errors.",
        ("entry", "cases", "mean error", "predicted / measured"),
        cells,
    )


def _steps(rows: Sequence[dict[str, Any]]) -> ResultTable:
    cells = []
    for row in rows:
        for title, *_ in ENTRIES:
            rounds = row["entries"][title]
            steps = step_ms(rounds)
            passes = (median(median(own[part]) for own in rounds) for part in ("forward_ms", "backward_ms"))
            kilobytes = median(own["link_bytes"] for own in rounds) / 1e3
            cells.append(
                (row["bed"], row["rate"], title, f"{row['predicted'][title]:.1f}", f"{median(steps):.1f}",
                 *(f"{ms:.1f}" for ms in passes), f"{spread(steps):.0%}", f"{kilobytes:,.0f}")
            )  # fmt: skip
    return ResultTable(
        f"Model `{rows[0]['model']}`: predicted and measured ms of a step, its passes, the spread of the rounds (largest less "
        f"smallest), and the bytes on all links.",
        ("bed", "links", "entry", "predicted", "step", "forward", "backward", "apart", "kB on links"),
        cells,
    )


if __name__ == "__main__":
    main()
