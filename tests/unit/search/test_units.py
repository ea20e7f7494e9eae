"""Which devices equal row blocks go to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.search.units import row_block_devices, row_place, take_apart
from shardwright.sharding.checking import check_tiling
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.runtimes import row_blocks
from shardwright.sharding.shard import equal_sizes
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()


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
        assert sw.plan(task, strategy=strategy, cost_model=MODEL).sharding_type("a") == "table_row_wise"


def test_row_blocks_keep_to_pinned_devices():
    task = task_with(TableConstraint(sharding_types=("row_wise",), devices=(1, 3)))
    assert [shard.devices for shard in blocks_of(task, "a")] == [(1,), (3,)]


def test_max_shards_limits_row_blocks():
    task = task_with(TableConstraint(sharding_types=("row_wise",), max_shards=2))
    assert len(blocks_of(task, "a")) == 2


def test_few_row_blocks_lie_on_several_hosts_where_one_host_is_not_allowed():
    task = task_with(TableConstraint(sharding_types=("row_wise",), max_shards=2), hosts=2)
    assert {task.topology.host_of(shard.devices[0]) for shard in blocks_of(task, "a")} == {0, 1}
    with pytest.raises(InfeasibleTask, match=r"fits: allow table_row_wise for it, or let it use more devices"):
        take_apart(task_with(TableConstraint(sharding_types=("row_wise",), devices=(0, 1)), hosts=2))


def test_colocated_tables_are_one_unit():
    tables = [Table(name, 100, 8) for name in "abcd"]
    task = Task(tables, Topology(devices_per_host=2), 64, constraints=Constraints(colocate=(("a", "b"), ("b", "c"))))
    units = take_apart(task).free
    assert sorted(unit.tables for unit in units) == [("a", "b", "c"), ("d",)]
    assert np.all(units[0].allowed)


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


TABLE = sw.Table("t", rows=100_000, dim=32, pooling=10.0)
ROWS = ("row_wise",)


def chosen(topology, *, table=TABLE, devices=None, **limits):
    ranks = np.arange(topology.devices) if devices is None else np.array(devices)
    found = row_block_devices(table, sw.TableConstraint(**limits), topology, ranks)
    return None if found is None else found.tolist()


def test_without_a_limit_all_devices_have_a_block():
    assert chosen(sw.Topology(2, 2)) == [0, 1, 2, 3]
    assert chosen(sw.Topology(2, 2), devices=[1, 2]) == [1, 2]


@pytest.mark.parametrize(("most", "ranks"), [(1, None), (2, [0, 3]), (3, [0, 1, 3]), (4, [0, 1, 3, 4])])
def test_few_blocks_lie_on_all_hosts(most, ranks):
    assert chosen(sw.Topology(2, 3), max_shards=most) == ranks
    assert chosen(sw.Topology(2, 3), table=sw.Table("t", most, 4)) == ranks


def test_the_roomiest_of_each_host_come_first():
    assert chosen(sw.Topology(2, 2, memory=["10 MB", "20 MB", "1 MB", "2 MB"]), max_shards=2) == [1, 3]
    assert chosen(sw.Topology(1, 4, memory=["10 MB", "20 MB", "1 MB", "12 MB"]), max_shards=2) == [1, 3]


def test_equal_rows_are_as_on_all_devices_or_on_a_host():
    hosts = sw.Topology(2, 2)
    assert chosen(hosts, equal_rows=True) == [0, 1, 2, 3]
    assert chosen(hosts, equal_rows=True, devices=[2, 3]) == [2, 3]
    assert chosen(hosts, equal_rows=True, devices=[1, 2]) is None
    assert chosen(hosts, equal_rows=True, max_shards=2) is None
    assert chosen(hosts, equal_rows=True, table=sw.Table("t", 2, 4)) == [
        0,
        2,
    ]  # as TorchRec: a row on each of two devices


@pytest.mark.parametrize("strategy", ["certified", "greedy", "neuroshard", "exact", "row_wise"])
@pytest.mark.parametrize("memory", ["20 MB", ["20 MB", "20 MB", "10 MB", "10 MB"]])
def test_two_row_blocks_on_two_hosts(strategy, memory):
    """On the roomiest two devices, which are on one host, they would be table_row_wise."""
    limits = sw.Constraints({"t": sw.TableConstraint(ROWS, max_shards=2)})
    task = sw.Task([TABLE], sw.Topology(2, 2, memory=memory), 64, constraints=limits)
    plan = sw.plan(task, strategy=strategy, cost_model=SimpleCostModel())
    plan.check()
    assert (plan.sharding_type("t"), len(plan.shards)) == ("row_wise", 2)


@pytest.mark.parametrize("strategy", ["certified", "greedy", "exact"])
def test_equal_rows_that_cannot_be_are_no_plan(strategy):
    limits = sw.Constraints({"t": sw.TableConstraint(ROWS, devices=(0, 1, 2), equal_rows=True)})
    task = sw.Task([TABLE], sw.Topology(1, 4), 64, constraints=limits)
    with pytest.raises(InfeasibleTask):
        sw.plan(task, strategy=strategy, cost_model=SimpleCostModel())


@pytest.mark.slow
def test_more_rows_than_64_bits_hold_times_the_devices():
    limits = sw.Constraints({"t": sw.TableConstraint(ROWS)})
    task = sw.Task([sw.Table("t", 2**50, 1)], sw.Topology(2048, 8, memory="200 TB"), 64, constraints=limits)
    for strategy in ("greedy", "row_wise"):
        plan = sw.plan(task, strategy=strategy, cost_model=SimpleCostModel())
        assert max(shard.rows[1] for shard in plan.shards) == 2**50


@pytest.mark.parametrize(
    ("kinds", "hosts", "ranks", "place"),
    [
        (("row_wise",), (2, 2), (0, 1, 2, 3), "several hosts"),
        (("row_wise",), (2, 2), (0, 2), "anywhere"),
        (("row_wise",), (2, 2), (0, 1), None),
        (("row_wise",), (3, 1), (0, 1, 2), "anywhere"),
        (("row_wise",), (1, 4), (0, 1, 2, 3), "anywhere"),
        (("table_row_wise",), (2, 2), (0, 1, 2, 3), "one host"),
        (("table_row_wise",), (2, 2), (0, 1), "anywhere"),
        (("table_row_wise",), (3, 1), (0, 1, 2), None),
        (("table_row_wise",), (1, 4), (0, 1, 2, 3), None),
        (("row_wise", "table_row_wise"), (2, 2), (0, 1, 2, 3), "anywhere"),
        (("row_wise", "table_row_wise"), (2, 2), (3,), None),
    ],
)
def test_row_blocks_lie_where_their_sharding_types_let_them(kinds, hosts, ranks, place):
    limits = sw.TableConstraint(sharding_types=kinds)
    assert row_place(limits, sw.Topology(*hosts), np.array(ranks)) == place


@given(st.integers(2, 5000), st.integers(2, 64))
def test_equal_row_blocks_add_up_and_torchrecs_cut_is_one_of_them(rows, count):
    count = min(count, rows)
    plain, *others = equal_sizes(rows, count)
    for more, longer, less, shorter in (plain, *others):
        assert more * longer + less * shorter == rows
        assert more >= less
    assert plain[1] + plain[3] == count
    assert plain[0] - plain[2] <= 1 or not plain[3]
    cuts = [stop - start for (start, stop), *_ in row_blocks(rows, range(count), (0, 4)) if start < stop]
    counted = [[more] * longer + [less] * shorter for more, longer, less, shorter in (plain, *others)]
    assert cuts in counted
