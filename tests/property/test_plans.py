"""Properties of any plan: its account, cost, diff and file."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import score, traffic
from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan
from shardwright.search.registry import strategy_named, strategy_names
from shardwright.sharding import Plan, memory_account, shard_bytes
from shardwright.sharding.checking import check_memory
from shardwright.sharding.runtimes import task_for
from shardwright.testing.model import SimpleCostModel
from tests.strategies import plans, tasks

MODEL = SimpleCostModel()


@st.composite
def tasks_with_plans(draw):
    task = draw(tasks(max_tables=4))
    return task, draw(plans(task))


@given(tasks_with_plans())
@settings(max_examples=60)
def test_the_account_is_the_sum_over_shards_and_holds_every_weight_and_replica(case):
    task, shards = case
    account = memory_account(task, shards)
    assert account.total.sum() == sum(shard_bytes(task, shard) * len(shard.devices) for shard in shards)
    weights = sum(t.weight_bytes for t in task.tables)
    copies = max(len(shard.devices) for shard in shards)
    narrow = {
        table.name for table in task.tables if table.dtype == "int8"
    }  # of which each block has its scale and bias
    scales = sum(8 * shard.row_count * len(shard.devices) for shard in shards if shard.table in narrow)
    assert weights <= account.weights.sum() <= weights * copies + scales


@given(tasks_with_plans())
@settings(max_examples=60)
def test_memory_is_refused_exactly_when_a_device_lacks_a_byte(case):
    task, shards = case
    used = memory_account(task, shards).total
    assume((used > 0).all())
    fits = replace(task, topology=replace(task.topology, memory=used.tolist()))
    check_memory(fits, shards)
    for rank in range(task.topology.devices):
        one_less = used.copy()
        one_less[rank] -= 1
        assume(one_less[rank] > 0)
        with pytest.raises(InvalidPlan, match=f"rank {rank} needs"):
            check_memory(replace(task, topology=replace(task.topology, memory=one_less.tolist())), shards)


@given(tasks_with_plans(), st.randoms())
@settings(max_examples=60)
def test_the_cost_does_not_depend_on_the_order_of_the_shards(case, random):
    task, shards = case
    shuffled = list(shards)
    random.shuffle(shuffled)
    one, other = score(task, shards, MODEL), score(task, shuffled, MODEL)
    assert one.step_ms == pytest.approx(other.step_ms)
    assert np.isfinite(one.step_ms)
    assert one.embedding_cost_ms <= one.step_ms


@given(tasks_with_plans())
@settings(max_examples=60)
def test_every_byte_sent_is_received(case):
    task, shards = case
    flows = traffic(task, shards)
    for flow in (flows.forward, flows.backward):
        np.testing.assert_allclose(flow.sent.sum(axis=1), flow.received.sum(axis=1), rtol=1e-9)
        assert (flow.sent >= 0).all()


@given(st.data())
@settings(max_examples=60)
def test_a_diff_moves_what_the_newer_plan_adds_on_each_device(data):
    task = data.draw(tasks(max_tables=3))
    older, newer = (Plan(task, data.draw(plans(task))) for _ in range(2))
    assert older.diff(older).moves == ()
    held = sum(shard.area * len(shard.devices) for shard in newer.shards)
    moved = sum(move.elements for move in older.diff(newer).moves)
    assert 0 <= moved <= held


@given(tasks_with_plans())
@settings(max_examples=40)
def test_a_plan_survives_its_file(case):
    task, shards = case
    roomy = replace(task, topology=replace(task.topology, memory=10**16))
    cost = score(roomy, shards, MODEL)
    plan = Plan(roomy, shards, "random", 3, MODEL.name, cost, bound_ms=0.5 * cost.step_ms, search_s=0.1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        assert Plan.load(path) == plan


@given(st.data(), st.sampled_from(strategy_names()))
@settings(max_examples=80)
def test_every_strategy_keeps_every_rule_on_any_task(data, name):
    """An exact tiling within memory and constraints, or InfeasibleTask: nothing else, whatever the task."""
    task = data.draw(tasks(max_tables=6, constrained=True))
    share = data.draw(st.floats(0.01, 3))
    need = sum(shard_bytes(task, sw.Shard.whole(table, 0)) for table in task.tables)
    memory = max(1, int(need * share / task.topology.devices))
    task = replace(task, topology=replace(task.topology, memory=memory))
    try:
        plan = sw.plan(task, strategy=name, cost_model=MODEL, runs_on="shardwright")
    except InfeasibleTask:
        return
    plan.check()
    limited = task_for(task, "shardwright")
    assert plan.shards == strategy_named(name).search(limited, MODEL, seed=0, deadline=None).shards


@given(tasks_with_plans(), st.data())
@settings(max_examples=60)
def test_a_damaged_plan_is_refused(case, data):
    """One shard dropped, doubled or shifted by a row or column is always noticed."""
    task, shards = case
    index = data.draw(st.integers(0, len(shards) - 1))
    shard, rest = shards[index], [*shards[:index], *shards[index + 1 :]]
    rows, columns = shard.rows, shard.columns
    damaged = data.draw(
        st.sampled_from(
            [
                rest,
                [*rest, shard, shard],
                [*rest, replace(shard, rows=(rows[0] + 1, rows[1] + 1))],
                [*rest, replace(shard, columns=(columns[0], columns[1] + 1))],
            ]
        )
    )
    with pytest.raises(InvalidInput):
        Plan(replace(task, topology=replace(task.topology, memory=10**16)), damaged).check()
