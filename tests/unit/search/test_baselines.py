"""One sharding type for all tables: each plan is of its type, balanced, and within memory and constraints."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost.score import communication_ms
from shardwright.errors import InfeasibleTask
from shardwright.search.baselines import KINDS, place_uniformly
from shardwright.search.registry import strategy_named
from shardwright.sharding import Plan, memory_account
from shardwright.task import Constraints, Exchange, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from tests.unit.search.flexshard.made import sequences

TOPOLOGY = Topology(2, 4, memory="1 GB")
TASK = Task([*sequences(*[1.0] * 6, rows=4000), *(sw.Table(f"p{i}", 3000, 32, 5.0) for i in range(10))], TOPOLOGY, 2048)


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_is_of_the_type_and_devices_are_balanced(kind):
    many = replace(TASK, tables=[*sequences(*[1.0] * 20, rows=4000), *TASK.tables[6:]])
    plan = sw.plan(many, strategy=kind, cost_model=SimpleCostModel(), runs_on=None)
    assert {plan.sharding_type(table.name) for table in many.tables} == {kind}
    looked_up = plan.memory.buffers
    assert looked_up.max() <= 1.25 * looked_up.mean()


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchange_does_not_matter_to_them(kind):
    other = replace(TASK, exchange=Exchange("host", "cheaper"))
    strategy = strategy_named(kind)
    assert strategy.supports(other) is None
    assert (
        strategy.search(other, None, seed=0, deadline=None).shards
        == strategy.search(TASK, None, seed=0, deadline=None).shards
    )


def test_rows_of_few_tables_lie_on_all_hosts():
    small = replace(TASK, tables=[replace(TASK.tables[0], rows=3, access=sw.AccessProfile.uniform(3))])
    shards = strategy_named("row_wise").search(small, None, seed=0, deadline=None).shards
    assert {TOPOLOGY.host_of(shard.devices[0]) for shard in shards} == {0, 1}


def test_small_tables_take_turns():
    tables = [replace(TASK.tables[0], name=f"t{i}", rows=4, access=sw.AccessProfile.uniform(4)) for i in range(12)]
    shards = strategy_named("row_wise").search(replace(TASK, tables=tables), None, seed=0, deadline=None).shards
    assert set(Counter(shard.devices[0] for shard in shards).values()) == {6}


def test_hosts_share_the_load_by_lookups():
    tables = [replace(table, pooling=10.0 * (index + 1)) for index, table in enumerate(TASK.tables[:6])]
    task = replace(TASK, tables=tables)
    forward, _ = communication_ms(
        task, strategy_named("table_row_wise").search(task, None, seed=0, deadline=None).shards
    )
    assert forward.max() < 1.15 * forward.mean()


def test_few_tables_are_cut_into_columns_for_all_devices():
    task = replace(TASK, tables=TASK.tables[:3])
    plan = Plan(task, strategy_named("column_wise").search(task, None, seed=0, deadline=None).shards)
    assert all(plan.by_device)
    assert all(shard.dim % 4 == 0 for shard in plan.shards)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_that_do_not_fit_are_named(kind):
    task = replace(TASK, topology=replace(TOPOLOGY, memory="1 MB"))
    with pytest.raises(InfeasibleTask, match=rf"does not fit as {kind}: its devices have at most .* left"):
        strategy_named(kind).search(task, None, seed=0, deadline=None)


def test_the_stated_room_is_that_of_the_devices_that_the_table_may_use():
    roomy = replace(TOPOLOGY, memory=["1 MB", *["1 GB"] * (TOPOLOGY.devices - 1)])
    pinned = Constraints({TASK.tables[0].name: TableConstraint(devices=(0,))})
    task = replace(TASK, topology=roomy, constraints=pinned)
    with pytest.raises(InfeasibleTask, match=r"its devices have at most 1\.0 MB left"):
        strategy_named("table_wise").search(task, None, seed=0, deadline=None)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_just_suffices_suffices(kind):
    strategy = strategy_named(kind)
    shards = strategy.search(TASK, None, seed=0, deadline=None).shards
    exactly = replace(TASK, topology=replace(TOPOLOGY, memory=memory_account(TASK, shards).total.tolist()))
    plan = strategy.search(exactly, None, seed=0, deadline=None)
    assert (memory_account(exactly, plan.shards).total <= np.array(exactly.topology.memory_bytes)).all()


def test_constraints_are_kept_or_named():
    def limited(**limits):
        return replace(TASK, constraints=Constraints({"s0": TableConstraint(**limits)}))

    assert "allows only row_wise, not table_wise" in strategy_named("table_wise").supports(
        limited(sharding_types=("row_wise",))
    )
    assert "pinned to 2 devices" in strategy_named("data_parallel").supports(limited(devices=(0, 1)))
    assert "pinned to one device of each host" in strategy_named("table_row_wise").supports(limited(devices=(0, 4)))
    together = replace(TASK, constraints=Constraints(colocate=(("s0", "s1"),)))
    assert "constraints colocate tables" in strategy_named("row_wise").supports(together)
    for kind in ("row_wise", "column_wise", "table_wise"):
        task = limited(devices=(1, 5, 6), max_shards=2)
        Plan(task, strategy_named(kind).search(task, None, seed=0, deadline=None).shards).check()
    with pytest.raises(InfeasibleTask, match="is sharded table_row_wise"):
        place_uniformly(limited(devices=(1, 2), sharding_types=("row_wise",)), {"s0": "row_wise"})


def test_tables_keep_their_kinds_in_a_mix():
    kinds = {"s0": "row_wise", "s1": "table_wise", "p0": "data_parallel"}
    shards = place_uniformly(TASK, kinds)
    assert Counter(shard.table for shard in shards) == {"s0": 8, "s1": 1, "p0": 1}


def test_a_sorted_heuristic_breaks_ties_by_size():
    """Four tables of one dim on two devices: the largest first, each on the device that holds the least."""
    tables = [sw.Table(f"t{rows}", rows, 16) for rows in (100, 400, 300, 350)]
    task = Task(tables, Topology(devices_per_host=2), batch_size=64)
    plan = sw.plan(task, strategy="dim", cost_model=SimpleCostModel())
    held = [{shard.table for shard in shards} for shards in plan.by_device]
    assert held == [{"t400", "t100"}, {"t350", "t300"}]
