"""A task that is called infeasible has no plan: the tightest tasks with a plan are never called infeasible."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan
from shardwright.search.infeasible import prove_infeasible
from shardwright.search.infeasible.proof import fewest_bins, too_many
from shardwright.search.registry import strategy_named
from shardwright.sharding import Plan, memory_account, shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task import Constraints, TableConstraint, Task
from shardwright.testing.model import SimpleCostModel
from tests.strategies import plans, tasks, topologies

MODEL = SimpleCostModel()


@st.composite
def simple_plans(draw, task: Task) -> tuple[Shard, ...]:
    """Tables whole, in equal row or column blocks, or replicated: the plans that fill memory best."""
    devices, shards = task.topology.devices, []
    for table in task.tables:
        way = draw(st.sampled_from(["whole", "whole", "rows", "columns", "replicas"]))
        count = draw(st.integers(2, 5))
        ranks = draw(st.lists(st.integers(0, devices - 1), min_size=count, max_size=count))
        if way == "replicas":
            shards.append(Shard.whole(table, *set(ranks)))
        elif way == "rows" and table.rows >= count:
            edges = [i * table.rows // count for i in range(count + 1)]
            shards += [Shard(table.name, (edges[i], edges[i + 1]), (0, table.dim), (r,)) for i, r in enumerate(ranks)]
        elif way == "columns" and table.dim >= count:
            edges = [i * table.dim // count for i in range(count + 1)]
            shards += [Shard(table.name, (0, table.rows), (edges[i], edges[i + 1]), (r,)) for i, r in enumerate(ranks)]
        else:
            shards.append(Shard.whole(table, ranks[0]))
    return tuple(shards)


@st.composite
def tightest(draw) -> tuple[Task, Plan]:
    """A plan, and the task with the least memory and the strictest constraints that it answers, some of them dropped."""
    task = draw(tasks(max_tables=6, topology=topologies(max_hosts=2, max_devices_per_host=3)))
    shards = draw(st.one_of(plans(task), simple_plans(task)))
    plan = Plan(task, shards)
    used = memory_account(task, shards).total
    held = {t.name: tuple(sorted({r for s in plan.by_table[t.name] for r in s.devices})) for t in task.tables}
    keep = st.booleans()
    limits = {
        t.name: TableConstraint(
            (plan.sharding_type(t.name),) if draw(keep) else None,
            held[t.name] if draw(keep) else None,
            len(plan.by_table[t.name]) if draw(keep) else None,
        )
        for t in task.tables
    }
    pairs = list(combinations(held, 2))
    colocate = [pair for pair in pairs if held[pair[0]] == held[pair[1]] and draw(keep)]
    apart = [pair for pair in pairs if not set(held[pair[0]]) & set(held[pair[1]]) and draw(keep)]
    tight = replace(
        task,
        topology=replace(task.topology, memory=[max(1, int(size)) for size in used]),
        constraints=Constraints(limits, tuple(colocate), tuple(apart)),
    )
    return tight, replace(plan, task=tight)


@given(tightest())
@settings(max_examples=70)
def test_a_task_that_a_plan_answers_is_never_called_infeasible(case):
    task, plan = case
    plan.check()
    assert prove_infeasible(task) is None


@given(tightest())
@settings(max_examples=70)
def test_a_byte_less_on_a_full_task_of_one_device_is_proven(case):
    """All tables whole on the first device, and nothing else allowed: without slack, a byte less is too little."""
    task, _ = case
    whole = {t.name: TableConstraint(("table_wise",), (0,)) for t in task.tables}
    need = sum(shard_bytes(task, Shard.whole(t, 0)) for t in task.tables)
    memory = [need, *task.topology.memory_bytes[1:]]
    exact = replace(task, topology=replace(task.topology, memory=memory), constraints=Constraints(whole))
    assert prove_infeasible(exact) is None
    memory[0] -= 1
    assert prove_infeasible(replace(exact, topology=replace(exact.topology, memory=memory))) is not None


@given(st.data(), st.sampled_from(["size", "random", "greedy", "lookup"]))
@settings(max_examples=80)
def test_a_task_that_a_strategy_plans_is_never_called_infeasible(data, name):
    task = data.draw(tasks(max_tables=6, constrained=True))
    share = data.draw(st.floats(0.3, 2))
    need = sum(shard_bytes(task, Shard.whole(table, 0)) for table in task.tables)
    memory = max(1, int(need * share / task.topology.devices))
    task = replace(task, topology=replace(task.topology, memory=memory))
    try:
        plan = strategy_named(name).search(task, MODEL, seed=0, deadline=None)
        plan.check()
    except (InfeasibleTask, InvalidPlan):
        return
    assert prove_infeasible(task) is None


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.lists(st.integers(10, 40), min_size=1, max_size=3))
@settings(max_examples=70)
def test_packing_bounds_never_forbid_a_packing_that_exists(sizes, memory):
    sizes = sorted((min(size, max(memory)) for size in sizes), reverse=True)
    if _packs(tuple(sizes), tuple(memory)):
        assert too_many(sizes, memory) is None
        assert fewest_bins(sizes, memory) <= len(memory)


def _packs(sizes: tuple[int, ...], memory: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    first, rest = sizes[0], sizes[1:]
    return any(
        _packs(rest, (*memory[:bin], room - first, *memory[bin + 1 :]))
        for bin, room in enumerate(memory)
        if room >= first
    )


@given(st.data())
@settings(max_examples=40)
def test_a_proof_names_what_would_help(data):
    """Every refusal states the rule and, after a colon or semicolon, the remedy."""
    task = data.draw(tasks(max_tables=5, constrained=True))
    memory = data.draw(st.integers(1, 10**6))
    try:
        task = replace(task, topology=replace(task.topology, memory=memory))
    except InvalidInput:
        return
    reason = prove_infeasible(task)
    if reason is not None:
        assert any(word in reason for word in ("use ", "allow", "let ", "give", "split", "raise"))
        assert any(table.name in reason for table in task.tables) or "the tables need" in reason
        for strategy in ("size", "greedy"):
            try:
                sw.plan(task, strategy=strategy, cost_model=MODEL)
            except (InfeasibleTask, InvalidPlan):
                continue
            raise AssertionError(f"{strategy} planned a task that is called infeasible: {reason}")
