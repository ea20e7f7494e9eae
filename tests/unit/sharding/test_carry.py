from dataclasses import replace

import pytest

from shardwright.sharding import Plan, Shard
from shardwright.sharding.carry import carry, same_devices
from shardwright.task import Table, Task, Topology

T, U = Table("t", 10, 8), Table("u", 10, 8)


def task_of(*tables: Table, hosts=1, near=2, **changes) -> Task:
    return Task(tables, Topology(hosts, near, **changes), 6)


PLAN = Plan(task_of(T, U), [Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (1,)), Shard.whole(U, 0, 1)])


def test_an_unchanged_task_keeps_everything():
    carried = carry(PLAN, PLAN.task)
    assert carried.all_shards() == PLAN.shards
    assert carried.why_no_plan(PLAN.task) is None
    assert (carried.lost, carried.new_devices, carried.gone_devices) == (frozenset(), 0, 0)


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ((1, 2), (1, 3), {0: 0, 1: 1}),
        ((1, 3), (1, 2), {0: 0, 1: 1}),
        ((2, 2), (3, 2), {0: 0, 1: 1, 2: 2, 3: 3}),
        ((2, 2), (2, 4), {0: 0, 1: 1, 2: 4, 3: 5}),  # the second host's ranks begin later now
        ((1, 4), (2, 2), {0: 0, 1: 1}),
    ],
)
def test_a_device_is_the_same_if_host_and_place_are(older, newer, expected):
    assert same_devices(Topology(*older), Topology(*newer)) == expected


def test_devices_of_another_type_are_all_new():
    assert same_devices(Topology(1, 2, "h100"), Topology(1, 2, "h200")) == {}


def test_blocks_on_devices_that_are_gone_are_lost_and_replicas_survive():
    carried = carry(PLAN, task_of(T, U, near=1))
    assert carried.shards == {"t": [Shard("t", (0, 10), (0, 4), (0,))], "u": [Shard.whole(U, 0)]}
    assert carried.lost == {"t"}
    assert carried.why_no_plan(task_of(T, U, near=1)) == "1 device is gone"
    alone = Plan(task_of(U), [Shard.whole(U, 0, 1)])
    assert carry(alone, task_of(U, near=1)).why_no_plan(task_of(U, near=1)) is None


def test_new_and_changed_tables_are_told_apart_and_gone_ones_do_not_matter():
    task = task_of(replace(T, rows=11, access=Table("t", 11, 8).access), Table("v", 3, 4), Table("w", 3, 4))
    carried = carry(PLAN, task)
    assert (carried.changed, carried.new, carried.gone) == (("t",), ("v", "w"), ("u",))
    assert carried.shards == {}
    assert carried.why_no_plan(task) == "2 tables are new, 1 table is of another shape"
    assert carry(PLAN, task_of(U)).why_no_plan(task_of(U)) is None


def test_a_plan_that_breaks_a_rule_now_does_not_apply():
    tight = task_of(T, U, memory=500)
    assert "rank 0 needs" in carry(PLAN, tight).why_no_plan(tight)
