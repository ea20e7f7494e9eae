"""Planning time of tiers for 500 sequence tables, and the plans' distance from the bound.

    python -m benchmarks.flexshard_planning [--tables 500] [--repeats 3]

Writes results/flexshard_planning.md. Every table has 10 million rows and its own access profile; memory is a multiple of the rows of a
row-wise plan. A search finds the bound, the boundaries and the blocks. Scoring its plan has a separate column; checking is not timed. Times
are medians, wall time beside processor time, since the machine may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from experiments.flexshard.sequence_models import EXCHANGES, cluster, model, task_of, with_memory

from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.search.flexshard import tier_plan
from shardwright.task import Task, Topology

ROWS = 10_000_000
FACTORS = (1.05, 1.1, 1.25, 1.5)
BATCH = 4096
CLUSTERS = {
    "1 host × 8": cluster(1),
    "8 × 8, 400 Gbit/s": cluster(8),
    "8 × 8, 100 Gbit/s": cluster(8, between="100 Gbit/s"),
    "16 × 8, 400 Gbit/s": cluster(16),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, tables=500, repeats=3)
    tier_plan(task_of(model(1, 2, (0.8, 1.3)), cluster(2)))  # imports the solver
    tables = model(0, options.tables, (0.8, 1.3), rows=(ROWS, ROWS))
    rows = []
    for name, topology in CLUSTERS.items():
        factors = FACTORS if topology.hosts == 8 else FACTORS[2:3]
        tasks = dict(zip(factors, with_memory(task_of(tables, topology, batch=BATCH), *factors), strict=True))
        for exchange_name, exchange in EXCHANGES.items():
            for factor, limited in tasks.items():
                task = replace(limited, exchange=exchange)
                rows.append([name, exchange_name, factor, *figures(task, options.repeats)])
    (task,) = with_memory(task_of(tables, cluster(8), batch=BATCH), 1.25)
    rows.append(
        ["8 × 8, unequal memory", next(iter(EXCHANGES)), "1.2 to 1.3", *figures(unequal(task), options.repeats)]
    )
    write_results(
        "flexshard_planning",
        "Planning tiers",
        [
            (
                f"{options.tables} tables of 10 million rows, dims 32 to 128, mean lengths 50 to 1,000, Zipf 0.8 to 1.3, {BATCH:,} samples "
                f"a device. Gap: communication against the bound over all choices of tiers, and over all plans. "
                f"Medians of {options.repeats} searches.",
                [
                    "cluster", "exchange", "memory", "search s", "processor s", "scoring s", "gap, tiers", "gap, all plans",
                ],
                rows,
            )
        ],
        command_of("flexshard_planning", arguments),
    )  # fmt: skip


def unequal(task: Task) -> Task:
    """Return the task with 5% less or more room for rows on some devices."""
    memory = np.array(task.topology.memory_bytes)
    rows = sum(table.rows * (4 * table.dim + 4) for table in task.tables) / task.topology.devices
    memory = memory + (rows * np.resize([-0.05, 0.05, 0.0, 0.05], memory.size)).astype(np.int64)
    topology: Topology = replace(task.topology, memory=memory.tolist())
    return replace(task, topology=topology)


def figures(task: Task, repeats: int) -> list[str]:
    """Return wall seconds, processor seconds, seconds of scoring, and the gaps."""
    clock, processor, scoring, gaps = [], [], [], (0.0, 0.0)
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        tiers = tier_plan(task)
        clock.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
        begin = time.perf_counter()
        gaps = tiers.gap, tiers.communication_ms / tiers.plans_bound_ms - 1
        scoring.append(time.perf_counter() - begin)
    return [
        *(f"{float(np.median(times)):.2f}" for times in (clock, processor, scoring)),
        *(f"{gap:.3%}" for gap in gaps),
    ]


if __name__ == "__main__":
    main()
