"""The main call: task → plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from numbers import Real
from pathlib import Path

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.infeasible import prove_infeasible
from shardwright.search.registry import best_strategy, strategy_named
from shardwright.search.strategy import Strategy
from shardwright.search.warm import WarmStrategy
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

_ROUNDING = 1e-9  # of a step


def plan(
    task: Task,
    *,
    strategy: str | Strategy = "auto",
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    start: Plan | None = None,
    move_cost: float = 0.0,
) -> Plan:
    """Find, check and score a plan.

    Args:
        task: what is placed, and where; never changed.
        strategy: a name of `strategy_names()`, "auto" for the best there is, or a strategy of your own.
        cost_model: a model, or the path of one made by `shardwright train`; by default the bundled one for the topology's device.
        seed: the same task, strategy and seed give the same plan.
        time_limit: seconds after which the search returns the best plan so far; None for no limit.
        start: a plan to start from, for this task or for one with other tables or devices; `start.diff(plan)` then says what moves.
        move_cost: ms per GB: a GB of `start` is moved to another device only if that shortens a step by more than this. About the ms
            that moving a GB takes, divided by the steps that the job still runs; 0 lets everything move, infinity only what must.

    Raises:
        InfeasibleTask: no plan keeps memory and constraints; the message says which rule binds and what would help.
        InvalidInput: the strategy is unknown or cannot start from a plan, the cost model cannot be read, or seed, time_limit or
            move_cost breaks a rule.
    """
    named = best_strategy(task) if strategy == "auto" else strategy
    chosen = strategy_named(named) if isinstance(named, str) else named
    _check_options(chosen, seed, time_limit, start, move_cost)
    model = resolve_cost_model(cost_model, task.topology.device)
    why_not = chosen.supports(task)
    if why_not is not None:
        raise InfeasibleTask(f"strategy '{chosen.name}' cannot plan this task: {why_not}")
    proof = prove_infeasible(task)
    if proof is not None:
        raise InfeasibleTask(proof)
    begin = time.monotonic()
    deadline = None if time_limit is None else begin + float(time_limit)
    if start is not None and isinstance(chosen, WarmStrategy):
        found = chosen.search_from(task, model, start=start, move_cost=move_cost, seed=seed, deadline=deadline)
    else:
        found = chosen.search(task, model, seed=seed, deadline=deadline)
    seconds = time.monotonic() - begin
    found.check()
    plan = scored(replace(found, search_s=seconds), model)
    step_ms = plan.cost.step_ms if plan.cost is not None else math.inf
    if plan.bound_ms is not None and step_ms < plan.bound_ms <= step_ms * (1 + _ROUNDING):
        plan = replace(plan, bound_ms=step_ms)  # both are sums of floats, in other orders
    return plan


def _check_options(chosen: Strategy, seed: int, time_limit: float | None, start: Plan | None, move_cost: float) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed is {seed!r}, must be a whole number of at least 0")
    if time_limit is not None and (
        isinstance(time_limit, bool) or not isinstance(time_limit, Real) or not 0 <= time_limit < math.inf
    ):
        raise InvalidInput(
            f"time_limit is {time_limit!r}, must be a finite number of seconds of at least 0, or None for no limit"
        )
    if isinstance(move_cost, bool) or not isinstance(move_cost, (int, float)) or not move_cost >= 0:
        raise InvalidInput(f"move_cost is {move_cost!r}, must be a number of ms per GB of at least 0")
    if start is None and move_cost:
        raise InvalidInput(
            f"move_cost is {move_cost}, but there is no plan to start from that could move; name one, or leave it out"
        )
    if start is not None and not isinstance(chosen, WarmStrategy):
        raise InvalidInput(
            f"strategy '{chosen.name}' cannot start from a plan; use one that can, such as certified, or leave the plan out"
        )
