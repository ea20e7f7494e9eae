"""The conformance suite: the rules that every strategy must keep, built-in or a user's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search.strategy import Strategy
from shardwright.sharding.checking import check_plan
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.files import task_to_dict
from shardwright.task.task import Task
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, impossible_task

SEED = 7


def check_strategy(strategy: Strategy, cost_model: CostModel | None = None) -> None:
    """Run the whole suite on a strategy.

    On each task that it supports, the strategy returns a plan or raises `InfeasibleTask`. The plan must be for that very task, tile every
    table exactly, and keep memory and constraints. The same seed must give the same plan, the inputs must stay unchanged, and the cost
    must stay the same if equal devices swap ranks. On a task that cannot be placed, the strategy must raise `InfeasibleTask`.

    Args:
        strategy: the strategy.
        cost_model: prices sets of shards; by default a small fixed model, so that the suite needs no trained one.

    Raises:
        AssertionError: a rule is broken; the message names the strategy, the task and the rule.
    """
    model = cost_model or SimpleCostModel()
    planned = [_check_task(strategy, model, what, task) for what, task in conformance_tasks().items()]
    if not any(planned):
        raise AssertionError(
            f"strategy '{strategy.name}' planned none of the {len(planned)} feasible tasks of the suite"
        )
    _check_impossible(strategy, model)


def _check_task(strategy: Strategy, model: CostModel, what: str, task: Task) -> bool:
    """Return whether the strategy planned the task; if it did, check all rules."""
    about = f"strategy '{strategy.name}' on {what}"
    if strategy.supports(task) is not None:
        return False
    before = task_to_dict(task)
    try:
        plan = strategy.search(task, model, seed=SEED, deadline=None)
    except InfeasibleTask:
        return False
    finally:
        if task_to_dict(task) != before:
            raise AssertionError(f"{about}: the task was changed; inputs must stay as they were")
    if plan.task != task:
        raise AssertionError(f"{about}: the plan is for another task; it must carry the task it was given")
    try:
        check_plan(task, plan.shards)
    except InvalidPlan as error:
        raise AssertionError(f"{about}: {error}") from error
    again = strategy.search(task, model, seed=SEED, deadline=None)
    if again.shards != plan.shards:
        raise AssertionError(f"{about}: two searches with the same seed gave different plans")
    _check_relabelling(about, plan, model)
    return True


def _check_relabelling(about: str, plan: Plan, model: CostModel) -> None:
    """Check that the step time stays the same if the devices of a host change ranks."""
    task = plan.task
    ranks = list(range(task.topology.devices))
    per_host = task.topology.devices_per_host
    relabelled = [per_host * (r // per_host) + (r + 1) % per_host for r in ranks]
    memory = [0] * len(ranks)
    for rank, new in enumerate(relabelled):
        memory[new] = task.topology.memory_bytes[rank]
    other = replace(task, topology=replace(task.topology, memory=memory), constraints=type(task.constraints)())
    shards = [_relabel(shard, relabelled) for shard in plan.shards]
    cost, expected = score(other, shards, model).step_ms, score(task, plan.shards, model).step_ms
    if not np.isclose(cost, expected, rtol=1e-9):
        raise AssertionError(f"{about}: the step takes {expected} ms, and {cost} ms with ranks swapped inside hosts")


def _relabel(shard: Shard, relabelled: list[int]) -> Shard:
    return replace(shard, devices=tuple(sorted(relabelled[rank] for rank in shard.devices)))


def _check_impossible(strategy: Strategy, model: CostModel) -> None:
    task = impossible_task()
    if strategy.supports(task) is not None:
        return
    try:
        plan = strategy.search(task, model, seed=SEED, deadline=None)
    except InfeasibleTask:
        return
    try:
        check_plan(task, plan.shards)
    except InvalidPlan as error:
        raise AssertionError(
            f"strategy '{strategy.name}' on a task that cannot be placed: must raise InfeasibleTask; {error}"
        ) from error
    raise AssertionError(f"strategy '{strategy.name}': a task that cannot be placed was placed; the checker has a hole")
