"""Bytes moved, and step time afterwards, when tables or a host are added to a job that runs a plan.

python -m benchmarks.warm_start
"""

from __future__ import annotations

import math
from dataclasses import replace

import shardwright as sw
from benchmarks.cluster_tasks import cluster_task
from benchmarks.results_table import write_results

TIME_LIMIT = 5.0
PRICES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, math.inf)  # ms per GB
HEADS = ("search", "step ms", "gap", "GB moved", "of GB", "search s")


def main() -> None:
    full = cluster_task(0, tables=210, devices=16, device="h100", batch_size=65_536, heavy_tail=True)
    running = replace(full, tables=full.tables[:200])
    larger = replace(full, tables=full.tables[:200], topology=sw.Topology.preset("h100-8", hosts=3))
    plan = sw.plan(running, time_limit=TIME_LIMIT)
    assert plan.cost is not None
    about = f"The plan that runs: 200 tables on 16 devices, step {plan.cost.step_ms:.3f} ms."
    sections = [
        (f"{about} 10 tables are added.", HEADS, rows(full, plan)),
        (f"{about} A host of 8 devices is added.", HEADS, rows(larger, plan)),
    ]
    write_results("warm_start", "Starting from a plan", sections, "python -m benchmarks.warm_start")


def rows(task: sw.Task, plan: sw.Plan) -> list[tuple[str, ...]]:
    """Return one row for a search from scratch, and one for each price."""
    found = [row("anew", plan, sw.plan(task, time_limit=TIME_LIMIT))]
    for price in PRICES:
        warm = sw.plan(task, start=plan, move_cost=price, time_limit=TIME_LIMIT)
        found.append(row(f"from the plan, {price:g} ms per GB", plan, warm))
    return found


def row(name: str, older: sw.Plan, plan: sw.Plan) -> tuple[str, ...]:
    """Return the row with step, gap, bytes and seconds."""
    assert plan.cost is not None
    assert plan.gap is not None
    diff = older.diff(plan)
    moved, all_bytes = diff.moved_bytes / 1e9, (diff.moved_bytes + diff.kept_bytes) / 1e9
    return (
        name, f"{plan.cost.step_ms:.3f}", f"{plan.gap:.1%}", f"{moved:.2f}", f"{all_bytes:.1f}", f"{plan.search_s:.1f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
