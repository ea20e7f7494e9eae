"""Boundaries against every pair of boundaries of small tables, and what memory and links make of them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.score import communication_ms, traffic
from shardwright.errors import InfeasibleTask
from shardwright.search import plan
from shardwright.search.flexshard import tier_plan
from shardwright.search.flexshard.dealing import Level, bytes_of, deals
from shardwright.sharding import Plan, memory_account, shard_work
from shardwright.sharding.memory import gradient_bytes
from shardwright.task import AccessProfile, Exchange, Table, Task, Topology
from tests.unit.search.flexshard.made import fits, sequences, task_of, with_room

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


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: f"{one.deduplicate}-{one.replica_gradients}")
def test_no_pair_of_boundaries_is_better(exchange):
    task = with_room(task_of(0.8, 1.2, exchange=exchange, rows=200_000), 1.3)
    found = tier_plan(task)
    best = best_of_all(task, [0, 200, 1000, 4000, 20_000, 40_000, 200_000])
    assert found.bound_ms <= best * (1 + 1e-9)
    assert found.communication_ms <= best * 1.01
    assert found.gap < 0.03
    assert fits(task, found.shards)


def test_the_gap_is_small_where_a_row_is_little():
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


def test_on_one_host_there_is_no_warm_tier():
    found = tier_plan(with_room(task_of(1.0, 1.2, hosts=1, near=8), 1.5))
    assert all(hot == warm > 0 for hot, warm in found.boundaries.values())


def test_with_one_device_a_host_a_copy_on_every_host_is_hot():
    found = tier_plan(with_room(task_of(1.0, 1.2, hosts=8, near=1), 1.5))
    assert all(hot == warm > 0 for hot, warm in found.boundaries.values())


def test_slow_links_between_hosts_want_more_rows_on_every_host():
    """And links as fast as inside a host more on every device."""
    slow, same = (tier_plan(with_room(task_of(1.1, fast=fast), 1.3)) for fast in (20.0, 1.0))
    assert slow.boundaries["s0"][1] > same.boundaries["s0"][1]
    assert slow.boundaries["s0"][0] < same.boundaries["s0"][0]


def test_more_memory_is_never_worse_and_the_bound_follows():
    found = [tier_plan(with_room(task_of(0.9, 1.2), factor)) for factor in (1.0, 1.1, 1.25, 1.5, 2.0)]
    for less, more in itertools.pairwise(found):
        assert more.communication_ms <= less.communication_ms * (1 + 1e-3)  # whole rows
        assert more.bound_ms <= less.bound_ms * (1 + 1e-6)


def test_without_room_every_row_is_held_once_and_without_that_there_is_no_plan():
    task = task_of(1.0, 1.2)
    cold = tier_plan(task, tiers=("cold",)).shards
    exactly = replace(task, topology=replace(task.topology, memory=int(memory_account(task, cold).total.max())))
    found = tier_plan(exactly)
    assert set(found.boundaries.values()) == {(0, 0)}
    less = replace(task, topology=replace(task.topology, memory=exactly.topology.memory_bytes[0] - 100))
    with pytest.raises(InfeasibleTask, match="lacks 100 B for its part of the sequence tables"):
        tier_plan(less)


def test_devices_of_unequal_memory_hold_what_they_can():
    roomy = with_room(task_of(0.9, 1.2, rows=200_000), 1.0)
    each = roomy.topology.memory_bytes[0]
    memory = [int(each * factor) for factor in (0.97, 1.2, 0.96, 1.5, 1.0, 1.0, 1.2, 1.3)]
    task = replace(roomy, topology=replace(roomy.topology, memory=memory))
    found = tier_plan(task)
    Plan(task, found.shards).check()
    cold = tier_plan(roomy, tiers=("cold",))
    assert found.communication_ms < 0.6 * cold.communication_ms
    assert found.gap > 0


def test_two_tiers_leave_the_warm_one_out_and_are_worse_where_hosts_are_far_apart():
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
    """Where others fill the links inside hosts, the same memory goes to rows that spare those."""
    from shardwright.sharding import Shard

    task = with_room(task_of(1.1), 1.3)
    busy = sequences(0.0, rows=2000, pooling=400.0)[0]
    with_others = replace(
        task, tables=[*task.tables, replace(busy, name="busy")], topology=replace(task.topology, memory="10 GB")
    )
    near = [Shard("busy", (500 * i, 500 * i + 500), (0, 16), (i, 4 + i)) for i in range(4)]  # a copy on each host
    found = tier_plan(with_others, others=near)
    assert set(found.boundaries) == {"s0"}
    assert {shard.table for shard in found.shards} == {"s0", "busy"}
