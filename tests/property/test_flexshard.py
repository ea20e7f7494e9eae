"""Any task with sequence tables: the plan keeps every rule, and no plan's communication is below the bound."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import score
from shardwright.cost.published import PublishedModel
from shardwright.cost.score import communication_ms
from shardwright.errors import InfeasibleTask
from shardwright.search.flexshard import tier_plan
from shardwright.search.flexshard.bound import TierRelaxation, communication_bound, plans_bound, rates_of, tier_bound
from shardwright.search.flexshard.dealing import Level, deals
from shardwright.search.registry import strategy_named
from shardwright.sharding import Plan, memory_account
from shardwright.sharding.runtimes import preferred_runtimes, task_for
from shardwright.task import Exchange
from shardwright.testing.model import SimpleCostModel
from tests.strategies import plans, tasks

MODEL = SimpleCostModel()
exchanges = st.builds(
    Exchange, st.sampled_from(["none", "device", "host"]), st.sampled_from(["whole", "touched", "cheaper"])
)


@st.composite
def sequence_tasks(draw, max_tables=3, constrained=False):
    """Tasks with at least one sequence table and any exchange."""
    task = draw(tasks(max_tables=max_tables, constrained=constrained))
    first, *others = task.tables
    return replace(task, tables=[replace(first, pooled=False), *others], exchange=draw(exchanges))


def with_memory(task, memory):
    return replace(task, topology=replace(task.topology, memory=np.maximum(memory, 1).astype(int).tolist()))


def communication(task, shards):
    return sum(float(ms.max()) for ms in communication_ms(task, shards))


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_no_plan_communicates_less_than_the_bound(data):
    """In as little memory as the plan needs: no more replicas can then be made than it has."""
    task = data.draw(sequence_tasks())
    shards = data.draw(plans(task))
    tight = with_memory(task, memory_account(task, shards).total)
    bound, _ = communication_bound(tight)
    assert bound <= communication(tight, shards) * (1 + 1e-6) + 1e-12
    assert communication_bound(task)[0] <= bound * (1 + 1e-3) + 1e-9  # more memory, a lower bound


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_no_plan_is_below_the_bound_on_kernels_and_links(data):
    """Any blocks and replicas, and tiers at any boundaries."""
    task = data.draw(sequence_tasks())
    if data.draw(st.booleans()):
        task = replace(task, tables=[replace(table, pooled=False) for table in task.tables])
        ends = [sorted(data.draw(st.tuples(*[st.integers(0, table.rows)] * 2))) for table in task.tables]
        everywhere = [Level(1.0, np.arange(task.topology.devices))]
        shards = [shard for deal in deals(task, task.tables, np.array(ends), everywhere) for shard in deal.shards()]
    else:
        shards = data.draw(plans(task))
    bound, scope = plans_bound(with_memory(task, memory_account(task, shards).total), PublishedModel("h100"))
    assert scope == "all"
    assert bound <= score(task, shards, PublishedModel("h100")).step_ms * (1 + 1e-6) + 1e-12


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_tiers_keep_every_rule_and_the_bound(data):
    task = data.draw(sequence_tasks())
    least = memory_account(task, data.draw(plans(task))).total
    tight = with_memory(task, least * data.draw(st.floats(0.5, 4)))
    try:
        found = tier_plan(tight, others=pooled_whole(tight))
    except InfeasibleTask:
        return
    plan = Plan(tight, found.shards)
    plan.check()
    assert found.communication_ms >= found.bound_ms * (1 - 1e-6)
    assert all(0 <= hot <= warm <= task.table_by_name[name].rows for name, (hot, warm) in found.boundaries.items())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_tiers_communicate_less_than_the_bound_of_tiers(data):
    """Any boundaries, in the least memory that they need, the same on all devices."""
    task = data.draw(sequence_tasks())
    task = replace(task, tables=[replace(table, pooled=False) for table in task.tables])
    ends = [sorted(data.draw(st.tuples(*[st.integers(0, table.rows)] * 2))) for table in task.tables]
    everywhere = [Level(1.0, np.arange(task.topology.devices))]
    shards = [shard for deal in deals(task, task.tables, np.array(ends), everywhere) for shard in deal.shards()]
    tight = with_memory(task, np.full(task.topology.devices, memory_account(task, shards).total.max()))
    memory = np.array(tight.topology.memory_bytes)
    bound = tier_bound(tight, memory, TierRelaxation(rates_of(tight, tight.tables)))
    assert bound <= communication(tight, shards) * (1 + 1e-6) + 1e-12


def pooled_whole(task):
    """Whole pooled tables on the devices in turn; `InfeasibleTask` if they do not fit."""
    shards = []
    for rank, table in enumerate(table for table in task.tables if table.pooled):
        shards.append(sw.Shard.whole(table, rank % task.topology.devices))
    used = memory_account(task, shards).total
    if (used > np.array(task.topology.memory_bytes)).any():
        raise InfeasibleTask("pooled tables do not fit")
    return shards


@given(
    st.data(),
    st.sampled_from(
        ["flexshard", "two_tiers", "row_wise", "table_row_wise", "column_wise", "table_wise", "data_parallel"]
    ),
)
@settings(max_examples=40, deadline=None)
def test_every_strategy_keeps_every_rule_or_raises(data, name):
    task = data.draw(sequence_tasks(constrained=True))
    need = sum(table.weight_bytes for table in task.tables) / task.topology.devices
    tight = with_memory(task, np.full(task.topology.devices, need * data.draw(st.floats(0.5, 20)) + 10**6))
    try:
        plan = sw.plan(tight, strategy=name, cost_model=MODEL)
    except InfeasibleTask:
        return
    plan.check()
    assert plan.bound_ms is None or plan.bound_ms <= plan.cost.step_ms * (1 + 1e-6)
    limited = [
        task_for(tight, runtime)
        for runtime in preferred_runtimes(tight, "auto", tiers="tier" in name or "flex" in name)
    ]
    assert plan.shards in [searched(name, task) for task in limited]


def searched(name, task):
    """Shards of a strategy; None if it finds no plan."""
    try:
        return strategy_named(name).search(task, MODEL, seed=0, deadline=None).shards
    except InfeasibleTask:
        return None


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_strategies_with_a_bound_keep_it_under_any_exchange(data):
    """Plans of "auto", by any strategy: a bound over all plans is below the step of any plan."""
    task = data.draw(sequence_tasks(max_tables=2))
    shards = data.draw(plans(task))
    task = with_memory(task, np.maximum(memory_account(task, shards).total, 10**9))
    assert strategy_named("auto").supports(task) is None
    try:
        plan = sw.plan(task, cost_model=MODEL, time_limit=1.0)
    except InfeasibleTask:
        return
    if plan.bound_scope != "blocks" and plan.bound_ms is not None:
        assert plan.bound_ms <= score(task, shards, MODEL).step_ms * (1 + 1e-6)
