from dataclasses import replace

import pytest

from shardwright.sharding import Plan, Shard
from shardwright.sharding.diff import carry, same_devices
from shardwright.task import Table, Task, Topology


def plan_of(*shards: Shard, dim=8, names=("t",)) -> Plan:
    task = Task([Table(name, 10, dim) for name in names], Topology(devices_per_host=3), 6)
    return Plan(task, shards)


WHOLE_ON_0 = plan_of(Shard("t", (0, 10), (0, 8), (0,)))


def test_a_table_that_changes_its_device_moves_with_its_state():
    diff = WHOLE_ON_0.diff(plan_of(Shard("t", (0, 10), (0, 8), (1,))))
    (move,) = diff.moves
    assert (move.table, move.device, move.elements, move.bytes) == ("t", 1, 80, 80 * 4 + 10 * 4)
    assert diff.moved_tables == ("t",)


def test_a_new_replica_is_fetched_and_a_dropped_one_is_free():
    replicated = plan_of(Shard("t", (0, 10), (0, 8), (0, 1)))
    assert [move.device for move in WHOLE_ON_0.diff(replicated).moves] == [1]
    assert replicated.diff(WHOLE_ON_0).moves == ()


def test_another_row_order_moves_the_whole_table():
    newer = plan_of(Shard("t", (0, 10), (0, 8), (0,), "hotness"))
    assert [move.elements for move in WHOLE_ON_0.diff(newer).moves] == [80]


def test_added_and_removed_tables_are_named_and_do_not_move():
    newer = plan_of(*(Shard(name, (0, 10), (0, 8), (1,)) for name in ("u", "v")), names=("u", "v"))
    diff = WHOLE_ON_0.diff(newer)
    assert (diff.added, diff.removed, diff.moves) == (("u", "v"), ("t",), ())


def test_tables_of_another_shape_are_made_anew():
    diff = WHOLE_ON_0.diff(plan_of(Shard("t", (0, 10), (0, 4), (0,)), dim=4))
    assert (diff.changed, diff.moves, diff.tables) == (("t",), (), ())
    assert diff.made_bytes == 40 * 4 + 10 * 4


def test_a_diff_states_the_change_of_each_table():
    newer = plan_of(Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (2,)))
    diff = WHOLE_ON_0.diff(newer)
    (change,) = diff.tables
    assert (change.table, change.before, change.after) == ("t", "table_wise", "column_wise")
    assert change.moved_bytes == change.kept_bytes == diff.moved_bytes == diff.kept_bytes == 40 * 4 + 5 * 4
    assert (diff.made_bytes, diff.new_devices, diff.gone_devices) == (0, 0, 0)


def test_bytes_of_replicas_count_once_for_each_device():
    diff = WHOLE_ON_0.diff(plan_of(Shard("t", (0, 10), (0, 8), (0, 1, 2))))
    assert diff.moved_bytes == 2 * diff.kept_bytes


def test_ranks_of_a_grown_host_are_followed():
    """Rank 1 of two hosts of one device is rank 2 once hosts have two."""
    table = Table("t", 10, 8)
    older = Plan(Task([table], Topology(2, 1), 6), [Shard.whole(table, 1)])
    stays, moves = (Plan(Task([table], Topology(2, 2), 6), [Shard.whole(table, rank)]) for rank in (2, 1))
    assert older.diff(stays).moved_bytes == 0
    assert older.diff(moves).moved_bytes == 80 * 4 + 10 * 4
    assert older.diff(stays).new_devices == 2


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


def test_blocks_on_removed_devices_are_lost_and_replicas_survive():
    carried = carry(PLAN, task_of(T, U, near=1))
    assert carried.shards == {"t": [Shard("t", (0, 10), (0, 4), (0,))], "u": [Shard.whole(U, 0)]}
    assert carried.lost == {"t"}
    assert carried.why_no_plan(task_of(T, U, near=1)) == "1 device is gone"
    alone = Plan(task_of(U), [Shard.whole(U, 0, 1)])
    assert carry(alone, task_of(U, near=1)).why_no_plan(task_of(U, near=1)) is None


def test_new_and_changed_tables_are_distinguished_and_removed_ones_ignored():
    task = task_of(replace(T, rows=11, access=Table("t", 11, 8).access), Table("v", 3, 4), Table("w", 3, 4))
    carried = carry(PLAN, task)
    assert (carried.changed, carried.new, carried.gone) == (("t",), ("v", "w"), ("u",))
    assert carried.shards == {}
    assert carried.why_no_plan(task) == "2 tables are new, 1 table is of another shape"
    assert carry(PLAN, task_of(U)).why_no_plan(task_of(U)) is None


def test_a_plan_that_breaks_a_rule_now_does_not_apply():
    tight = task_of(T, U, memory=500)
    assert "rank 0 needs" in carry(PLAN, tight).why_no_plan(tight)
