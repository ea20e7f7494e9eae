"""Review a plan: its step, the best step found, and the proven bound, all by one cost model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask
from shardwright.search.solve import check_time_limit
from shardwright.search.solve import plan as find_plan
from shardwright.search.strategy import Strategy
from shardwright.sharding.diff import PlanDiff
from shardwright.sharding.plan import Plan
from shardwright.sharding.relabel import relabelled
from shardwright.sharding.runtimes import RunsOn, Runtime, other_runtime, preferred_runtimes
from shardwright.task.task import Task
from shardwright.task.topology import Collectives

_LEAST_GAIN = 1e-6  # of a step: less is rounding
_HERE = 0.6  # share of the time limit for the plan's own runtime; the rest is the other one's
_COMPARISON = 25  # times a difference of two plans: after a search, its plan is priced, renumbered, and compared
_WORTH = 0.3  # least share of the time limit for the other runtime
_START = 2  # times a comparison: time to the first plan of a large task, so the least time for the other runtime


@dataclass(frozen=True)
class Review:
    """A plan under review, and the best plan found.

    Attributes:
        plan: the plan under review, scored.
        better: the best plan found; the plan itself if none is better.
        bound_ms: lower bound on the step of the plans that `better.bound_scope` names. None without a proof, or if the plan under review
            takes less because the bound does not cover plans of its kind.
        elsewhere: the best plan found for the other runtime; None if there is none, or if no time was left to look.
        looked_elsewhere: whether the other runtime was searched.
    """

    plan: Plan
    better: Plan
    bound_ms: float | None
    elsewhere: Plan | None = None
    looked_elsewhere: bool = True

    @property
    def step_ms(self) -> float:
        """Predicted step of the plan under review."""
        assert self.plan.cost is not None
        return self.plan.cost.step_ms

    @property
    def better_ms(self) -> float:
        """Predicted step of the best plan found."""
        assert self.better.cost is not None
        return self.better.cost.step_ms

    @property
    def gain(self) -> float:
        """Share of the step under review that the best plan saves."""
        return 1 - self.better_ms / self.step_ms if self.step_ms else 0.0

    @property
    def gap(self) -> float | None:
        """How far the plan under review is, at most, from the best possible one; None as for `Plan.gap`."""
        return replace(self.plan, bound_ms=self.bound_ms, bound_scope=self.better.bound_scope).gap

    @cached_property
    def diff(self) -> PlanDiff:
        """The bytes that devices must fetch to go from the plan to the better one."""
        return self.plan.diff(self.better)

    def sentence(self) -> str:
        """The review in one line; `better.bound_scope` names the plans that the bound holds for."""

        def less(ms: float) -> str:
            return f"{ms:.3f} ms ({1 - ms / self.step_ms if self.step_ms else 0.0:.1%} less)"

        better = "no better one was found" if self.better is self.plan else f"the best one found {less(self.better_ms)}"
        bound = ""
        if self.bound_ms is not None:
            bound = f"; the proven bound is {f'{self.bound_ms:.3f} ms' if self.gap is None else less(self.bound_ms)}"
        return f"your plan takes {self.step_ms:.3f} ms a step; {better}{bound}"


def review(
    given: Plan,
    *,
    strategy: str | Strategy = "auto",
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    runs_on: RunsOn = "auto",
    move_cost: float | None = None,
    most_moved: int | None = None,
) -> Review:
    """Look for a better plan than a given one.

    Args:
        given: a plan, by any planner.
        strategy: finds the better plan.
        cost_model: prices both plans; by default as for `plan`.
        seed: of the search.
        time_limit: of the searches for both runtimes and of comparing the plans, together, in seconds.
        runs_on: the runtime of the better plan; "auto" for that of the given one.
        move_cost: ms of step time that moving a GB counts for; the better plan then starts from the given one. None to plan anew.
        most_moved: bytes that the better plan may move from the given one; None for any. The other runtime's plan would move nearly all,
            so it is not searched.

    Raises:
        InvalidPlan: the given plan is no valid plan of its task.
        InfeasibleTask: no plan was found for the runtime.
        InvalidInput: an option breaks a rule.
    """
    begin = time.monotonic()
    check_time_limit(time_limit)
    given.check()
    model = for_task(resolve_cost_model(cost_model, given.task), given.task)
    after = _comparison_s(given) if time_limit is not None else 0.0
    deadline = math.inf if time_limit is None else begin + time_limit - after
    searching = max(0.0, deadline - time.monotonic())
    both = most_moved is None and searching * (1 - _HERE) >= after * _START
    candidate = find_plan(
        given.task,
        strategy=strategy,
        cost_model=model,
        seed=seed,
        time_limit=None if time_limit is None else searching * (_HERE if both else 1.0),
        runs_on=preferred_runtimes(given.task, runs_on, given)[0],
        start=None if move_cost is None and most_moved is None else given,
        move_cost=move_cost or 0.0,
        most_moved=most_moved,
    )
    left = None if time_limit is None else max(0.0, deadline - time.monotonic())
    if not both or (left is not None and left < searching * _WORTH):
        return replace(compared(given, candidate, model), looked_elsewhere=False)
    elsewhere = plan_elsewhere(candidate, strategy=strategy, cost_model=model, seed=seed, time_limit=left)
    return replace(compared(given, candidate, model), elsewhere=elsewhere)


def _comparison_s(given: Plan) -> float:
    """Seconds that it takes to compare a plan with another one: several times those of one difference of plans."""
    begin = time.monotonic()
    given.diff(given)
    return _COMPARISON * (time.monotonic() - begin)


def plan_elsewhere(
    plan: Plan,
    *,
    cost_model: CostModel,
    strategy: str | Strategy = "auto",
    seed: int = 0,
    time_limit: float | None = None,
) -> Plan | None:
    """Plan the task of a plan for the runtime that the plan was not made for, in that runtime's exchange if it was measured.

    Returns:
        The other runtime's plan, or `plan` if that runs there too and is no longer; None if the other runtime has no plan.
    """
    runtime = other_runtime(plan)
    task = _in_exchange_of(plan.task, runtime)
    try:
        elsewhere = find_plan(
            task, strategy=strategy, cost_model=cost_model, seed=seed, time_limit=time_limit, runs_on=runtime
        )
    except InfeasibleTask:
        return None
    if runtime not in plan.runs_on:
        return elsewhere
    return shorter(
        plan if task is plan.task else scored(replace(plan, task=task, bound_ms=None), cost_model), elsewhere
    )


def _in_exchange_of(task: Task, runtime: Runtime) -> Task:
    """The task with a runtime's collectives; those of `shardwright.runtime` only if the topology's links hold them."""
    links = task.topology.links
    measured = links is not None and any(links.exchange)
    collectives: Collectives = "shared" if runtime == "shardwright" and measured else "by_type"
    if task.exchange.collectives == collectives:
        return task
    return replace(task, exchange=replace(task.exchange, collectives=collectives))


def elsewhere_line(plan: Plan, elsewhere: Plan | None) -> str:
    """The step that the other runtime would reach, in one line.

    Args:
        plan: the best plan of one runtime, scored.
        elsewhere: the best plan of the other one, scored; None if it has none.
    """
    runtime = other_runtime(plan)
    if elsewhere is None:
        return f"no plan with --runs-on {runtime}"
    assert plan.cost is not None and elsewhere.cost is not None  # noqa: PT018
    ratio = elsewhere.cost.step_ms / plan.cost.step_ms if plan.cost.step_ms else 1.0
    beside = f"{abs(1 - ratio):.0%} {'less' if ratio < 1 else 'more'}" if abs(1 - ratio) >= 0.005 else "as long"
    collectives = elsewhere.task.exchange.collectives
    also = "" if collectives == plan.task.exchange.collectives else f" and exchange: {{collectives: {collectives}}}"
    return f"the best plan found with --runs-on {runtime}{also} takes {elsewhere.cost.step_ms:.3f} ms, {beside}"


def compared(given: Plan, other: Plan, model: CostModel) -> Review:
    """Compare a plan with one that a search found; the search's cost model prices both.

    The found plan's devices are renumbered, so that few bytes move.
    """
    ours, other = scored(given, model), with_stated_bound(scored(relabelled(other, given), model), given)
    assert ours.cost is not None
    better = shorter(ours, other)
    bound_ms = other.bound_ms if other.bound_ms is not None and other.bound_ms <= ours.cost.step_ms else None
    if better is ours and bound_ms is not None:
        ours = better = replace(ours, bound_ms=bound_ms, bound_scope=other.bound_scope)
    return Review(ours, better, bound_ms)


def with_stated_bound(plan: Plan, given: Plan | None) -> Plan:
    """A scored plan with the bound of another plan of its task, if that is higher, and by the same cost model over the same plans.

    So a short search does not lose the proof of a longer one.
    """
    if given is None or given.bound_ms is None or plan.bound_ms is None or plan.cost is None:
        return plan
    if not plan.bound_ms < given.bound_ms <= plan.cost.step_ms:
        return plan
    same = (given.cost_model, given.bound_scope, given.task) == (plan.cost_model, plan.bound_scope, plan.task)
    return replace(plan, bound_ms=given.bound_ms) if same else plan


def shorter(kept: Plan, candidate: Plan) -> Plan:
    """The found plan if its step is shorter than that of the kept one, by more than rounding; else the kept one. Both are scored."""
    assert kept.cost is not None and candidate.cost is not None  # noqa: PT018
    return candidate if candidate.cost.step_ms < kept.cost.step_ms * (1 - _LEAST_GAIN) else kept
