import numpy as np
import pytest
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.environment import UNPLACED, Environment, PlacementBatch
from shardwright.testing.tasks import constrained_task, impossible_task, task_of

TASKS = [task_of(5, 2), constrained_task(), task_of(8, 3)]


@pytest.fixture
def batch():
    return PlacementBatch.of([PlacementArrays.of(task) for task in TASKS])


def in_order(batch):
    return torch.arange(batch.units).repeat(batch.episodes, 1)


def test_sums_over_units_and_devices_are_those_of_loops(batch):
    rng = torch.Generator().manual_seed(0)
    blocks = torch.rand(3, batch.features_ebf.shape[1], 5, generator=rng)
    units = torch.rand(3, batch.units, 5, generator=rng)
    settled = torch.rand(3, batch.fixed_ecf.shape[1], 5, generator=rng)
    assignment = torch.randint(-1, 2, (3, batch.units), generator=rng)
    by_unit, by_device, sums = batch.by_unit(blocks), batch.by_device(settled), batch.sums(units, assignment)
    for e, arrays in enumerate(batch.tasks):
        for unit in range(len(arrays)):
            own = [blocks[e, block] for block in np.flatnonzero(arrays.unit_of == unit)]
            torch.testing.assert_close(by_unit[e, unit], sum(own))
        assert not by_unit[e, len(arrays) :].any()
        for rank in range(batch.devices):
            held = [settled[e, c] for c, shard in enumerate(arrays.units.fixed) if rank in shard.devices]
            torch.testing.assert_close(by_device[e, rank], sum(held, torch.zeros(5)))
            placed = [units[e, unit] for unit in range(batch.units) if assignment[e, unit] == rank]
            torch.testing.assert_close(sums[e, rank], sum(placed, torch.zeros(5)))


def test_repeated_tasks_lie_next_to_each_other(batch):
    twice = batch.repeat(2)
    assert twice.episodes == 6
    assert [id(task) for task in twice.tasks] == [id(task) for task in batch.tasks for _ in range(2)]
    assert torch.equal(twice.bytes_eu[::2], batch.bytes_eu)
    assert torch.equal(twice.bytes_eu[1::2], batch.bytes_eu)


def test_a_device_that_may_not_take_the_unit_is_refused():
    arrays = PlacementArrays.of(constrained_task())
    batch = PlacementBatch.of([arrays])
    (pinned,) = [n for n, unit in enumerate(arrays.units.free) if unit.tables == ("table_0",)]
    environment = Environment(batch, in_order(batch).roll(-pinned, dims=1))
    assert environment.mask().tolist() == [[False, True, True, False]]
    with pytest.raises(ValueError, match="choose where mask"):
        environment.step(torch.tensor([0]))
    assert environment.step_index == 0


def test_a_unit_without_a_device_stays_unplaced_and_the_episode_has_failed():
    roomy = task_of(3, 2)
    batch = PlacementBatch.of([PlacementArrays.of(impossible_task()), PlacementArrays.of(roomy)])
    environment = Environment(batch, in_order(batch))
    placed = [environment.step(environment.mask().int().argmax(dim=1)).tolist() for _ in range(3)]
    assert placed == [[True, True], [True, True], [False, True]]
    assert environment.assignment_eu[0].tolist() == [0, 1, UNPLACED]
    assert (environment.excess_e > 0).tolist() == [True, False]
    need, memory = int(batch.bytes_eu[0, 0]), int(batch.memory_ed[0, 0])
    assert float(environment.excess_e[0]) == pytest.approx((2 * need - memory) / memory)
    assert environment.used_ed[0].tolist() == [need, need]
