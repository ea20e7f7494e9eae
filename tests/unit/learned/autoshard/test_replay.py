"""The replay buffer keeps the sets of blocks on devices with their costs, and forgets the oldest."""

from dataclasses import replace

import numpy as np
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.replay import SPREAD, ReplayBuffer, varied, with_variations
from shardwright.task import Table, Task, Topology
from shardwright.testing.tasks import constrained_task
from tests.unit.learned.autoshard.made import varied_task


def arrays_of(*tasks):
    return [PlacementArrays.of(task) for task in tasks]


def test_a_set_is_the_blocks_of_a_device_with_its_cost():
    first, second = arrays_of(varied_task(0, 4, 3), varied_task(1, 5, 2))
    buffer = ReplayBuffer([first, second], 10)
    buffer.add(second, np.array([1, 0, 1, 1, 0]), np.array([2.5, 4.0]))
    shards = buffer.all()
    assert shards.cost_s.tolist() == [2.5, 4.0]
    of_first_device = shards.features_nf[shards.owner_n == 0].numpy()
    np.testing.assert_allclose(of_first_device, second.features[[1, 4]], rtol=1e-6)
    sums = shards.sums(shards.features_nf)
    np.testing.assert_allclose(sums[1], second.features[[0, 2, 3]].sum(axis=0), rtol=1e-5)


def test_empty_devices_are_left_out():
    (task,) = arrays_of(varied_task(0, 4, 3))
    buffer = ReplayBuffer([task], 10)
    buffer.add(task, np.array([2, 2, 2, 2]), np.array([0.0, 0.0, 7.0]))
    assert len(buffer) == 1
    assert buffer.all().cost_s.tolist() == [7.0]


def test_settled_shards_count_on_every_device_that_holds_them():
    (task,) = arrays_of(constrained_task())
    assert len(task.fixed_features)
    buffer = ReplayBuffer([task], 10)
    buffer.add(task, np.zeros(len(task), dtype=np.int64), np.arange(task.devices, dtype=float))
    counts = torch.bincount(buffer.all().owner_n)
    expected = task.fixed_on.sum(axis=0) + len(task.features) * (np.arange(task.devices) == 0)
    assert counts.tolist() == expected[expected > 0].tolist()


def test_the_oldest_sets_are_forgotten():
    (task,) = arrays_of(varied_task(0, 4, 2))
    buffer = ReplayBuffer([task], 4)
    for number in range(5):
        buffer.add(task, np.array([0, 1, 0, 1]), np.array([number, number + 0.5]))
    assert len(buffer) == 4
    assert sorted(buffer.all().cost_s.tolist()) == [3.0, 3.5, 4.0, 4.5]
    drawn = buffer.draw(200, np.random.default_rng(0))
    assert set(drawn.cost_s.tolist()) == {3.0, 3.5, 4.0, 4.5}


def test_a_shorter_set_leaves_nothing_of_the_longer_one_before_it():
    (task,) = arrays_of(varied_task(0, 6, 2))
    buffer = ReplayBuffer([task], 1)
    buffer.add(task, np.zeros(6, dtype=np.int64), np.array([9.0, 0.0]))
    buffer.add(task, np.array([0, 0, 0, 0, 0, 1]), np.array([5.0, 1.0]))
    assert buffer.all().cost_s.tolist() == [1.0]
    assert len(buffer.all().features_nf) == 1


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
    with_copies = with_variations(tasks, 2, np.random.default_rng(0))
    assert with_copies[:3] == tasks
    assert len(with_copies) == 9
    assert not np.allclose(with_copies[3].features, tasks[0].features)
    assert not np.allclose(with_copies[3].features, with_copies[6].features)
    assert with_variations(tasks, 0, np.random.default_rng(0)) == tasks


def test_copies_that_cannot_be_placed_are_left_out():
    """Memory to the byte: a copy whose table has more lookups needs larger buffers than there is room for."""
    roomy = Task([Table("small", rows=1, dim=16, pooling=100.0)], Topology(), 256)
    needed = int(PlacementArrays.of(roomy).bytes[0])
    task = replace(roomy, topology=Topology(memory=needed))
    with_copies = with_variations([PlacementArrays.of(task)], 40, np.random.default_rng(0))
    assert 1 < len(with_copies) < 41
