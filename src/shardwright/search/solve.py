"""The main call: task → plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.registry import strategy_named
from shardwright.search.strategy import Strategy
from shardwright.search.support import check_total_memory
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task


def plan(
    task: Task,
    *,
    strategy: str | Strategy = "auto",
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
) -> Plan:
    """Find, check and score a plan.

    Args:
        task: what is placed, and where; never changed.
        strategy: a name of `strategy_names()`, "auto" for the best there is, or a strategy of your own.
        cost_model: a model, or the path of one made by `shardwright train`; by default the bundled one for the topology's device.
        seed: the same task, strategy and seed give the same plan.
        time_limit: seconds after which the search returns the best plan so far; None for no limit.

    Raises:
        InfeasibleTask: no plan keeps memory and constraints; the message says which rule binds and what would help.
        InvalidInput: the strategy is unknown, the cost model cannot be read, or seed or time_limit breaks a rule.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed is {seed!r}, must be a whole number of at least 0")
    if time_limit is not None and not (math.isfinite(time_limit) and time_limit >= 0):
        raise InvalidInput(f"time_limit is {time_limit}, must be a finite number of seconds of at least 0")
    chosen = strategy_named(strategy) if isinstance(strategy, str) else strategy
    model = resolve_cost_model(cost_model, task.topology.device)
    why_not = chosen.supports(task)
    if why_not is not None:
        raise InfeasibleTask(f"strategy '{chosen.name}' cannot plan this task: {why_not}")
    check_total_memory(task)
    start = time.monotonic()
    found = chosen.search(task, model, seed=seed, deadline=None if time_limit is None else start + time_limit)
    seconds = time.monotonic() - start
    found.check()
    return scored(replace(found, search_s=seconds), model)
