"""The task of a sharding group, and the memory of its devices."""

import pytest

from shardwright.errors import InvalidInput
from shardwright.sharding import Plan, Shard
from shardwright.sharding.groups import group_memory, group_task, in_group
from shardwright.task import Constraints, ShardingGroups, Table, TableConstraint, Task, Topology

BAG, SMALL = Table("bag", 1000, 64, 3.0), Table("small", 10, 6, 2.0)
CLUSTER = Topology(2, 4, memory=[100_000_000 + rank for rank in range(8)])


def test_a_group_has_its_devices_and_its_share_of_the_batch():
    task = group_task(Task([BAG], CLUSTER, 63), ShardingGroups(4, 2, 4))
    assert (task.topology.hosts, task.topology.devices_per_host, task.batch_size) == (2, 2, 32)
    assert task.topology.memory_bytes == tuple(
        100_000_000 + rank for rank in (0, 2, 4, 6)
    )  # the smaller of both replicas
    neighbours = group_task(Task([BAG], CLUSTER, 64), ShardingGroups(4, 2, 4, inter_host_allreduce=True))
    assert (neighbours.topology.hosts, neighbours.topology.devices_per_host) == (1, 4)


def test_one_group_of_all_is_the_task_itself():
    task = Task([BAG], CLUSTER, 64)
    assert group_task(task, ShardingGroups(8, 2, 4, sync_interval=5)) == task


def test_a_pinned_rank_that_the_group_lacks_is_named():
    task = Task([BAG], CLUSTER, 64, constraints=Constraints(tables={"bag": TableConstraint(devices=(5,))}))
    with pytest.raises(InvalidInput, match="rank 5, the topology has ranks 0 to 3"):
        group_task(task, ShardingGroups(4, 2, 4))


def test_fully_sharded_groups_hold_a_part_beside_the_whole_and_only_that_between_the_passes():
    groups = ShardingGroups(2, 1, 8, fully_sharded=True)
    shards = [Shard.whole(BAG, 0), Shard.whole(SMALL, 0, 1)]  # replicas stay as they are
    plan = Plan(in_group(Task([BAG, SMALL], Topology(1, 2, memory="1 MB"), 8), groups), shards)
    memory, weights = group_memory(plan), 1000 * 64 * 4
    total = plan.memory.total
    assert (memory.peak - total).tolist() == [weights / 4, 0]
    assert (memory.between - total).tolist() == [weights / 4 - weights, 0]


def test_weights_that_the_groups_do_not_divide_are_padded_in_a_copy():
    groups = ShardingGroups(1, 1, 8, fully_sharded=True)
    odd = Table("odd", 11, 4, 1.0)  # 44 weights for 8 replicas
    plan = Plan(in_group(Task([odd], Topology(memory="1 MB"), 8), groups), [Shard.whole(odd, 0)])
    memory, weights = group_memory(plan), 11 * 4 * 4
    assert memory.peak[0] - plan.memory.total[0] == weights / 8 + weights


@pytest.mark.parametrize(("dim", "count", "part"), [(64, 4, 4 / 5), (64, 8, 8 / 17), (6, 2, 2 / 3), (6, 4, 4 / 9)])
def test_the_limit_leaves_room_for_the_peak(dim, count, part):
    """Blocks of multiples of 4 columns are divided by 2 and 4 replicas; others may need a padded copy."""
    task = in_group(
        Task([Table("t", 9, dim)], Topology(memory=9_000_000), 8), ShardingGroups(1, 1, count, fully_sharded=True)
    )
    assert task.topology.memory_bytes[0] == int(9_000_000 * part)
    kept = in_group(Task([Table("t", 9, dim)], Topology(memory=9_000_000), 8), ShardingGroups(1, 1, count))
    assert kept.topology.memory_bytes[0] == 9_000_000
