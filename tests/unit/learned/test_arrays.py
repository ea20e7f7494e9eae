import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import TABLE_FEATURES, PlacementArrays
from shardwright.sharding import Shard
from shardwright.sharding.memory import shard_bytes
from shardwright.testing.tasks import conformance_tasks, constrained_task, impossible_task, task_of, unequal_memory_task


def test_the_features_are_those_of_the_papers():
    table = sw.Table("t", rows=1000, dim=16, pooling=4.0, dtype="fp16")
    task = sw.Task([table], sw.Topology(devices_per_host=2), batch_size=64)
    (features,) = PlacementArrays.of(task).features
    assert features.shape == (len(TABLE_FEATURES),) == (21,)
    named = dict(zip(TABLE_FEATURES, features, strict=True))
    for name, value in {"rows": 1000, "dim": 16, "pooling": 4, "bytes": 1000 * 16 * 2}.items():
        assert named[f"log_{name}"] == pytest.approx(np.log(value), abs=1e-3)
    shares = features[4:]
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)


def test_no_shards_have_no_features():
    assert PlacementArrays.of(task_of(3, 2)).fixed_features.shape == (0, 21)


def test_a_task_without_constraints_has_a_unit_per_table():
    task = unequal_memory_task()
    arrays = PlacementArrays.of(task)
    assert len(arrays) == len(task.tables)
    assert arrays.devices == 3
    assert arrays.unit_of.tolist() == list(range(len(task.tables)))
    assert arrays.memory.tolist() == list(task.topology.memory_bytes)
    assert arrays.bytes.tolist() == [shard_bytes(task, Shard.whole(table, 0)) for table in task.tables]
    assert arrays.allowed.all()
    assert not arrays.rivals.any()
    assert not arrays.used.any()


def test_constraints_are_in_the_arrays():
    task = constrained_task()
    arrays = PlacementArrays.of(task)
    tables = [unit.tables for unit in arrays.units.free]
    pinned = tables.index(("table_0",))
    assert arrays.allowed[pinned].tolist() == [False, True, True, False]
    together = tables.index(("table_4", "table_5"))
    assert (arrays.unit_of == together).sum() == 2
    assert tables.count(("table_1",)) == 2  # two column blocks
    rivals = {tables[a] + tables[b] for a, b in zip(*np.nonzero(arrays.rivals), strict=True)}
    apart = [("table_7",), ("table_8",), ("table_9",)]
    assert rivals == {a + b for a in apart for b in apart if a != b}
    settled = [shard for shard in arrays.units.fixed if shard.table == "table_2"]
    assert len(settled) == 4
    assert arrays.fixed_on.sum() == sum(len(shard.devices) for shard in arrays.units.fixed)
    assert arrays.used.min() > 0


def test_devices_that_hold_a_settled_rival_are_not_allowed():
    limit = sw.TableConstraint(sharding_types=("row_wise",), devices=(0, 2))
    constraints = sw.Constraints({"table_0": limit}, apart=(("table_0", "table_1"),))
    arrays = PlacementArrays.of(task_of(3, 4, constraints=constraints))
    tables = [unit.tables for unit in arrays.units.free]
    assert arrays.allowed[tables.index(("table_1",))].tolist() == [False, True, False, True]
    assert arrays.allowed[tables.index(("table_2",))].all()


def test_every_block_of_a_cut_table_is_kept_apart():
    limit = sw.TableConstraint(sharding_types=("column_wise",), max_shards=2)
    constraints = sw.Constraints({"table_0": limit}, apart=(("table_0", "table_1"),))
    arrays = PlacementArrays.of(task_of(3, 4, constraints=constraints))
    tables = [unit.tables for unit in arrays.units.free]
    cut = [index for index, names in enumerate(tables) if names == ("table_0",)]
    other = tables.index(("table_1",))
    assert len(cut) == 2
    assert {(int(a), int(b)) for a, b in zip(*np.nonzero(arrays.rivals), strict=True)} == {
        pair for block in cut for pair in ((block, other), (other, block))
    }


@pytest.mark.parametrize("name", conformance_tasks())
def test_the_plan_of_an_assignment_puts_every_unit_on_its_device(name):
    task = conformance_tasks()[name]
    arrays = PlacementArrays.of(task)
    assignment = np.array([np.flatnonzero(allowed)[-1] for allowed in arrays.allowed])
    plan = arrays.plan(assignment, "mine", 4)
    assert (plan.task, plan.strategy, plan.seed) == (task, "mine", 4)
    assert plan.shards[: len(arrays.units.fixed)] == arrays.units.fixed
    for unit, device in zip(arrays.units.free, assignment, strict=True):
        for block in unit.blocks:
            matching = [s for s in plan.shards if (s.table, s.columns) == (block.table, block.columns)]
            assert [shard.devices for shard in matching] == [(device,)]


def test_an_assignment_of_another_length_is_refused():
    with pytest.raises(ValueError, match="zip"):
        PlacementArrays.of(task_of(3, 2)).plan([0, 1], "", 0)


def test_a_unit_that_fits_no_device_is_refused_before_anything_is_placed():
    impossible = PlacementArrays.of(impossible_task())
    assert len(impossible) == 3  # each fits: that they do not fit together is for the search to find
    whole = {"table_0": sw.TableConstraint(sharding_types=("table_wise",))}
    everywhere = {"table_1": sw.TableConstraint(sharding_types=("data_parallel",))}
    small, large = sw.Table("table_0", 1000, 16), sw.Table("table_1", 1000, 16)
    roomy = sw.Task([small, large], sw.Topology(devices_per_host=2), 64)
    one = max(shard_bytes(roomy, Shard.whole(table, 0, 1)) for table in (small, large))
    topology = sw.Topology(devices_per_host=2, memory=one + one // 2)
    task = sw.Task([small, large], topology, 64, constraints=sw.Constraints(whole | everywhere))
    with pytest.raises(InfeasibleTask, match="table 'table_0' needs .* more than any device that it may use has left"):
        PlacementArrays.of(task)
