"""The ways of tables: the devices of dealt rows and of grids."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import score
from shardwright.errors import InfeasibleTask
from shardwright.sharding.checking import check_tiling
from shardwright.sharding.runtimes import patterns_like, row_blocks
from shardwright.sharding.shard import equal_sizes
from shardwright.sharding.ways import dealt_ways, grid_counts, grids_of, row_block_devices, row_place
from shardwright.testing.model import SimpleCostModel

TABLE = sw.Table("t", rows=100_000, dim=32, pooling=10.0)
ROWS = ("row_wise",)


def chosen(topology, *, table=TABLE, devices=None, **limits):
    ranks = np.arange(topology.devices) if devices is None else np.array(devices)
    ranks_chosen = row_block_devices(table, sw.TableConstraint(**limits), topology, ranks)
    return None if ranks_chosen is None else ranks_chosen.tolist()


@pytest.mark.parametrize(
    ("shape", "memory", "given", "ranks"),
    [
        ((2, 2), "1 GB", {}, [0, 1, 2, 3]),
        ((2, 2), "1 GB", {"devices": [1, 2]}, [1, 2]),
        ((2, 3), "1 GB", {"max_shards": 1}, None),
        ((2, 3), "1 GB", {"max_shards": 2}, [0, 3]),
        ((2, 3), "1 GB", {"max_shards": 3}, [0, 1, 3]),
        ((2, 3), "1 GB", {"table": sw.Table("t", 4, 4)}, [0, 1, 3, 4]),
        ((2, 2), ["10 MB", "20 MB", "1 MB", "2 MB"], {"max_shards": 2}, [1, 3]),
        ((1, 4), ["10 MB", "20 MB", "1 MB", "12 MB"], {"max_shards": 2}, [1, 3]),
    ],
)
def test_few_row_blocks_lie_on_all_hosts_and_on_the_roomiest_of_each(shape, memory, given, ranks):
    assert chosen(sw.Topology(*shape, memory=memory), **given) == ranks


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
def test_sharding_types_decide_the_ranks_of_row_blocks(kinds, hosts, ranks, place):
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


GRID = ("grid",)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), st.integers(1, 16), st.data())
def test_every_dealt_way_tiles_its_table_in_a_pattern_that_torchrec_runs(hosts, near, rows, quads, data):
    topology, table = sw.Topology(hosts, near), sw.Table("t", rows, 4 * quads, 1.0)
    pinned = data.draw(st.one_of(st.none(), st.sets(st.integers(0, hosts * near - 1), min_size=1)))
    limits = sw.TableConstraint(devices=None if pinned is None else tuple(sorted(pinned)), equal_rows=True)
    for way in dealt_ways(table, limits, topology, data.draw(st.integers(0, 9))):
        shards = way.shards(table)
        check_tiling(table, shards)
        assert {rank for shard in shards for rank in shard.devices} <= set(way.devices.tolist())
        assert pinned is None or set(way.devices.tolist()) <= pinned
        assert max(shard.row_count for shard in shards) == way.block_rows(table)
        assert patterns_like(shards, table, topology)


def test_column_blocks_of_a_grid_lie_on_hosts_of_their_own():
    topology, table = sw.Topology(4, 2), sw.Table("t", 1000, 64)
    assert grid_counts(table, sw.TableConstraint(), topology) == [2, 4, 8, 16]
    assert grid_counts(table, sw.TableConstraint(max_shards=8, min_columns=16), topology) == [2, 4]
    assert grid_counts(sw.Table("t", 1000, 64, pooled=False), sw.TableConstraint(), topology) == []
    assert grid_counts(table, sw.TableConstraint(), sw.Topology(4, 1)) == []
    grids = list(grids_of(table, sw.TableConstraint(), topology, 0))
    assert {(way.columns, way.hosts) for way in grids} == {(2, 2), (4, 4)}
    (two_on_each, *_) = grids_of(table, sw.TableConstraint(devices=(2, 3)), topology, 0)
    assert (two_on_each.columns, two_on_each.per_device, two_on_each.devices.tolist()) == (2, 2, [2, 3])


@pytest.mark.parametrize("strategy", ["certified", "greedy", "neuroshard", "exact"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_table_that_may_only_be_a_grid_becomes_one(strategy, hosts):
    tables = [sw.Table("t", 1000, 16, 5.0), sw.Table("u", 300, 8, 2.0)]
    task = sw.Task(tables, sw.Topology(hosts, 2), 64, constraints=sw.Constraints({"t": sw.TableConstraint(GRID)}))
    plan = sw.plan(task, strategy=strategy, cost_model=SimpleCostModel(), runs_on="torchrec")
    plan.check()
    assert plan.sharding_type("t") == "grid"
    assert plan.bound_ms is None or plan.bound_ms <= plan.cost.step_ms * (1 + 1e-9)


def test_the_hottest_of_few_tables_becomes_a_grid():
    """Four column blocks fill four devices, rows of one host fill its links: only a grid shares out both."""
    hot = sw.Table("hot", 1_000_000, 128, 50.0)
    topology = sw.Topology(4, 4, intra_bandwidth="100 GB/s", inter_bandwidth="10 GB/s")
    limits = sw.Constraints({"hot": sw.TableConstraint(min_columns=32)})
    tables = [hot, *(sw.Table(f"t{i}", 1000, 16) for i in range(4))]
    task = sw.Task(tables, topology, 8192, constraints=limits)
    plan = sw.plan(task, cost_model=SimpleCostModel(), runs_on="torchrec")
    assert plan.sharding_type("hot") == "grid"
    width = hot.dim // 4
    by_hand = [
        sw.Shard("hot", rows, (host * width, (host + 1) * width), (4 * host + local,))
        for host in range(4)
        for local, rows in enumerate(pairwise(range(0, hot.rows + 1, hot.rows // 4)))
    ]
    rest = [shard for shard in plan.shards if shard.table != "hot"]
    assert plan.cost.step_ms <= score(task, [*by_hand, *rest], SimpleCostModel()).step_ms * (1 + 1e-9)
