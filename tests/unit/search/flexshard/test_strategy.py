"""The strategies as such: what they plan, with what, and what they leave to others."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.search.flexshard import tier_plan
from shardwright.search.registry import strategy_named, strategy_names
from shardwright.task import Constraints, Exchange, Table, TableConstraint
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import tables
from tests.unit.search.flexshard.made import task_of, with_room

MODEL = SimpleCostModel()
FLEXSHARD = strategy_named("flexshard")


def mixed(memory="10 GB", **constraints):
    task = task_of(0.9, 1.2, memory=memory)
    pooled = [table for table in tables(8, seed=3) if table.pooled]
    return replace(task, tables=[*pooled, *task.tables], constraints=Constraints(**constraints))


def test_recshard_conforms():
    check_strategy(strategy_named("recshard"))


def test_a_mixed_model_gets_one_plan():
    task = mixed("2 MB")
    with pytest.raises(InfeasibleTask):
        sw.plan(task, strategy="flexshard", cost_model=MODEL)
    plan = sw.plan(mixed("60 MB"), strategy="flexshard", cost_model=MODEL)
    plan.check()
    kinds = {table.name: plan.sharding_type(table.name) for table in plan.task.tables}
    assert kinds["s0"] == kinds["s1"] == "tiered"
    assert all(shard.row_order == "id" for shard in plan.shards if plan.task.table_by_name[shard.table].pooled)
    assert 0 < plan.bound_ms <= plan.cost.step_ms


def test_pooled_tables_leave_room_for_tiers_where_they_can():
    """The pooled tables fill a third of the memory; what is left on the fullest device still holds replicas."""
    pooled = [Table(f"p{i}", 40_000, 16, 2.0) for i in range(12)]
    sequences = with_room(task_of(1.1), 1.3)
    memory = sequences.topology.memory_bytes[0] + 12 * 40_000 * 16 * 4 // 8 * 2
    task = replace(sequences, tables=[*pooled, *sequences.tables], topology=replace(sequences.topology, memory=memory))
    plan = FLEXSHARD.search(task, MODEL, seed=0, deadline=None)
    replicated = [shard for shard in plan.shards if shard.table == "s0" and len(shard.devices) > 1]
    assert sum(shard.row_count for shard in replicated) > 1000


def test_pooled_tables_alone_are_for_certified():
    task = replace(mixed(), tables=[table for table in mixed().tables if table.pooled])
    assert "use strategy certified" in FLEXSHARD.supports(task)


@pytest.mark.parametrize("groups", ["colocate", "apart"])
def test_sequence_tables_tied_to_others_are_not_planned(groups):
    assert "'s0' is to be colocated" in FLEXSHARD.supports(mixed(**{groups: [("s0", "s1")]}))
    pooled = [table.name for table in mixed().tables if table.pooled]
    assert FLEXSHARD.supports(mixed(**{groups: [tuple(pooled[:2])]})) is None


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (TableConstraint(sharding_types=("row_wise",)), "row_wise"),
        (TableConstraint(sharding_types=("table_wise", "data_parallel")), "table_wise"),
        (TableConstraint(devices=(1, 6)), "row_wise"),
        (TableConstraint(max_shards=3), "row_wise"),
        (TableConstraint(sharding_types=("tiered",)), "tiered"),
        (TableConstraint(equal_rows=True), "row_wise"),
    ],
)
def test_a_table_that_may_not_be_tiered_takes_another_way(limits, kind):
    plan = sw.plan(mixed(tables={"s0": limits}), strategy="flexshard", cost_model=MODEL)
    plan.check()
    assert plan.sharding_type("s0") == kind
    assert plan.sharding_type("s1") == "tiered"


def test_a_table_without_any_way_is_named():
    only = TableConstraint(sharding_types=("grid",))
    assert "'s0' allows only grid" in FLEXSHARD.supports(mixed(tables={"s0": only}))


@pytest.mark.parametrize("exchange", [Exchange("device"), Exchange("none", "touched"), Exchange("host", "cheaper")])
def test_who_counts_other_bytes_says_so_and_auto_asks_the_others(exchange):
    task = replace(mixed(), exchange=exchange)
    for name in ("certified", "neuroshard", "dreamshard+", "autoshard", "dreamshard", "rnn"):
        assert "strategy flexshard" in strategy_named(name).supports(task)
    plan, *others = (sw.plan(task, strategy=name, cost_model=MODEL) for name in ("auto", "flexshard", "row_wise"))
    assert plan.cost.step_ms <= min(other.cost.step_ms for other in others)


def test_auto_keeps_tiers_where_they_are_faster_and_one_bound_is_for_all():
    from shardwright.cli.compare import plan_with_each

    task = with_room(task_of(1.2, batch=32_768), 3.0)
    attempts = plan_with_each(task, ["certified", "flexshard", "recshard", "auto"], MODEL, lambda *_: None)
    blocks, *tiers, auto = (attempt.plan for attempt in attempts)
    assert auto.strategy in ("flexshard", "recshard")
    assert auto.cost.step_ms == min(plan.cost.step_ms for plan in tiers) < blocks.cost.step_ms
    assert len({(plan.bound_ms, plan.bound_scope) for plan in (blocks, *tiers, auto)}) == 1
    assert auto.bound_scope == "links"  # this cost model bounds no kernels of tiers
    assert 0 < auto.gap < blocks.gap


def test_a_plan_for_torchrec_has_no_tiers_and_a_bound_that_leaves_them_out():
    task = with_room(task_of(1.2, batch=32_768), 3.0)
    plan = sw.plan(task, cost_model=MODEL, runs_on="torchrec")
    assert not plan.tiered
    assert plan.runs_on == ("shardwright", "torchrec")
    assert plan.bound_scope == "blocks"
    assert plan.task == task


def test_only_flexshard_is_listed():
    assert "flexshard" in strategy_names()
    assert not {"recshard", "row_wise", "table_wise"} & set(strategy_names())


def test_the_plan_is_the_tier_plan():
    task = with_room(task_of(0.9, 1.1), 1.3)
    plan, found = FLEXSHARD.search(task, MODEL, seed=3, deadline=None), tier_plan(task)
    assert plan.shards == found.shards
    assert plan.bound_ms == found.plans_bound_ms <= found.bound_ms
    assert plan.seed == 3


def test_recshard_has_no_warm_rows():
    plan = strategy_named("recshard").search(with_room(task_of(1.1), 1.3), MODEL, seed=0, deadline=None)
    assert {len(shard.devices) for shard in plan.shards} == {1, 8}


def test_one_device_holds_everything():
    task = task_of(1.0, hosts=1, near=1)
    plan = sw.plan(task, strategy="flexshard", cost_model=MODEL)
    assert [shard.devices for shard in plan.shards] == [(0,)]
    assert plan.bound_ms is None


def test_tiers_spend_less_than_two_tiers_and_those_less_than_row_blocks():
    task = with_room(task_of(1.2, 1.2, batch=65_536), 1.5)
    times = []
    for name in ("flexshard", "recshard", "row_wise"):
        cost = sw.plan(task, strategy=name, cost_model=MODEL).cost
        forward, backward = (
            max(getattr(device, f"{way}_communication_ms") for device in cost.devices)
            for way in ("forward", "backward")
        )
        times.append(forward + backward)
    assert times[0] < 0.8 * times[1]
    assert times[1] < 0.8 * times[2]
