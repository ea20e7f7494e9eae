"""Learning: it helps, it stops with the state saved, and goes on to the same result."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.network import roll_out
from shardwright.learned.autoshard.policy import AutoShardWeights
from shardwright.learned.autoshard.strategy import placed
from shardwright.learned.autoshard.training import rewards
from shardwright.learned.environment import PlacementBatch
from shardwright.learned.options import AutoShardOptions
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import compute_ms
from tests.unit.learned.autoshard.made import QUICK, cost_error, random_network, random_policy, simulated, varied_task

pytestmark = pytest.mark.usefixtures("one_thread")


def tasks(count: int = 6, seed: int = 0):
    return [varied_task(seed + number) for number in range(count)]


def mean_balance(policy: SavedPolicy, unseen) -> float:
    weights, world = AutoShardWeights(policy), simulated()
    arrays = [PlacementArrays.of(task) for task in unseen]
    costs = [compute_ms(phases) for phases in world.costs([(task, placed(task, weights, 0, None)) for task in arrays])]
    return float(np.mean([cost.min() / cost.max() for cost in costs]))


LONGER = AutoShardOptions(steps=20_000, unroll=20, batch=16, lag=2, buffer=2000, buffer_batch=128, cost_updates=10)


@pytest.fixture(scope="module")
def trained() -> SavedPolicy:
    torch.set_num_threads(1)
    return learn(tasks(20), simulated(), LONGER)


@pytest.mark.slow
def test_learning_improves_the_balance_on_unseen_tasks(trained):
    unseen = tasks(20, seed=100)
    untrained = np.mean([mean_balance(random_policy(seed), unseen) for seed in range(3)])
    assert mean_balance(trained, unseen) > untrained + 0.15


@pytest.mark.slow
def test_learning_makes_the_cost_model_right(trained):
    unseen = tasks(6, seed=100)
    assert cost_error(trained, unseen) < min(0.2, 0.3 * cost_error(random_policy(0), unseen))


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learn(tasks(2), simulated(), QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_a_feature_that_never_varies_is_ignored():
    """Nothing can be learned of it; with random weights on it, tasks in which it does vary would be placed at random."""
    policy = learn([varied_task(0)], simulated(), replace(QUICK, steps=80, variations=0))
    features = PlacementArrays.of(varied_task(0)).features
    same = features.std(axis=0) < 1e-6
    assert same.any()
    assert (policy.weights["feature_scale"][same] == 0).all()
    assert (policy.weights["feature_scale"][~same] > 0).all()


def test_the_reward_is_the_degree_of_balance_or_minus_the_excess():
    """Four episodes: 2 of 4 ms, an empty device, a unit without room, and tables that cost nothing."""
    batch = PlacementBatch.of([PlacementArrays.of(varied_task(0, 4, 2))] * 4)
    trajectory = roll_out(random_network(0), batch, np.random.default_rng(0))
    trajectory = replace(trajectory, excess_e=torch.tensor([0.0, 0.0, 0.25, 0.0]))
    costs = [np.array([2.0, 4.0]), np.array([0.0, 3.0]), np.zeros(2), np.array([7.0, 7.0])]
    assert rewards(trajectory.excess_e, [0, 1, 3], costs).tolist() == [0.5, 0.0, -0.25, 1.0]
