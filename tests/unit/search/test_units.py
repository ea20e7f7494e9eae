"""Units of tables that strategies of whole tables place."""

import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.search.units import take_apart
from shardwright.sharding.checking import check_tiling
from shardwright.sharding.memory import shard_bytes
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel


def task_with(limits: TableConstraint | None = None, *, dim=24, rows=10_000, memory="1 GB", hosts=1, devices=4) -> Task:
    tables = [Table("a", rows, dim, 2.0), Table("b", rows, dim, 2.0)]
    constraints = Constraints({"a": limits} if limits else {})
    return Task(tables, Topology(hosts=hosts, devices_per_host=devices, memory=memory), 128, constraints=constraints)


def blocks_of(task: Task, table: str):
    units = take_apart(task)
    return [s for u in units.free for s in u.blocks if s.table == table] + [s for s in units.fixed if s.table == table]


@pytest.mark.parametrize(
    ("kind", "count"), [("table_wise", 1), ("column_wise", 2), ("row_wise", 4), ("data_parallel", 1)]
)
def test_a_table_is_cut_as_its_constraint_says(kind, count):
    task = task_with(TableConstraint(sharding_types=(kind,)))
    blocks = blocks_of(task, "a")
    assert len(blocks) == count
    check_tiling(task.tables[0], blocks)
    assert len(blocks_of(task, "b")) == 1


def test_column_blocks_are_the_fewest_that_fit_and_multiples_of_four():
    whole = task_with(dim=24)
    from shardwright.sharding import Shard

    a_third = shard_bytes(whole, Shard("a", (0, 10_000), (0, 8), (0,)))
    task = task_with(dim=24, memory=a_third)
    blocks = blocks_of(task, "a")
    assert [b.dim for b in blocks] == [8, 8, 8]


def test_row_blocks_lie_on_one_host_each_for_table_row_wise():
    task = task_with(TableConstraint(sharding_types=("table_row_wise",)), hosts=2, devices=2)
    devices = {shard.devices[0] for shard in blocks_of(task, "a")}
    assert devices in ({0, 1}, {2, 3})


@pytest.mark.parametrize(("pinned", "ranks"), [((1, 3), [1, 3]), ((0, 1, 2, 5), [0, 1, 2]), (range(6), [0, 1, 2, 3])])
def test_row_blocks_lie_on_a_part_of_a_host_if_the_table_is_pinned_to_it(pinned, ranks):
    task = task_with(TableConstraint(sharding_types=("table_row_wise",), devices=tuple(pinned)), hosts=2)
    assert [shard.devices[0] for shard in blocks_of(task, "a")] == ranks
    for strategy in ("greedy", "neuroshard", "certified", "table_row_wise"):
        assert sw.plan(task, strategy=strategy, cost_model=SimpleCostModel()).sharding_type("a") == "table_row_wise"


def test_row_blocks_keep_to_pinned_devices():
    task = task_with(TableConstraint(sharding_types=("row_wise",), devices=(1, 3)))
    assert [shard.devices for shard in blocks_of(task, "a")] == [(1,), (3,)]


def test_max_shards_limits_row_blocks():
    task = task_with(TableConstraint(sharding_types=("row_wise",), max_shards=2))
    assert len(blocks_of(task, "a")) == 2


def test_few_row_blocks_lie_on_several_hosts_if_one_host_is_not_allowed():
    task = task_with(TableConstraint(sharding_types=("row_wise",), max_shards=2), hosts=2)
    assert {task.topology.host_of(shard.devices[0]) for shard in blocks_of(task, "a")} == {0, 1}
    with pytest.raises(InfeasibleTask, match=r"fits: allow table_row_wise for it, or let it use more devices"):
        take_apart(task_with(TableConstraint(sharding_types=("row_wise",), devices=(0, 1)), hosts=2))


def test_colocated_tables_are_one_unit():
    tables = [Table(name, 100, 8) for name in "abcd"]
    task = Task(tables, Topology(devices_per_host=2), 64, constraints=Constraints(colocate=(("a", "b"), ("b", "c"))))
    units = take_apart(task).free
    assert sorted(unit.tables for unit in units) == [("a", "b", "c"), ("d",)]
    assert units[0].allowed.all()


def test_a_colocated_group_larger_than_any_device_is_infeasible():
    task = task_with(memory=3_000_000)
    task = Task(task.tables, task.topology, 128, constraints=Constraints(colocate=(("a", "b"),)))
    with pytest.raises(InfeasibleTask, match="together"):
        take_apart(
            Task([Table("a", 10_000, 64), Table("b", 10_000, 64)], task.topology, 128, constraints=task.constraints)
        )


def test_colocated_tables_that_must_be_cut_differently_are_infeasible():
    limits = {"a": TableConstraint(sharding_types=("row_wise",))}
    tables = [Table("a", 100, 8), Table("b", 100, 8)]
    task = Task(tables, Topology(devices_per_host=2), 64, constraints=Constraints(limits, colocate=(("a", "b"),)))
    with pytest.raises(InfeasibleTask, match="cut in different ways"):
        take_apart(task)
