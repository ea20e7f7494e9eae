import pytest

from shardwright.errors import InvalidPlan
from shardwright.sharding import Plan, Shard
from shardwright.task import Table, Task, Topology


def plan_of(*shards: Shard, dim=8, names=("t",)) -> Plan:
    task = Task([Table(name, 10, dim) for name in names], Topology(devices_per_host=3), 6)
    return Plan(task, shards)


WHOLE_ON_0 = plan_of(Shard("t", (0, 10), (0, 8), (0,)))


def test_nothing_moves_between_equal_plans():
    diff = WHOLE_ON_0.diff(WHOLE_ON_0)
    assert diff.moves == ()
    assert diff.moved_bytes == 0


def test_a_table_that_changes_its_device_moves_with_its_state():
    diff = WHOLE_ON_0.diff(plan_of(Shard("t", (0, 10), (0, 8), (1,))))
    (move,) = diff.moves
    assert (move.table, move.device, move.elements, move.bytes) == ("t", 1, 80, 80 * 4 + 10 * 4)
    assert diff.moved_tables == ("t",)


def test_a_split_moves_only_the_part_that_leaves():
    newer = plan_of(Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (2,)))
    (move,) = WHOLE_ON_0.diff(newer).moves
    assert (move.device, move.elements) == (2, 40)


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


def test_plans_of_different_tables_of_one_name_cannot_be_compared():
    with pytest.raises(InvalidPlan, match="10 × 8 fp32 in one plan and 10 × 4"):
        WHOLE_ON_0.diff(plan_of(Shard("t", (0, 10), (0, 4), (0,)), dim=4))
