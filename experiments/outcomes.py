"""The row of a strategy's plan of a task: costs and search time, or the reason why there is no plan."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache

from experiments.entrants import Entrant
from experiments.experiment import Row
from shardwright.cost.choice import cost_model_for
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible import prove_infeasible
from shardwright.search.solve import plan
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

UNSUPPORTED, NO_PLAN, NO_TIME, NO_ROOM = "not supported", "no plan exists", "no plan in time", "no room found"
"""Reasons without a plan: the strategy cannot plan the task; a proof that no plan exists; the time limit; no room found."""
FAILURES = (UNSUPPORTED, NO_PLAN, NO_TIME, NO_ROOM)
_MOST_TEXT = 300


def planned(task: Task, entrant: Entrant, *, seed: int = 0, model: CostModel | None = None) -> tuple[Row, Plan | None]:
    """Plan a task by a strategy.

    Args:
        task: the task.
        entrant: the strategy and its limit.
        seed: seed of the search.
        model: cost model; by default the bundled one for the task's devices. It is loaded before the clock starts.

    Returns:
        The row of `row_of`, and the plan; the plan is None if the strategy found no placement.
    """
    model = model or _model(task.topology.device)
    begin = time.monotonic()
    try:
        made = plan(
            task,
            strategy=entrant.strategy,
            cost_model=model,
            seed=seed,
            time_limit=entrant.time_limit,
            runs_on="shardwright",  # the papers' own blocks: halves of halves, tiers
        )
    except InfeasibleTask as error:
        seconds = time.monotonic() - begin
        return _row(task, None, seconds, _reason(task, entrant, seconds), str(error)[:_MOST_TEXT]), None
    return row_of(made), made


def row_of(made: Plan) -> Row:
    """The row of a plan.

    Its columns: `tables`, `oversize` (number of tables that fit no device whole), `cut` (number of tables in several blocks), `step_ms`,
    `embedding_cost_ms` (the papers' cost), `compute_ms` (kernels of the device whose kernels take longest), `balance` (cost of the
    cheapest over the costliest device), `bound_ms` (proven by this search, else None), `search_s`, `failure` (one of `FAILURES`; None for
    a plan) and `why` (the message).
    """
    return _row(made.task, made, made.search_s or 0.0, None, None)


def _row(task: Task, made: Plan | None, seconds: float, failure: str | None, why: str | None) -> Row:
    cost = made.cost if made else None
    devices = [device.total_ms for device in cost.devices] if cost else []
    return {
        "tables": len(task.tables),
        "oversize": _oversize(task),
        "cut": _cut(made) if made else None,
        "step_ms": cost.step_ms if cost else None,
        "embedding_cost_ms": cost.embedding_cost_ms if cost else None,
        "compute_ms": max(device.compute_ms for device in cost.devices) if cost else None,
        "balance": min(devices) / max(devices) if devices and max(devices) > 0 else None,
        "bound_ms": made.bound_ms if made else None,
        "search_s": seconds,
        "failure": failure,
        "why": why,
    }


def _oversize(task: Task) -> int:
    largest = max(task.topology.memory_bytes)
    return sum(shard_bytes(task, Shard.whole(table, 0)) > largest for table in task.tables)


def _cut(made: Plan) -> int:
    blocks = Counter(shard.table for shard in made.shards)
    return sum(count > 1 for count in blocks.values())


def _reason(task: Task, entrant: Entrant, seconds: float) -> str:
    """Which of `FAILURES` applies."""
    if entrant.strategy.supports(task) is not None:
        return UNSUPPORTED
    if prove_infeasible(task) is not None:
        return NO_PLAN
    late = entrant.time_limit is not None and seconds >= entrant.time_limit
    return NO_TIME if late else NO_ROOM


@cache
def _model(device: str) -> CostModel:
    return cost_model_for(device)
