"""Steps of pooled tables by `shardwright.runtime` against TorchRec's, over hosts with slow links.

    python -m benchmarks.runtime_steps --rows runtime.jsonl

Hosts are network namespaces (`benchmarks/hosts`), which need root. Five entries train in turns, round by round, on the same batches: the
plan of TorchRec's planner and our plan for TorchRec, each by `DistributedModelParallel` and by `ShardedEmbeddings`, and our plan for
`shardwright.runtime`, which may cut tables in any way, by the latter.

Each case appends one row to the file of --rows. A stopped run resumes; --page makes the page from the rows alone. --quick takes some
minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from experiments.experiment import ResultTable
from experiments.pages import commit, hardware, markdown

import shardwright as sw
from benchmarks import results_table
from benchmarks.hosts import HostBed
from benchmarks.steps_measured import BEDS, MODELS, RATES, SAMPLES, Case, Rows, asked, links_of, measured_rows
from shardwright.files import write_atomically
from shardwright.sharding import Plan
from shardwright.sharding.files import plan_to_dict
from shardwright.task import Task, Topology

FEW = {"rounds": 4, "steps": 7, "warm_up": 3}
_SEARCH_S = 8.0
BASE = "torchrec planner, DMP"
ENTRIES = (
    (BASE, "theirs", "torchrec"),
    ("torchrec planner, runtime", "theirs", "shardwright"),
    ("our plan for torchrec, DMP", "ours", "torchrec"),
    ("our plan for torchrec, runtime", "ours", "shardwright"),
    ("our free plan, runtime", "free", "shardwright"),
)
"""Title of each entry, its plan, and what runs it."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parsed(arguments)
    rates = options.rates.split(",")
    rows = measured_rows(
        options,
        lambda quick: cases(quick, rates),
        lambda case, rows: measure(case, rows, options.model),
        options.minutes,
    )
    if rows is None:
        return
    print(write_page(rows.read(), results_table.command_of("runtime_steps", arguments), options.name).read_text())


def cases(quick: bool, rates: Sequence[str] = RATES) -> list[Case]:
    """The beds with their rates, pooled models first."""
    if quick:
        return [Case(2, 1, "300mbit", "pooled")]
    return [Case(*bed, rate, model) for model in ("pooled", "mixed") for rate in rates for bed in BEDS]


def measure(case: Case, rows: Rows, model: Path | None) -> None:
    """Time a bed's collectives, plan for them, and train all entries in turns; adds the row."""
    started = time.monotonic()
    with HostBed(case.hosts, case.per_host, case.rate) as bed:
        links = rows.links(case) or links_of(bed)
        topology = Topology(case.hosts, case.per_host, "cpu", "200 MB", links=links)
        plans = planned(Task(MODELS[case.model], topology, SAMPLES * topology.devices), model)
        with tempfile.TemporaryDirectory() as folder:
            for name, plan in plans.items():
                plan.save(Path(folder) / f"{name}.json")
            entries = [{"plan": str(Path(folder) / f"{name}.json"), "by": by} for _, name, by in ENTRIES]
            found = asked(bed, "runtime_rank", {"entries": entries, "rounds": FEW})["entries"]
    shown = {title: measured for (title, *_), measured in zip(ENTRIES, found, strict=True)}
    documents = {name: plan_to_dict(plan) for name, plan in plans.items()}
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    rows.add([{**case.key, "document": documents["free"], "documents": documents, "entries": shown, "at": at}])
    print(f"{case.key}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def planned(task: Task, model: Path | None) -> dict[str, Plan]:
    """The plans by name."""
    options: dict[str, Any] = {"cost_model": model, "time_limit": _SEARCH_S}
    return {
        "theirs": sw.plan(task, strategy="torchrec", runs_on="torchrec", **options),
        "ours": sw.plan(task, runs_on="torchrec", **options),
        "free": sw.plan(replace(task), runs_on="shardwright", **options),
    }


def write_page(rows: Sequence[dict[str, Any]], command: str, name: str = "runtime_steps") -> Path:
    """Write the page of rows; returns its file."""
    days = sorted({row["at"][:10] for row in rows})
    text = markdown(
        "Steps of pooled tables: shardwright.runtime beside TorchRec",
        [_summary(rows), _ABOUT],
        [_overview(rows), *(_steps([row for row in rows if row["model"] == model]) for model in _models(rows))],
        command,
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))} · commit {commit()} · {hardware()}",
    )
    path = results_table.RESULTS / f"{name}.md"
    write_atomically(path, text)
    return path


_ABOUT = (
    "Hosts are network namespaces of one machine; links are limited to their rate in each direction, and four ranks share two cores. A "
    f"rank has {SAMPLES} samples in a step. Entries take turns, round by round, on the same fresh batches, and all ranks start a step at "
    "one instant. A step is forward, backward and optimizer of the tables, without dense layers: the slowest rank's, the median of a "
    "round's steps, the median of the rounds. The bytes are those of all hosts' links in a step, by their counters, with the start signals "
    "of the measurement. Predictions price TorchRec's collectives over links that were measured on the bed before; the runtime's exchange "
    "is not priced yet. The machine did other work at the time, so single figures are noisy; the spread of the rounds shows how much."
)


def step_ms(measured: Sequence[dict[str, Any]]) -> list[float]:
    """Median step of each round, in ms."""
    return [median(sum(both) for both in zip(one["forward_ms"], one["backward_ms"], strict=True)) for one in measured]


def gains(rows: Sequence[dict[str, Any]], title: str, against: str = BASE) -> list[float]:
    """An entry's step over another's, the median over the rounds of each row."""
    return [
        median(
            own / other
            for own, other in zip(step_ms(row["entries"][title]), step_ms(row["entries"][against]), strict=True)
        )
        for row in rows
    ]


def _models(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    told = []
    for title, *_ in ENTRIES[1:]:
        found = gains(rows, title)
        told.append(f"{title}: {geometric_mean(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    return (
        f"**Steps over those of TorchRec's planner in DistributedModelParallel: {'; '.join(told)}** (geometric means, smallest and largest "
        f"of {len(rows)} cases; below 1 is faster)."
    )


def _overview(rows: Sequence[dict[str, Any]]) -> ResultTable:
    found = [
        (row["model"], row["bed"], row["rate"], *(f"{gains([row], title)[0]:.2f}" for title, *_ in ENTRIES))
        for row in rows
    ]
    return ResultTable(
        "Steps over those of TorchRec's planner in DistributedModelParallel (DMP), by model, bed (hosts × devices) and rate of the links: "
        "medians of the rounds' ratios.",
        ("model", "bed", "links", *(title for title, *_ in ENTRIES)),
        found,
    )


def _steps(rows: Sequence[dict[str, Any]]) -> ResultTable:
    found = []
    for row in rows:
        for title, name, _ in ENTRIES:
            measured = row["entries"][title]
            steps = step_ms(measured)
            passes = (median(median(one[part]) for one in measured) for part in ("forward_ms", "backward_ms"))
            apart = (max(steps) - min(steps)) / median(steps)
            found.append(
                (row["bed"], row["rate"], title, f"{row['documents'][name]['step_ms']:.1f}", f"{median(steps):.1f}",
                 *(f"{ms:.1f}" for ms in passes), f"{apart:.0%}",
                 f"{median(one['link_bytes'] for one in measured) / 1e3:,.0f}")
            )  # fmt: skip
    return ResultTable(
        f"Model `{rows[0]['model']}`: predicted and measured ms of a step, its passes, the spread of the rounds (largest less "
        f"smallest), and the bytes on all links.",
        ("bed", "links", "entry", "predicted", "step", "forward", "backward", "apart", "kB on links"),
        found,
    )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="file of the measured rows")
    parser.add_argument("--model", type=Path, help="cost model of the kernels; by default that of this machine")
    parser.add_argument("--rates", default=",".join(RATES), help="rates of the links, in order (default: %(default)s)")
    parser.add_argument("--name", default="runtime_steps", help="name of the page (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="measure nothing, make the page of the rows")
    parser.add_argument("--minutes", type=float, default=600.0, help="no case begins later (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one case, some minutes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
