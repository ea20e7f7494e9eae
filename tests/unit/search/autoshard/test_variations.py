"""Varied copies of tasks: other tables, the same rules, never more rows."""

from dataclasses import replace

import numpy as np

from shardwright.search.autoshard.variations import SPREAD, varied, with_variations
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.task import Table, Task, Topology
from shardwright.testing.tasks import constrained_task
from tests.unit.search.autoshard.made import varied_task


def test_pooling_goes_up_and_down_and_rows_only_down():
    task = varied_task(0, 200)
    copy = varied(task, np.random.default_rng(0))
    factors = np.array([new.pooling / old.pooling for new, old in zip(copy.tables, task.tables, strict=True)])
    assert abs(np.log(factors).std() - SPREAD) < 0.1
    assert abs(np.log(factors).mean()) < 0.15
    assert all(new.rows <= old.rows for new, old in zip(copy.tables, task.tables, strict=True))
    assert sum(new.rows < old.rows for new, old in zip(copy.tables, task.tables, strict=True)) > 150


def test_names_dims_and_constraints_stay():
    task = constrained_task()
    copy = varied(task, np.random.default_rng(0))
    assert [(t.name, t.dim, t.dtype) for t in copy.tables] == [(t.name, t.dim, t.dtype) for t in task.tables]
    assert copy.constraints == task.constraints
    assert copy.topology == task.topology


def test_the_tasks_come_first_then_their_copies():
    tasks = [PlacementArrays.of(varied_task(seed)) for seed in range(3)]
    found = with_variations(tasks, 2, np.random.default_rng(0))
    assert found[:3] == tasks
    assert len(found) == 9
    assert not np.allclose(found[3].features, tasks[0].features)
    assert not np.allclose(found[3].features, found[6].features)
    assert with_variations(tasks, 0, np.random.default_rng(0)) == tasks


def test_copies_that_cannot_be_placed_are_left_out():
    """Memory to the byte: a copy whose table has more lookups needs larger buffers than there is room for."""
    roomy = Task([Table("small", rows=1, dim=16, pooling=100.0)], Topology(), 256)
    needed = int(PlacementArrays.of(roomy).bytes[0])
    task = replace(roomy, topology=Topology(memory=needed))
    found = with_variations([PlacementArrays.of(task)], 40, np.random.default_rng(0))
    assert 1 < len(found) < 41
