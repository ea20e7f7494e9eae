"""The strategies: the tasks that they plan, their tiers, and the tables that they leave to others."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost.score import communication_ms, traffic
from shardwright.errors import InfeasibleTask
from shardwright.search import plan
from shardwright.search.flexshard import tier_plan
from shardwright.search.flexshard.dealing import Level, bytes_of, deals
from shardwright.search.registry import strategy_named, strategy_names
from shardwright.sharding import Plan, memory_account, shard_work
from shardwright.sharding.memory import gradient_bytes
from shardwright.task import AccessProfile, Constraints, Exchange, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import tables
from tests.unit.search.flexshard.made import fits, sequences, task_of, with_room

MODEL = SimpleCostModel()
FLEXSHARD = strategy_named("flexshard")


def mixed(memory="10 GB", **constraints):
    task = task_of(0.9, 1.2, memory=memory)
    pooled = [table for table in tables(8, seed=3) if table.pooled]
    return replace(task, tables=[*pooled, *task.tables], constraints=Constraints(**constraints))


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


def test_pooled_tables_leave_room_for_tiers():
    """The pooled tables fill a third of the memory; the rest of the fullest device still holds replicas."""
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
def test_a_model_of_other_bytes_is_unsupported_and_auto_asks_the_others(exchange):
    task = replace(mixed(), exchange=exchange)
    for name in ("certified", "neuroshard", "dreamshard+", "autoshard", "dreamshard", "rnn"):
        assert "use flexshard" in strategy_named(name).supports(task)
    plan, *others = (sw.plan(task, strategy=name, cost_model=MODEL) for name in ("auto", "flexshard", "row_wise"))
    assert plan.cost.step_ms <= min(other.cost.step_ms for other in others)


def test_auto_keeps_tiers_if_faster_and_one_bound_serves_all():
    from shardwright.cli.compare import plan_with_each

    task = with_room(task_of(1.2, batch=32_768), 3.0)
    attempts = plan_with_each(
        task, ["certified", "flexshard", "two_tiers", "auto"], MODEL, lambda *_: None, runs_on="shardwright"
    )
    blocks, *tiers, auto = (attempt.plan for attempt in attempts)
    assert auto.strategy in ("flexshard", "two_tiers")
    assert auto.cost.step_ms == min(plan.cost.step_ms for plan in tiers) < blocks.cost.step_ms
    assert len({(plan.bound_ms, plan.bound_scope) for plan in (blocks, *tiers, auto)}) == 1
    assert auto.bound_scope == "links"  # this cost model bounds no kernels of tiers
    assert auto.gap is blocks.gap is None  # kernels would be most of it
    assert 0 < auto.bound_ms < auto.cost.step_ms


def test_a_plan_for_torchrec_has_no_tiers_and_a_bound_that_leaves_them_out():
    task = with_room(task_of(1.2, batch=32_768), 3.0)
    plan = sw.plan(task, cost_model=MODEL, runs_on="torchrec")
    assert not plan.tiered
    assert plan.runs_on == ("shardwright", "torchrec")
    assert plan.bound_scope == "torchrec"
    assert plan.task == task


def test_only_flexshard_is_listed():
    assert "flexshard" in strategy_names()
    assert not {"two_tiers", "row_wise", "table_wise"} & set(strategy_names())


def test_the_plan_is_the_tier_plan():
    task = with_room(task_of(0.9, 1.1), 1.3)
    plan, tiers = FLEXSHARD.search(task, MODEL, seed=3, deadline=None), tier_plan(task)
    assert plan.shards == tiers.shards
    assert plan.bound_ms == tiers.plans_bound_ms <= tiers.bound_ms
    assert plan.seed == 3


def test_one_device_holds_everything():
    task = task_of(1.0, hosts=1, near=1)
    plan = sw.plan(task, strategy="flexshard", cost_model=MODEL)
    assert [shard.devices for shard in plan.shards] == [(0,)]
    assert plan.bound_ms is None


EXCHANGES = [
    Exchange(),
    Exchange("none", "cheaper"),
    Exchange("device", "touched"),
    Exchange("device", "cheaper"),
    Exchange("host", "cheaper"),
]


def best_of_all(task, ends):
    """The least communication of any tiers whose boundaries are among `ends`."""
    every = [Level(1.0, np.arange(task.topology.devices))]
    pairs = [(hot, warm) for hot, warm in itertools.product(ends, ends) if hot <= warm]
    best = np.inf
    for chosen in itertools.product(pairs, repeat=len(task.tables)):
        dealt = list(deals(task, task.tables, np.array(chosen), every))
        if (sum(bytes_of(task, dealt)) <= np.array(task.topology.memory_bytes)).all():
            forward, backward = communication_ms(task, [shard for deal in dealt for shard in deal.shards()])
            best = min(best, forward.max() + backward.max())
    return best


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: f"{one.deduplicate}-{one.replica_gradients}")
def test_no_pair_of_boundaries_is_better(exchange):
    task = with_room(task_of(0.8, 1.2, exchange=exchange, rows=200_000), 1.3)
    tiers = tier_plan(task)
    best = best_of_all(task, [0, 200, 1000, 4000, 20_000, 40_000, 200_000])
    assert tiers.bound_ms <= best * (1 + 1e-9)
    assert tiers.communication_ms <= best * 1.01
    assert tiers.gap < 0.03
    assert fits(task, tiers.shards)


def test_the_gap_is_small_if_rows_are_small():
    task = with_room(task_of(0.9, 1.1, 1.2, rows=1_000_000, batch=32_768), 1.25)
    assert tier_plan(task).gap < 0.005


@pytest.mark.parametrize(
    "cut", [[(0, 0), (0, 0)], [(3, 50), (0, 7)], [(50_000, 50_000), (1, 49_999)], [(5, 5), (49_998, 50_000)]]
)
def test_bytes_are_counted_as_in_the_account(cut):
    task = task_of(0.8, 1.2)
    levels = [Level(0.7, np.arange(8)), Level(1.0, np.array([1, 2, 5]))]
    dealt = list(deals(task, task.tables, np.array(cut), levels))
    shards = [shard for deal in dealt for shard in deal.shards()]
    account = memory_account(task, shards)
    rows, buffers = bytes_of(task, dealt)
    np.testing.assert_array_equal(rows + buffers, account.total)
    gradients = np.zeros(8, dtype=np.int64)  # of replicas: as long as their rows
    for shard in shards:
        gradients[list(shard.devices)] += gradient_bytes(task, shard_work(task, shard), len(shard.devices))
    np.testing.assert_array_equal(rows, account.weights + account.optimizer + gradients)
    Plan(task, shards).check()


def test_larger_blocks_go_round():
    """Twenty tables of a row more than there are devices: no device has the larger block of more than three."""
    task = replace(
        task_of(1.0),
        tables=[replace(table, name=f"s{index}") for index, table in enumerate(sequences(*[0.5] * 20, rows=9))],
    )
    shards = tier_plan(task, tiers=("cold",)).shards
    larger = [shard.devices[0] for shard in shards if shard.row_count == 2]
    assert np.bincount(larger, minlength=8).max() == 3


@pytest.mark.parametrize(("hosts", "near"), [(1, 8), (8, 1)])
def test_where_a_copy_on_every_host_is_no_tier_of_its_own_there_is_none(hosts, near):
    """On one host, or with one device on each."""
    tiers = tier_plan(with_room(task_of(1.0, 1.2, hosts=hosts, near=near), 1.5))
    assert all(hot == warm > 0 for hot, warm in tiers.boundaries.values())


def test_slow_links_between_hosts_want_more_rows_on_every_host():
    """If these links are as fast as those inside a host, more rows lie on every device instead."""
    slow, same = (tier_plan(with_room(task_of(1.1, fast=fast), 1.3)) for fast in (20.0, 1.0))
    assert slow.boundaries["s0"][1] > same.boundaries["s0"][1]
    assert slow.boundaries["s0"][0] < same.boundaries["s0"][0]


def test_more_memory_is_never_worse_and_the_bound_follows():
    plans = [tier_plan(with_room(task_of(0.9, 1.2), factor)) for factor in (1.0, 1.1, 1.25, 1.5, 2.0)]
    for less, more in itertools.pairwise(plans):
        assert more.communication_ms <= less.communication_ms * (1 + 1e-3)  # whole rows
        assert more.bound_ms <= less.bound_ms * (1 + 1e-6)


def test_without_room_every_row_is_held_once_or_there_is_no_plan():
    task = task_of(1.0, 1.2)
    cold = tier_plan(task, tiers=("cold",)).shards
    exactly = replace(task, topology=replace(task.topology, memory=int(memory_account(task, cold).total.max())))
    tiers = tier_plan(exactly)
    assert set(tiers.boundaries.values()) == {(0, 0)}
    less = replace(task, topology=replace(task.topology, memory=exactly.topology.memory_bytes[0] - 100))
    with pytest.raises(InfeasibleTask, match="lacks 100 B for its share of the sequence tables"):
        tier_plan(less)


def test_devices_of_unequal_memory_hold_what_they_can():
    roomy = with_room(task_of(0.9, 1.2, rows=200_000), 1.0)
    each = roomy.topology.memory_bytes[0]
    memory = [int(each * factor) for factor in (0.97, 1.2, 0.96, 1.5, 1.0, 1.0, 1.2, 1.3)]
    task = replace(roomy, topology=replace(roomy.topology, memory=memory))
    tiers = tier_plan(task)
    Plan(task, tiers.shards).check()
    cold = tier_plan(roomy, tiers=("cold",))
    assert tiers.communication_ms < 0.6 * cold.communication_ms
    assert tiers.gap > 0


def test_two_tiers_leave_the_warm_one_out_and_are_worse_over_slow_links():
    task = with_room(task_of(1.1), 1.3)
    two, three = tier_plan(task, tiers=("cold", "hot")), tier_plan(task)
    assert all(hot == warm for hot, warm in two.boundaries.values())
    assert three.communication_ms < two.communication_ms
    assert traffic(task, three.shards).forward.sent[1].sum() < traffic(task, two.shards).forward.sent[1].sum()


@pytest.mark.parametrize("spare", [1.01, 1.02, 1.03, 1.05])
def test_a_third_tier_is_never_worse_than_two_in_tight_memory(spare):
    rows = 2_500  # few: buffers of a tier take as much as its rows
    tables = [Table(f"t{i}", rows, 32, 50.0, pooled=False, access=AccessProfile.zipf(rows, 1.2)) for i in range(20)]
    task = Task(tables, Topology(2, 2, "cpu", "1 GB", 1e9, 1.25e7, 0.1, 0.5), 256)
    held = plan(task, strategy="row_wise").memory
    memory = int((spare * (held.weights + held.optimizer) + held.buffers).max())
    task = replace(task, topology=replace(task.topology, memory=memory))
    two = tier_plan(task, tiers=("cold", "hot"))
    assert tier_plan(task).communication_ms <= two.communication_ms * (1 + 1e-9)


def test_traffic_of_others_is_taken_into_account():
    """If other tables fill the links inside hosts, the same memory goes to rows that spare these links."""
    from shardwright.sharding import Shard

    task = with_room(task_of(1.1), 1.3)
    busy = sequences(0.0, rows=2000, pooling=400.0)[0]
    with_others = replace(
        task, tables=[*task.tables, replace(busy, name="busy")], topology=replace(task.topology, memory="10 GB")
    )
    near = [Shard("busy", (500 * i, 500 * i + 500), (0, 16), (i, 4 + i)) for i in range(4)]  # a copy on each host
    tiers = tier_plan(with_others, others=near)
    assert set(tiers.boundaries) == {"s0"}
    assert {shard.table for shard in tiers.shards} == {"s0", "busy"}
