from dataclasses import replace

import numpy as np
import pytest

from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.priced.policy import SHAPES, PricedPolicy, place
from shardwright.learned.worlds import BACKWARD, FORWARD, SimulatedWorld
from shardwright.search import plan
from shardwright.task import Constraints, TableConstraint
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from tests.unit.learned.priced.made import mixed_task, models, priced


def place_at_random(task, seed=0):
    """By a policy that finds all devices alike."""
    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    policy = PricedPolicy(SavedPolicy("dreamshard", weights, {}))
    return place(policy, task, np.random.default_rng(seed), 2, record=True)


@pytest.mark.parametrize("name", ["h200", "cpu", "h100"])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("colocate", [(), (("t0", "t1", "t2"),)])  # t0 is a sequence table, so these make several calls
def test_devices_take_as_long_as_the_cost_model_says(name, hosts, colocate):
    model = models()[name]
    task = priced(mixed_task(hosts=hosts, colocate=colocate), model)
    placed, reference = place_at_random(task), task.references()
    for copy in range(2):
        (phases,) = SimulatedWorld(model).costs([(task.arrays, placed.assignment[copy])])
        np.testing.assert_allclose(placed.times[copy, :, 0] * reference[0], phases[:, FORWARD], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(placed.times[copy, :, 1] * reference[1], phases[:, BACKWARD], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hosts", [1, 2])
def test_links_take_as_long_as_in_the_score_but_for_latencies(hosts):
    model = models()["h200"]
    task = priced(mixed_task(40, 8, hosts=hosts), model)
    assert (task.links > 0).all()
    for seed in range(3):
        placed = place_at_random(task, seed)
        (phases,) = SimulatedWorld(model).costs([(task.arrays, placed.assignment[0])])
        ours = placed.times[0, :, 2:] * task.references()[2:]
        np.testing.assert_allclose(np.ptp(ours, axis=0), np.ptp(phases[:, 1:3], axis=0), rtol=0.3)
        for way in range(2):
            assert np.corrcoef(ours[:, way], phases[:, 1 + way])[0, 1] > 0.95


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_a_task_of_settled_shards_alone_is_planned(strategy):
    task = mixed_task(2, 2)
    copied = {table.name: TableConstraint(sharding_types=("data_parallel",)) for table in task.tables}
    settled_plan = plan(replace(task, constraints=Constraints(copied)), strategy=strategy, runs_on=None)
    assert [len(shard.devices) for shard in settled_plan.shards] == [2, 2]


def test_settled_shards_take_their_time_before_anything_is_placed():
    whole = mixed_task(8)
    task = replace(whole, constraints=Constraints({"t0": TableConstraint(sharding_types=("row_wise",))}))
    priced_task = priced(task, models()["cpu"])
    assert priced_task.arrays.fixed_on.any()
    assert (priced_task.kernels(priced_task.fixed_vectors, priced_task.fixed_calls) > 0).all()
    assert (place_at_random(priced_task).times[..., :2] > 0).all()


@pytest.mark.parametrize("name", ["h200", "cpu", "h100"])
def test_a_made_up_device_keeps_the_rules_of_prices(name):
    task = priced(mixed_task(), models()[name])
    rng, gated = np.random.default_rng(0), 0
    for _ in range(8):
        other = task.perturbed(rng)
        gated += other.pricing.gates > 0
        assert np.isfinite(other.references()).all()
        assert (other.alone() > 0).all()
        placed = place_at_random(other)
        sums = np.zeros((other.arrays.devices, *other.vectors.shape[1:]))
        np.add.at(sums, placed.assignment[0], other.vectors)
        held = np.zeros((other.arrays.devices, other.calls.shape[1]), dtype=bool)
        np.logical_or.at(held, placed.assignment[0], other.calls)
        np.testing.assert_allclose(
            placed.times[0, :, :2] * other.references()[:2], other.kernels(sums, held), rtol=1e-9
        )
        assert placed.step[0] >= 1 - 0.5  # no plan does much better than the references
    assert gated == 8 if name == "h100" else 0 < gated < 8


def test_a_task_without_tables_to_place_and_one_device():
    alone = priced(task_of(3, 1), SimpleCostModel())
    assert (alone.links == 0).all()
    assert np.isfinite(alone.references()).all()
