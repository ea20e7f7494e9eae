"""The main call: task → plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan
from shardwright.search.auto import Auto
from shardwright.search.balance import Balanced, balanced, least_moved, most_gained
from shardwright.search.bound import lower_bound
from shardwright.search.certified import Certified
from shardwright.search.flexshard.bound import plans_bound
from shardwright.search.flexshard.strategy import FlexShard, tiered_tables
from shardwright.search.infeasible import prove_infeasible
from shardwright.search.no_way import no_way
from shardwright.search.registry import strategy_of
from shardwright.search.strategy import ROUNDING, Strategy, Told, WarmStrategy, watched
from shardwright.sharding.costs import BoundScope
from shardwright.sharding.plan import Plan
from shardwright.sharding.relabel import relabelled
from shardwright.sharding.runtimes import RunsOn, Runtime, on_their_sides, preferred_runtimes, task_for
from shardwright.task.quantities import checked_number
from shardwright.task.task import Task

_FIRST = 0.5  # share of the time for the best step, if memory is balanced
_WITHOUT_END = 2**31  # rounds of kicks: only the gap or the time limit ends the search
_OF_TORCHREC: dict[BoundScope, BoundScope] = {"blocks": "torchrec", "wide": "torchrec_wide"}
_SIDES = (
    "; tables of the plan to start from keep their replicas, and others get none, since TorchRec would load no optimizer state: "
    "cross_replicas (--cross-replicas) lifts this"
)
_OTHER_RUNTIME = "; the task itself can be planned, but not for this runtime: choose another runs_on"


class _SidesKept(InfeasibleTask):
    """A plan exists only if tables gain or lose replicas; planning for another runtime would not help."""


def plan(
    task: Task,
    *,
    strategy: str | Strategy = "auto",
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    gap: float | None = None,
    runs_on: RunsOn | None = "auto",
    start: Plan | None = None,
    move_cost: float = 0.0,
    cross_replicas: bool = False,
    balance_memory: float | None = None,
    least_moves: float | None = None,
    most_moved: int | None = None,
    progress: Told | None = None,
) -> Plan:
    """Find, check and score a plan.

    Args:
        task: the tables, and the devices to place them on; never changed.
        strategy: a name of `strategy_names()`, "auto" for the best of all that can be run in the time, or a strategy of your own.
        cost_model: a model, or the path of one made by `shardwright train`. By default the model that was calibrated on this machine,
            if its devices are the topology's, else the bundled one.
        seed: the same task, strategy and seed give the same plan.
        time_limit: seconds after which the search returns the best plan so far; None for no limit, 0 for the first plan found.
        gap: the search ends once its plan is proven to be at most this share longer than the best possible one; 0.002 by default. It also
            ends if a million changes bring no better plan. With both a gap and a time_limit, it goes on until the time limit instead.
        runs_on: the runtime of the plan. "torchrec": TorchRec for all tables. "shardwright": `shardwright.runtime`, which trains tables in
            any blocks, tiers included. "auto": TorchRec, unless the strategy, `start` or the constraints
            ask for tiers, or TorchRec has no plan. None: any blocks. `Plan.runs_on` names the runtimes of a plan.
        start: a plan to start from, for this task or for one with other tables or devices; `start.diff(plan)` then lists the moves.
        move_cost: ms per GB: a GB of `start` moves to another device only if that shortens a step by more than this. A fair value is the
            ms that moving a GB takes, divided by the steps that the job still runs. 0 allows any move, infinity only necessary ones.
        cross_replicas: for TorchRec, whether tables that are replicated in `start` may be cut or moved whole, and others replicated.
            TorchRec loads no optimizer state for such tables.
        balance_memory: 0.01 for the plan whose fullest device is the least full, among plans whose step is at most 1% longer than the
            best one's. Takes some eight searches.
        least_moves: 0.01 for the plan that moves the fewest bytes from `start`, among plans whose step is at most 1% longer than the best
            one's. Takes some eight searches, and finds the `move_cost` itself.
        most_moved: bytes of `start` that may move, over all devices, for the plan with the best step among those. Takes some eight
            searches, and finds the `move_cost` itself.
        progress: called in a search with the ms of the best step so far, and the bound as far as it is proven, or None.

    Raises:
        InfeasibleTask: no plan keeps memory and constraints; the message states the broken rule and a remedy.
        InvalidInput: the strategy is unknown, cannot start from a plan or proves no gap, the cost model cannot be read, or seed,
            time_limit, gap or move_cost breaks a rule.
    """
    for goal, name in ((least_moves, "least_moves"), (most_moved, "most_moved")):
        if goal is None:
            continue
        if start is None or move_cost or balance_memory is not None or None not in (least_moves, most_moved):
            raise InvalidInput(
                f"{name} needs a plan to start from (--from), and goes with no move_cost, balance_memory, least_moves or most_moved"
            )
        moving = _least_moved if name == "least_moves" else _most_moved
        return moving(
            task, goal, start, strategy=strategy, time_limit=time_limit,
            gap=gap, runs_on=runs_on, cost_model=cost_model, seed=seed, cross_replicas=cross_replicas,
        )  # fmt: skip
    if balance_memory is not None:
        return plan_balanced(
            task, balance_memory, strategy=strategy, time_limit=time_limit, gap=gap, runs_on=runs_on,
            cost_model=cost_model, seed=seed, start=start, move_cost=move_cost, cross_replicas=cross_replicas,
        ).plan  # fmt: skip
    begin = time.monotonic()
    chosen = strategy_of(strategy)
    _check_options(chosen, seed, time_limit, start, move_cost, cross_replicas)
    chosen = chosen if gap is None else _proving(chosen, gap, time_limit)
    model = for_task(resolve_cost_model(cost_model, task), task)
    deadline = None if time_limit is None else begin + float(time_limit)
    runtimes = preferred_runtimes(task, runs_on, start, tiers=isinstance(chosen, FlexShard))
    for runtime in runtimes:
        try:
            with watched(progress):
                best, limited = _planned(task, runtime, chosen, model, seed, deadline, start, move_cost, cross_replicas)
            break
        except _SidesKept:
            raise
        except (InfeasibleTask, InvalidPlan):
            if runtime == runtimes[-1]:
                raise
    if start is not None:
        best = relabelled(best, start)
    seconds = time.monotonic() - begin
    return _with_bound(scored(replace(best, task=task, search_s=seconds), model), limited, model)


def plan_balanced(
    task: Task,
    tolerance: float,
    *,
    strategy: str | Strategy = "auto",
    time_limit: float | None = None,
    gap: float | None = None,
    runs_on: RunsOn | None = "auto",
    **options: Any,
) -> Balanced:
    """Find the plan of least memory on its fullest device, within a tolerance of the best step.

    Args:
        task: as for `plan`.
        tolerance: share of the best step by which the plan's may be longer.
        strategy: as for `plan`.
        time_limit: seconds of all searches together.
        gap: as for `plan`, of the search for the best step.
        runs_on: as for `plan`.
        options: further options of `plan`.

    Raises:
        InfeasibleTask: as for `plan`.
        InvalidInput: as for `plan`, or the tolerance is no number of at least 0.
    """
    begin = time.monotonic()
    checked_number(tolerance, "balance_memory", zero=True)
    for other in ("least_moves", "most_moved"):
        if options.pop(other, None) is not None:
            raise InvalidInput(f"balance_memory and {other} are two goals; leave one of them out")
    check_time_limit(time_limit)
    chosen = strategy_of(strategy)
    first = None if time_limit is None else time_limit * _FIRST
    best = plan(task, strategy=chosen, time_limit=first, gap=gap, runs_on=runs_on, **options)
    runtime = preferred_runtimes(task, runs_on, best)[0]

    def search(of: Task, near: float | None, seconds: float | None) -> Plan:
        ends = near if isinstance(chosen, (Auto, Certified)) else None
        return plan(of, strategy=chosen, time_limit=seconds, gap=ends, runs_on=runtime, **options)

    return balanced(best, tolerance, search, runtime, None if time_limit is None else begin + time_limit)


def _least_moved(task: Task, tolerance: float, start: Plan, *, time_limit: float | None, **options: Any) -> Plan:
    begin = time.monotonic()
    checked_number(tolerance, "least_moves", zero=True)
    check_time_limit(time_limit)
    best = plan(task, start=start, time_limit=None if time_limit is None else time_limit * _FIRST, **options)
    options["runs_on"] = preferred_runtimes(task, options["runs_on"], best)[0]

    def search(price: float, seconds: float | None) -> Plan:
        return plan(task, start=start, move_cost=price, time_limit=seconds, **options)

    return least_moved(best, start, tolerance, search, None if time_limit is None else begin + time_limit)


def _most_moved(task: Task, most_bytes: float, start: Plan, *, time_limit: float | None, **options: Any) -> Plan:
    begin = time.monotonic()
    checked_number(most_bytes, "most_moved", zero=True)
    check_time_limit(time_limit)

    def search(price: float, seconds: float | None) -> Plan:
        return plan(task, start=start, move_cost=price, time_limit=seconds, **options)

    return most_gained(start, int(most_bytes), search, None if time_limit is None else begin + time_limit)


def _planned(
    task: Task, runtime: Runtime | None, chosen: Strategy, model: CostModel, seed: int, deadline: float | None,
    start: Plan | None, move_cost: float, cross_replicas: bool,
) -> tuple[Plan, Task]:  # fmt: skip
    """Return a strategy's plan for a runtime, and the task with the runtime's limits.

    Raises:
        InfeasibleTask: the runtime has no plan of the task, or the strategy finds none.
        InvalidPlan: the strategy's plan breaks a rule of the task or of the runtime.
    """
    limited = task_for(task, runtime)
    why_not = chosen.supports(limited)
    if why_not is not None:
        hint = _OTHER_RUNTIME if chosen.supports(task) is None else ""
        raise InfeasibleTask(f"strategy '{chosen.name}' cannot plan this task: {why_not}{hint}")
    proof = prove_infeasible(limited)
    if proof is not None:
        raise InfeasibleTask(proof + (_OTHER_RUNTIME if prove_infeasible(task) is None else ""))
    searched = limited
    if start is not None and runtime == "torchrec" and not cross_replicas:
        searched = on_their_sides(limited, start)
        proof = prove_infeasible(searched)
        if proof is not None:
            raise _SidesKept(proof + _SIDES)

    def search(of: Task) -> Plan:
        if start is not None and isinstance(chosen, WarmStrategy):
            return chosen.search_from(of, model, start=start, move_cost=move_cost, seed=seed, deadline=deadline)
        return chosen.search(of, model, seed=seed, deadline=deadline)

    try:
        best = _searched(search, chosen, searched, model, start)
    except InfeasibleTask as error:
        why = (
            no_way(task, runtime, model) if isinstance(chosen, (Auto, Certified)) else None
        )  # others say it themselves
        raise InfeasibleTask(why or str(error)) from error
    if searched is not limited and best.bound_ms is not None:  # the bound is over plans in which tables cross, too
        bound = lower_bound(limited, model)
        best = replace(best, bound_ms=bound.ms if bound is not None and bound.ms > 0 else None)
    best.check()
    return best, limited


def _searched(
    search: Callable[[Task], Plan], chosen: Strategy, task: Task, model: CostModel, start: Plan | None
) -> Plan:
    """Search with column blocks no narrower than the cost model knows; narrower ones are used only if no other plan is found.

    A start plan that has narrower ones may keep them.
    """
    narrowest = model.narrowest
    if narrowest is not None and (start is None or not _cut_below(start, narrowest)):
        limits = {table.name: task.constraints.of(table.name) for table in task.tables}
        wide = {
            name: replace(limit, min_columns=max(limit.min_columns or 0, narrowest)) for name, limit in limits.items()
        }
        wider = replace(task, constraints=replace(task.constraints, tables=wide))
        if chosen.supports(wider) is None and prove_infeasible(wider) is None:
            try:
                best = search(wider)
                scope = "wide" if best.bound_scope == "blocks" else best.bound_scope
                return replace(best, task=task, bound_scope=scope)
            except InfeasibleTask:
                pass
    return search(task)


def _cut_below(plan: Plan, columns: int) -> bool:
    tables = plan.task.table_by_name
    return any(shard.dim < min(columns, tables[shard.table].dim) for shard in plan.shards)


def _with_bound(plan: Plan, limited: Task, model: CostModel) -> Plan:
    """The plan with a bound over all plans that its runtime can run, tiers included if sequence tables may be tiered."""
    step_ms = plan.cost.step_ms if plan.cost is not None else math.inf
    bound_ms = plan.bound_ms
    if bound_ms is not None and limited.topology.devices > 1 and tiered_tables(limited):
        bound_ms, scope = plans_bound(limited, model)
        plan = replace(plan, bound_ms=bound_ms or None, bound_scope=scope)
    elif all(limited.constraints.of(table.name).as_torchrec for table in limited.tables):
        plan = replace(plan, bound_scope=_OF_TORCHREC.get(plan.bound_scope, plan.bound_scope))
    if bound_ms is not None and step_ms < bound_ms <= step_ms * (1 + ROUNDING):
        plan = replace(plan, bound_ms=step_ms)  # both are sums of the same floats, in other orders
    return plan


def _proving(chosen: Strategy, gap: float, time_limit: float | None) -> Strategy:
    """The strategy, set to search until a gap is proven.

    Raises:
        InvalidInput: the gap breaks a rule, or the strategy proves none.
    """
    if isinstance(gap, bool) or not isinstance(gap, Real) or not 0 <= gap < math.inf:
        raise InvalidInput(f"gap is {gap!r}, must be a finite number of at least 0, such as 0.01 for 1%")
    if not isinstance(chosen, (Auto, Certified)):
        raise InvalidInput(
            f"strategy '{chosen.name}' proves no gap while it searches; use auto or certified, or leave gap out"
        )
    return replace(chosen, tolerance=float(gap), patience=chosen.patience if time_limit is None else _WITHOUT_END)


def _check_options(
    chosen: Strategy,
    seed: int,
    time_limit: float | None,
    start: Plan | None,
    move_cost: float,
    cross_replicas: bool,
) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidInput(f"seed is {seed!r}, must be a whole number of at least 0")
    check_time_limit(time_limit)
    if start is None and cross_replicas:
        raise InvalidInput("cross_replicas is given, but no plan to start from; name one (--from), or leave it out")
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


def check_time_limit(time_limit: float | None) -> None:
    """Check the time limit of a search.

    Raises:
        InvalidInput: the limit is no finite number of seconds of at least 0.
    """
    if time_limit is not None and (
        isinstance(time_limit, bool) or not isinstance(time_limit, Real) or not 0 <= time_limit < math.inf
    ):
        raise InvalidInput(
            f"time_limit is {time_limit!r}, must be a finite number of seconds of at least 0, or None for no limit"
        )
