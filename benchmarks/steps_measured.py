"""Whole steps of TorchRec on plans of many strategies, over hosts with slow links: measured and predicted.

    python -m benchmarks.steps_measured --rows steps.jsonl

Hosts are network namespaces (`benchmarks/hosts`), which need root: 2 and 4 hosts of one device, and 2 hosts of 2 devices, with links of 100
Mbit/s to 1 Gbit/s. Ranks train by `DistributedModelParallel` over gloo, pinned to cores, and start each step together. Before, `shardwright
calibrate --links` measures each bed; predictions use these links.

Each plan on a bed appends one row to the file of --rows, with all inputs of a prediction. A stopped run resumes; --page makes the page from
the rows alone, with today's cost function and cost model; --links prices them over links that are measured anew. --quick takes some
minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks import results_table
from benchmarks.hosts import HostBed, why_not
from benchmarks.program import MEASURED_ROWS, Options, options_of
from benchmarks.steps_page import write_page
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import InfeasibleTask, InvalidPlan, MeasurementFailed
from shardwright.files import write_atomically
from shardwright.integrations.torchrec.rival import TorchRec
from shardwright.integrations.torchrec.steps.sharded import planned
from shardwright.sharding import Plan, Shard
from shardwright.sharding.files import plan_to_dict
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.task.link_files import load_links
from shardwright.task.links import links_to_dict

BEDS = ((2, 1), (4, 1), (2, 2))
RATES = ("100mbit", "300mbit", "1gbit")
SAMPLES = 512  # of a rank in a step
HUGE_PAGES = "glibc.malloc.hugetlb=1"

FEW = {"rounds": 3, "steps": 7, "warm_up": 2, "profiled": 4}

LINK_MINUTES = "2"
"""Minutes for which the links of a bed are measured; modules of TorchRec need 1.4."""
_SEARCH_S = 10.0
_SMALL = 2_000  # rows of tables that lie on every device in the plan "replicas"
_TIMEOUT_S = 560.0

POOLED = (
    Table("item", 100_000, 64, 6.0),
    Table("user", 200_000, 32, 1.0),
    Table("shop", 20_000, 32, 4.0),
    Table("brand", 5_000, 16, 3.0),
    Table("query", 50_000, 16, 10.0),
    Table("city", 1_500, 16, 1.0),
    Table("day", 400, 8, 1.0),
    Table("device", 100, 8, 1.0),
)
SEQUENCES = (
    Table("clicks", 100_000, 16, 8.0, pooled=False),
    Table("orders", 50_000, 16, 3.0, pooled=False),
    Table("views", 30_000, 8, 5.0, pooled=False),
    Table("likes", 5_000, 8, 2.0, pooled=False),
)
MODELS = {"pooled": POOLED, "mixed": (*POOLED[1:], *SEQUENCES[1:3]), "sequence": SEQUENCES}


@dataclass(frozen=True)
class Case:
    """A model on a bed.

    Attributes:
        hosts: hosts of the bed.
        per_host: devices of a host.
        rate: limit of every host's link.
        model: name of the tables, of `MODELS`.
        huge_pages: whether the ranks' malloc asks for huge pages; trainings do not by default.
    """

    hosts: int
    per_host: int
    rate: str
    model: str
    huge_pages: bool = False

    @property
    def key(self) -> dict[str, Any]:
        """The key that identifies the case in its rows."""
        bed = f"{self.hosts}x{self.per_host}"
        return {"bed": bed, "rate": self.rate, "model": self.model, "huge_pages": self.huge_pages}


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, **MEASURED_ROWS)
    if (rows := measured_rows(options, cases, measure)) is None:
        return
    model = None if options.model is None else resolve_cost_model(options.model, sw.Task(POOLED, Topology(), SAMPLES))
    print(write_page(rows.read(), model, results_table.command_of("steps_measured", arguments)).read_text())


def cases(quick: bool) -> list[Case]:
    """The cases, ordered so that a run that stops early has some of every bed."""
    if quick:
        return [Case(2, 1, "300mbit", "mixed")]
    first = [Case(*bed, rate, model) for rate in RATES for bed in BEDS for model in ("pooled", "mixed")]
    every = first + [Case(*bed, rate, "sequence") for rate in RATES for bed in BEDS]
    return every + [Case(*bed, "1gbit", "pooled", huge_pages=True) for bed in BEDS]


Measure = Callable[[Case, "Rows", Path | None], list[dict[str, Any]]]
"""Measures a case with a cost model, and returns its rows without key and date."""


def measured_rows(options: Options, cases: Callable[[bool], Sequence[Case]], measure: Measure) -> Rows | None:
    """Measure the cases that have no rows yet, unless only the page is wanted.

    A case that fails is printed, and left to a later run.

    Args:
        options: those of `MEASURED_ROWS`.
        cases: the cases, or a quick one.
        measure: what measures a case.

    Returns:
        All rows; None if there are none, or if hosts cannot be made here.
    """
    rows = Rows(options.rows)
    if not options.page:
        if reason := why_not():
            print(f"skipped: {reason}", file=sys.stderr)
            return None
        stop = time.monotonic() + 60 * options.minutes
        for case in cases(options.quick):
            started = time.monotonic()
            if rows.of(case) or started >= stop:
                continue
            try:
                made = measure(case, rows, options.model)
            except MeasurementFailed as error:
                print(f"{case.key}: {error}", file=sys.stderr)
                continue
            at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            rows.add([{**case.key, "at": at, **row} for row in made])
            print(f"{case.key}: measured in {time.monotonic() - started:.0f} s", file=sys.stderr)
    if rows.read():
        return rows.over(bed_links(options.links, rows.read())) if options.links else rows
    print(f"nothing was measured: {options.rows} has no rows", file=sys.stderr)
    return None


def measure(case: Case, rows: Rows, model: Path | None) -> list[dict[str, Any]]:
    """Time a bed's collectives, plan for them, and measure all plans in turns."""
    with HostBed(case.hosts, case.per_host, case.rate) as bed, tempfile.TemporaryDirectory() as folder:
        topology = topology_of(case, rows, bed)
        named = plans(Task(MODELS[case.model], topology, SAMPLES * topology.devices), model)
        files = saved([plan for plan, _ in named], folder)
        reports = asked(bed, "steps_rank", {"plans": files, "rounds": FEW}, case.huge_pages)["reports"]
    return rows_of_plans(named, reports=reports)


def topology_of(case: Case, rows: Rows, bed: HostBed) -> Topology:
    """Return the topology of a bed, with its measured links."""
    return Topology(case.hosts, case.per_host, "cpu", "200 MB", links=rows.links(case) or links_of(bed))


def saved(plans: Sequence[Plan], folder: str) -> list[str]:
    """Save plans in a folder; return their files."""
    files = [Path(folder) / f"{number}.json" for number in range(len(plans))]
    for plan, file in zip(plans, files, strict=True):
        plan.save(file)
    return list(map(str, files))


def rows_of_plans(named: Sequence[tuple[Plan, list[str]]], **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row for each plan, with its names and its values of these columns."""
    values = zip(*columns.values(), strict=True)
    return [
        {"plan": name, "also": also, "document": plan_to_dict(plan), **dict(zip(columns, own, strict=True))}
        for (plan, (name, *also)), own in zip(named, values, strict=True)
    ]


def plans(task: Task, model: Path | None) -> list[tuple[Plan, list[str]]]:
    """Plans of a task that TorchRec can run, each with the names of the strategies that made it."""
    copied = TableConstraint(("data_parallel",))
    small = {table.name: copied for table in task.tables if table.pooled and table.rows <= _SMALL}
    wanted: list[tuple[str, Task, Any]] = [(name, task, name) for name in ("auto", "torchrec", "size", "greedy")]
    wanted.append(("torchrec, no statistics", task, TorchRec(statistics=False)))
    if small:
        wanted.append(("replicas", replace(task, constraints=Constraints(small)), "auto"))
    wanted += [(name, task, name) for name in ("row_wise", "column_wise", "table_row_wise")]
    return distinct(wanted, model)


def distinct(wanted: Sequence[tuple[str, Task, Any]], model: Path | None) -> list[tuple[Plan, list[str]]]:
    """Different plans that TorchRec can run, each with its names; prints those that cannot be planned or run.

    Args:
        wanted: name, task and strategy of each plan.
        model: cost model of the kernels; None for that of this machine.
    """
    by_shards: dict[frozenset[Shard], tuple[Plan, list[str]]] = {}
    for name, task, strategy in wanted:
        try:
            plan = sw.plan(task, strategy=strategy, cost_model=model, time_limit=_SEARCH_S, runs_on="torchrec")
            planned(plan, "cpu")
        except (InfeasibleTask, InvalidPlan) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        by_shards.setdefault(frozenset(plan.shards), (plan, []))[1].append(name)
    return list(by_shards.values())


def links_of(bed: HostBed) -> Any:
    """Links of a bed as `shardwright calibrate --links` measures them, in plain data."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "links.json"
        command = f"{sys.executable} -m shardwright calibrate --links --minutes {LINK_MINUTES} -o"
        bed.run([*command.split(), str(file)], timeout_s=_TIMEOUT_S, environment={"SHARDWRIGHT_CACHE": folder})
        return links_to_dict(load_links(file).links)


def bed_links(path: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The links of all beds of the rows by `bed_of`, kept in a file: measured for those that it lacks."""
    links: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in dict.fromkeys(map(bed_of, rows)):
        if name not in links:
            shape, rate = name.split()
            with HostBed(*map(int, shape.split("x")), rate) as bed:
                links[name] = links_of(bed)
            write_atomically(path, json.dumps(links, indent=1))
    return links


def bed_of(row: Mapping[str, Any]) -> str:
    """Hosts, devices of a host and rate of a row's bed: "2x1 100mbit"."""
    return f"{row['bed']} {row['rate']}"


def asked(bed: HostBed, program: str, request: dict[str, Any], huge_pages: bool = False) -> dict[str, Any]:
    """Run a rank program of this folder on a bed; return what rank 0 printed."""
    command = [sys.executable, "-m", f"benchmarks.{program}", json.dumps(request)]
    environment = {"GLIBC_TUNABLES": HUGE_PAGES if huge_pages else ""}
    printed = bed.run(command, timeout_s=_TIMEOUT_S, environment=environment)[0]
    reply: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return reply


class Rows:
    """The rows of a file, one JSON document a line.

    Args:
        path: the file; made by the first row.
        links: links by bed, in place of those in the rows' documents.
    """

    def __init__(self, path: Path, links: Mapping[str, Any] | None = None) -> None:
        self._path, self._links = path, links or {}

    def over(self, links: Mapping[str, Any]) -> Rows:
        """The rows of the same file over these links."""
        return Rows(self._path, links)

    def read(self) -> list[dict[str, Any]]:
        """All rows, without one that a kill left unfinished."""
        text = self._path.read_text() if self._path.exists() else ""
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
        for row in rows:
            if bed_of(row) in self._links:
                row["document"]["task"]["topology"]["links"] = self._links[bed_of(row)]
        return rows

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append the rows of a case, all at once."""
        text = "".join(json.dumps(row) + "\n" for row in [*self.read(), *rows])
        write_atomically(self._path, text)

    def of(self, case: Case) -> list[dict[str, Any]]:
        """The rows of a case."""
        return [row for row in self.read() if all(row[name] == value for name, value in case.key.items())]

    def links(self, case: Case) -> Any:
        """The links of the case's bed from an earlier row of the same bed; None without one."""
        same = [row for row in self.read() if (row["bed"], row["rate"]) == (case.key["bed"], case.rate)]
        return same[-1]["document"]["task"]["topology"]["links"] if same else None


if __name__ == "__main__":
    main()
