"""Which devices equal row blocks go to."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.search.cuts import row_block_devices
from shardwright.testing.model import SimpleCostModel

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


def test_more_rows_than_64_bits_hold_times_the_devices():
    limits = sw.Constraints({"t": sw.TableConstraint(ROWS)})
    task = sw.Task([sw.Table("t", 2**50, 1)], sw.Topology(2048, 8, memory="200 TB"), 64, constraints=limits)
    for strategy in ("greedy", "row_wise"):
        plan = sw.plan(task, strategy=strategy, cost_model=SimpleCostModel())
        assert max(shard.rows[1] for shard in plan.shards) == 2**50
