"""Sharding groups: their ranks, as `DMPCollection` makes them, and the places of these on hosts."""

import pytest

from shardwright.errors import InvalidInput
from shardwright.task import ShardingGroups, Table, Task, Topology


def made_by_torchrec(world, size, inter):
    """The peers of each group by the rule of `DMPCollection._create_process_groups`."""
    if inter:
        return [list(range(start, start + size)) for start in range(0, world, size)]
    step = world // size
    return [[step * rank + group for rank in range(size)] for group in range(step)]


@pytest.mark.parametrize("inter", [False, True])
@pytest.mark.parametrize(("hosts", "near", "size"), [(2, 4, 2), (2, 4, 4), (2, 4, 8), (4, 2, 2), (2, 6, 4), (3, 4, 1)])
def test_groups_are_those_of_torchrec(hosts, near, size, inter):
    groups = ShardingGroups(size, hosts, near, inter_host_allreduce=inter)
    peers = made_by_torchrec(hosts * near, size, inter)
    assert [list(groups.ranks(group)) for group in range(groups.count)] == peers
    assert [list(groups.replicas(rank)) for rank in range(size)] == [
        list(column) for column in zip(*peers, strict=True)
    ]


@pytest.mark.parametrize(
    ("size", "inter", "group", "replicas"),
    [
        (16, False, (2, 8), (1, 1)),
        (8, False, (2, 4), (1, 2)),  # every second rank: four of a host; the two replicas are neighbours
        (2, False, (2, 1), (1, 8)),
        (1, False, (1, 1), (2, 8)),
        (8, True, (1, 8), (2, 1)),
        (2, True, (1, 2), (2, 4)),
        (1, True, (1, 1), (2, 8)),
    ],
)
def test_shapes_on_two_hosts_of_eight(size, inter, group, replicas):
    groups = ShardingGroups(size, 2, 8, inter_host_allreduce=inter)
    assert (groups.group_shape, groups.replica_shape) == (group, replicas)


def test_groups_that_straddle_hosts_count_the_runs_that_share_a_host():
    assert ShardingGroups(4, 2, 6, inter_host_allreduce=True).group_shape == (
        2,
        2,
    )  # 4 and 5 on one host, 6 and 7 on the other
    assert ShardingGroups(3, 2, 6).replica_shape == (2, 2)


def test_a_task_is_that_of_one_group(tmp_path):
    groups = ShardingGroups(2, 2, 4, sync_interval=7, inter_host_allreduce=True)
    task = Task([Table("t", 100, 8)], Topology(1, 2), 64, groups=groups)
    task.save(tmp_path / "task.yaml")
    assert Task.load(tmp_path / "task.yaml") == task
    assert "one of 4 sharding groups" in repr(task)
    with pytest.raises(
        InvalidInput, match=r"size is 2, but the topology has 4 devices; give the topology of one group \(2 devices\)"
    ):
        Task([Table("t", 100, 8)], Topology(1, 4), 64, groups=groups)


def test_a_task_file_may_not_say_more(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(
        "batch_size: 8\ntopology: {devices_per_host: 2}\ntables: [{name: t, rows: 9, dim: 4}]\n"
        "sharding_groups: {size: 2, hosts: 1, devices_per_host: 4, every: 3}\n"
    )
    with pytest.raises(
        InvalidInput, match=r"task\.yaml: sharding_groups: unknown field 'every'; known fields are size"
    ):
        Task.load(file)
    file.write_text(file.read_text().replace("size: 2", "size: 3").replace(", every: 3", ""))
    with pytest.raises(InvalidInput, match=r"task\.yaml: sharding_groups: size is 3, must divide the 4 devices"):
        Task.load(file)
