"""The default strategy, `auto`, against every strategy of at most three seconds, on usual and on odd tasks.

    python -m benchmarks.default_plan --tasks 500                  # results/default_plan.md
    python -m benchmarks.default_plan --tasks 500 --part 1/2       # half of the tasks; run 2/2 beside it, the second to end writes the page

One cost model prices all plans, and all are for the same runtime. Each finished task is a line of a journal, so a stopped run can go on.
A task is a number: `--only 17` plans task 17 and prints all steps.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks import results_table
from benchmarks.cluster_tasks import cluster_task
from benchmarks.program import Journal, options_of
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search import strategy_named
from shardwright.sharding import memory_account
from shardwright.workload import random_task

SECONDS = 3.0
BAR = 0.002
RIVALS = (
    "random", "size", "dim", "lookup", "size_lookup", "greedy", "neuroshard", "autoshard", "dreamshard", "dreamshard+", "certified",
    "flexshard", "two_tiers", "row_wise", "table_row_wise", "column_wise", "table_wise", "data_parallel", "exact",
)  # fmt: skip
SLOW = ("rnn", "torchrec")
"""Run on every tenth task only: they exceed the time limit, or need a separate process."""
JOURNAL = Path("default_plan.jsonl")


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=500, part=("1/1", "", {"metavar": "I/N"}), only=(int, "", {"metavar": "TASK"}),
        page=(False, "only write the page, of the tasks that are finished"), journal=JOURNAL,
    )  # fmt: skip
    if options.only is not None:
        print(json.dumps(outcome(options.only), indent=1))
        return
    part, parts = map(int, options.part.split("/"))
    journal = Journal(options.journal, "task")
    for number in range(part - 1, options.tasks, parts):
        if journal.row(number) is None and not options.page:
            row = journal.add(number, **outcome(number))
            print(f"{number}/{options.tasks} {row['kind']} {worst(row)}", file=sys.stderr, flush=True)
    # Read anew: another part may have added to it.
    rows = [row for row in Journal(options.journal, "task").rows if row["task"] < options.tasks]
    if len(rows) == options.tasks or options.page:
        write(rows, options.tasks, f"python -m benchmarks.default_plan --tasks {options.tasks}")


def outcome(number: int) -> dict[str, Any]:
    """Return the step of each strategy, in ms; None if it found no plan."""
    kind, task, runs_on = task_of(number)
    row: dict[str, Any] = {"kind": kind, "runs_on": runs_on, "steps": {}}
    names = (*RIVALS, *(SLOW if number % 10 == 0 else ()))
    for name in ("auto", *(name for name in names if strategy_named(name).supports(task) is None)):
        begin = time.monotonic()
        try:
            plan = sw.plan(task, strategy=name, runs_on=runs_on, time_limit=None if name == "auto" else SECONDS)
            row["steps"][name] = plan.cost.step_ms if plan.cost else None
        except (InfeasibleTask, InvalidPlan):
            plan, row["steps"][name] = None, None
        if name == "auto":
            row["winner"], row["seconds"] = plan.strategy if plan else None, time.monotonic() - begin
            row["gap"] = plan.gap if plan else None
    return row


def task_of(number: int) -> tuple[str, sw.Task, str]:
    """Return the task of a number. Even numbers are as in the papers or on clusters of hosts; odd numbers are odd tasks."""
    rng = np.random.default_rng([2026, number])
    device, batch = (("cpu", 1024), ("h100", 65_536))[number // 2 % 2]
    if number % 2 == 0:
        if number % 8 == 0:
            tables = int(rng.integers(40, 200))
            task = cluster_task(
                number, tables=tables, devices=16, device=device, batch_size=batch, heavy_tail=number % 16 == 0
            )
            return "cluster", task, "shardwright"
        devices = int(rng.choice([4, 8]))
        drawn = random_task(rng, tables=(10, 15 * devices), devices=devices, batch_size=batch, device=device)
        return "papers", drawn, "shardwright"
    return odd_task(rng, device, batch)


def odd_task(rng: np.random.Generator, device: str, batch: int) -> tuple[str, sw.Task, str]:
    """Draw an odd task: few or many tables, sequences, slow links, long latencies, tight or unequal memory, constraints."""
    hosts, near = (int(rng.choice(choice)) for choice in ([1, 1, 2, 4], [2, 4, 8]))
    devices = hosts * near
    tables = [odd_table(rng, index, batch) for index in range(int(rng.choice([2, 5, 12, 30, 60])))]
    if rng.random() < 0.6:
        tables = [sw.Table(t.name, t.rows, t.dim, t.pooling, True, t.access, t.dtype) for t in tables]
    kind, links, latency = "odd", (float(rng.choice([450e9, 50e9])), float(rng.choice([50e9, 10e9]))), (0.02, 0.05)
    if rng.random() < 0.4:
        kind, links = "odd, slow links", (10e9, 1e9)
    if rng.random() < 0.25:
        kind, latency = f"{kind}, latency", tuple(rng.uniform(5, 50, 2).tolist())
    limits = sw.Constraints(
        {t.name: limit for t in tables if rng.random() < 0.15 and (limit := odd_limits(rng, devices))}
    )
    topology = sw.Topology(hosts, near, device, "80 GB", *links, *latency)
    task = sw.Task(tables, topology, batch, constraints=limits)
    if rng.random() < 0.4:
        kind = f"{kind}, tight"
        held = memory_account(task, [sw.Shard.whole(t, i % devices) for i, t in enumerate(tables)]).total.sum()
        fair = held / devices / rng.uniform(0.6, 0.98)
        spread = rng.uniform(0.7, 1.3, devices) if rng.random() < 0.3 else np.ones(devices)
        topology = sw.Topology(hosts, near, device, [int(fair * part) for part in spread], *links, *latency)
        task = sw.Task(tables, topology, batch, constraints=limits)
    return kind, task, "torchrec" if rng.random() < 0.25 else "shardwright"


def odd_table(rng: np.random.Generator, index: int, batch: int) -> sw.Table:
    rows = int(10 ** rng.uniform(0.3, 7.3))
    dim = int(rng.choice([4, 8, 16, 32, 64, 128, 256, 12, 20, 100]))
    pooling = float(10 ** rng.uniform(-0.3, 2.0))
    skew = float(rng.choice([0.0, 0.6, 0.9, 1.1, 1.3]))
    access = sw.AccessProfile.zipf(rows, skew)
    return sw.Table(
        f"t{index}", rows, dim, pooling, bool(rng.random() < 0.7), access, str(rng.choice(["fp32", "fp16"]))
    )


def odd_limits(rng: np.random.Generator, devices: int) -> sw.TableConstraint | None:
    choice = int(rng.integers(4))
    if choice == 0:
        return sw.TableConstraint(sharding_types=("table_wise", "data_parallel"))
    if choice == 1:
        return sw.TableConstraint(sharding_types=("row_wise", "column_wise", "table_row_wise"))
    if choice == 2:
        return sw.TableConstraint(max_shards=int(rng.integers(1, 5)))
    return sw.TableConstraint(devices=tuple(sorted(rng.choice(devices, max(1, devices // 2), replace=False).tolist())))


def worst(row: dict[str, Any]) -> tuple[float, str]:
    """The excess of the default over the best other plan, and that plan's strategy; infinite if only another strategy has a plan."""
    others = {name: step for name, step in row["steps"].items() if name != "auto" and step is not None}
    if not others:
        return -math.inf, "none"
    best = min(others, key=lambda name: others[name])
    own = row["steps"]["auto"]
    return (math.inf if own is None else own / others[best] - 1), best


def write(rows: list[dict[str, Any]], wanted: int, command: str) -> None:
    kinds = sorted({row["kind"] for row in rows})
    table = []
    for kind in (*kinds, "all"):
        chosen = [row for row in rows if kind in (row["kind"], "all")]
        above = [worst(row)[0] for row in chosen]
        placed = [row for row in chosen if row["steps"]["auto"] is not None]
        seconds = np.median([row["seconds"] for row in placed]) if placed else math.nan
        gaps = [row["gap"] for row in placed if row["gap"] is not None]
        table.append(
            [kind, len(chosen), len(placed), sum(excess > BAR for excess in above), f"{max(above):+.2%}", f"{seconds:.1f}",
             f"{np.median(gaps):.1%}" if gaps else "–"]
        )  # fmt: skip
    beaten = [[row["task"], row["kind"], worst(row)[1], f"{worst(row)[0]:+.2%}"] for row in rows if worst(row)[0] > BAR]
    winners = Counter(row["winner"] for row in rows)
    heads = (
        "tasks of this kind", "tasks", "placed", f"above by more than {BAR:.1%}", "furthest above", "median s", "median gap",
    )  # fmt: skip
    caption = (
        f"{len(rows)} of {wanted} tasks. The default (`auto`, no time limit) against the best plan of all other strategies "
        f"({SECONDS:g} s each): {', '.join(RIVALS)}; on every tenth task {' and '.join(SLOW)} too. Above: the default's step "
        "against the best of theirs; below zero if it is shorter than all."
    )
    of_beaten = ("task", "kind", "strategy", "default above it")
    tables = [
        (caption, heads, table),
        ("Tasks on which another plan is better by more than 0.2%.", of_beaten, beaten or [["none", "", "", ""]]),
        ("Strategies whose plan was returned.", ("strategy", "tasks"), [[str(name), count] for name, count in winners.most_common()]),
    ]  # fmt: skip
    results_table.write_results("default_plan", "Is the default the best strategy?", tables, command)


if __name__ == "__main__":
    main()
