"""Tiered plans of sequence tables on hosts with a slow link between them: measured and predicted traffic and time.

    python -m benchmarks.flexshard_measured --log amazon_video_sequences.txt

Hosts are network namespaces (`benchmarks/hosts`), which need root. All strategies get equal memory: 1.0, 1.1, 1.25 and 1.5 times the tables
without replicas, plus equal room for buffers. The default is two hosts of two devices; --hosts 4 writes a separate page. A journal
(--journal) keeps all measurements, so a stopped run goes on, with the calibration it began with. --quick takes some minutes, the whole page
about an hour.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks import flexshard_page, results_table
from benchmarks.flexshard_cases import BATCH, Case, cases
from benchmarks.flexshard_model import losses_unsharded
from benchmarks.hosts import HostBed, why_not
from benchmarks.hosts.calibration import calibrate
from benchmarks.program import Journal, Options, options_of
from shardwright.cost.flows import INTER, traffic_by_kind
from shardwright.cost.score import communication_ms
from shardwright.errors import InfeasibleTask
from shardwright.task import Exchange, Table, Task, Topology

STRATEGIES = ("row_wise", "table_row_wise", "two_tiers", "flexshard")
EXCHANGES = (Exchange("none", "whole"), Exchange("device", "cheaper"), Exchange("host", "cheaper"))
MEMORIES = (1.0, 1.1, 1.25, 1.5)

STEPS = ("forward_ms", "backward_ms", "step_ms", "metered", "counted")
"""Measurements of every step."""

_AMPLE = "64 GB"
_AT_ONCE = 12  # plans per start of the ranks
_START_S, _JOB_S = 90.0, 60.0  # seconds allowed for a start, and for each plan


@dataclass(frozen=True)
class Job:
    """A plan to measure.

    Attributes:
        key: unique key.
        plan: the plan.
        facts: facts for the page.
    """

    key: str
    plan: sw.Plan
    facts: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if reason := why_not():
        say(f"skipped: {reason}")
        return
    if options.log is not None and not Path(options.log).is_file():
        say(f"{options.log} is not there: the log is left out")
        options.log = None
    journal = Journal(options.journal)
    topology = calibrated(options, journal)
    wanted = []
    for case in cases(options.log, quick=options.quick, production=options.production, batches=options.batch):
        if options.case not in case.name:
            continue
        wanted += [measured_case(case, topology, options, journal)]
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--journal" in words:  # a path of this machine
        place = words.index("--journal")
        del words[place : place + 2]
    command = results_table.command_of("flexshard_measured", words)
    flexshard_page.write_page(wanted, journal.row("calibration"), command)


def parsed(arguments: Sequence[str] | None) -> Options:
    options = options_of(
        __doc__, arguments, log=(None, "file of `user item` lines, in time order per user"), hosts=2, devices_per_host=2,
        rate=("100mbit", "rate of every host's link, in each direction (default 100mbit)"),
        rounds=(3, "how often each plan is visited (default 3)"),
        steps=(2, "instrumented steps of a visit, and as many others (default 2)"), memory=list(MEMORIES),
        batch=([BATCH], f"samples of each device (default {BATCH})"),
        quick=(False, "two small cases, 1.0 and 1.25 times the memory, one round"),
        production=(False, "also 100 tables, and sequences of a thousand"),
        case=("", "only cases with this in their name, as in 'Zipf 1.2'", {"metavar": "TEXT"}),
        journal=Path(tempfile.gettempdir()) / "flexshard_measured.jsonl",
    )  # fmt: skip
    if options.quick:
        options.rounds, options.memory = 1, [1.0, 1.25]
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def calibrated(options: Options, journal: Journal) -> Topology:
    """Return the bed's links: from the journal, or measured now."""
    setting = [options.hosts, options.devices_per_host, options.rate]
    known = journal.row("calibration")
    if known is None or known["setting"] != setting:
        say("calibrating")
        with HostBed(*setting) as bed:
            measured = calibrate(bed, memory=_AMPLE)
        fields = asdict(measured.topology)
        known = journal.add(
            "calibration", setting=setting, topology=fields, errors=measured.errors, all_to_alls=measured.collectives
        )
    return Topology(**known["topology"])


def measured_case(
    case: Case, topology: Topology, options: Options, journal: Journal
) -> tuple[Case, list[dict[str, Any]]]:
    """Measure all plans of a case."""
    bed = [options.hosts, options.devices_per_host, options.rate, options.steps]
    known = journal.row("calibration") or {}
    stem = json.dumps([case.to_dict(), bed, known.get("topology")])
    steps = 1 + 2 * options.steps
    reference = journal.row(f"{stem} losses") or journal.add(
        f"{stem} losses", losses=losses_unsharded(case, topology.devices, steps)
    )
    jobs = list(planned(case, topology, options.memory, stem))
    for visit in range(options.rounds):
        todo = [job for job in jobs if journal.row(f"{job.key} {visit}") is None]
        say(f"{case.name}, round {visit + 1}: {len(jobs)} plans, {len(todo)} to measure")
        for first in range(0, len(todo), _AT_ONCE):
            run_jobs(case, visit, todo[first : first + _AT_ONCE], options, journal)
    rows = []
    for job in jobs:
        visits = [journal.row(f"{job.key} {visit}") or {} for visit in range(options.rounds)]
        rows.append({**merged(visits), **job.facts, "reference": reference["losses"]})
    return case, rows


def merged(visits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the steps of all visits; losses are the same in every visit."""
    steps = {name: [step for visit in visits for step in visit[name]] for name in STEPS}
    both = [sum(step) for step in zip(steps["forward_ms"], steps["backward_ms"], strict=True)]
    medians = {name: np.median(values, axis=0).tolist() for name, values in steps.items()}
    return {"communication_ms": median(both), **medians, **{name: visits[0][name] for name in ("exchanges", "losses")}}


def planned(case: Case, topology: Topology, memories: Sequence[float], stem: str) -> Iterator[Job]:
    """Yield the plans of every strategy, exchange and memory; strategies without a plan that fits are left out."""
    data = case.data()
    tables, maps = data.tables(), data.rank_maps()
    for exchange in EXCHANGES:
        ample = Task(tables, topology, case.batch * topology.devices, exchange=exchange)
        account = sw.plan(ample, strategy="row_wise").memory
        base = int(account.total.max()) + sum(row_bytes(table) for table in tables)  # tiers may not divide evenly
        unreplicated = int((account.weights + account.optimizer).sum() / topology.devices)
        seen = set()
        for memory in memories:
            limited = replace(ample, topology=replace(topology, memory=base + int((memory - 1) * unreplicated)))
            for strategy in STRATEGIES:
                try:
                    plan = sw.plan(limited, strategy=strategy).with_rank_maps(maps)
                except InfeasibleTask as error:
                    say(f"{case.name}, {strategy} at {memory:g}: {error}")
                    continue
                way = f"{exchange.deduplicate}/{exchange.replica_gradients}"
                if (strategy, plan.shards) in seen:
                    continue  # more memory does not change the plan
                seen.add((strategy, plan.shards))
                facts = {"strategy": strategy, "exchange": way, "memory": memory, **predicted(limited, plan)}
                shards = hashlib.sha256(repr(plan.shards).encode()).hexdigest()[:12]
                yield Job(f"{stem} {strategy} {way} {shards}", plan, facts)


def row_bytes(table: Table) -> int:
    """Bytes of a row and its row-wise Adagrad state."""
    return 4 * table.dim + 4


def predicted(task: Task, plan: sw.Plan) -> dict[str, Any]:
    """Return the cost model's prediction for a plan."""
    flows = traffic_by_kind(task, plan.shards).values()
    sent = np.sum([flow.sent[INTER] for flow in flows], axis=0).reshape(task.topology.hosts, -1).sum(axis=1)
    forward, backward = communication_ms(task, plan.shards)
    account = plan.memory
    held = (account.weights + account.optimizer).sum()
    alone = sum(table.rows * row_bytes(table) for table in task.tables)
    return {
        "predicted_forward_ms": float(forward.max()),
        "predicted_backward_ms": float(backward.max()),
        "predicted_bytes": float(sent.max()),
        "held": float(held / alone),
        "hosts": task.topology.hosts,
        "latency_ms": task.topology.inter_latency_ms,
    }


def run_jobs(case: Case, visit: int, jobs: Sequence[Job], options: Options, journal: Journal) -> None:
    """Measure plans in one start of the ranks; if one fails, earlier results are kept."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flexshard-") as name:
        folder = Path(name)
        listed = []
        for number, job in enumerate(jobs):
            job.plan.save(folder / f"{number}.json")
            listed.append({"key": f"{job.key} {visit}", "plan": str(folder / f"{number}.json")})
        settings = {
            "case": case.to_dict(), "jobs": listed, "steps": options.steps, "output": str(folder / "rows.jsonl"),
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(settings))
        try:
            with HostBed(options.hosts, options.devices_per_host, options.rate) as bed:
                command = [sys.executable, "-m", "benchmarks.flexshard_rank", str(folder / "settings.json")]
                bed.run(command, timeout_s=_START_S + _JOB_S * len(jobs))
        finally:
            printed = folder / "rows.jsonl"
            for line in printed.read_text().splitlines() if printed.exists() else ():
                row = json.loads(line)
                journal.add(row.pop("key"), **row)
    say(f"  {len(jobs)} plans in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    results_table.RESULTS.mkdir(exist_ok=True)
    main()
