"""Several actors: the same policy wherever they play, another one than with one actor, and whole episodes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from shardwright.errors import InvalidInput
from shardwright.search.dreamshard.learner import learn_dreamshard
from shardwright.search.dreamshard.mdp import Actors, Rollout, encode, estimates, log_probabilities, sampler
from shardwright.search.dreamshard.network import DreamShardNetwork
from shardwright.search.dreamshard.policy import DreamShardOptions
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.worlds import SimulatedWorld
from shardwright.testing.model import simple_cost_model
from shardwright.threads import one_thread
from tests.kills import DiesAfter, Killed, same_weights
from tests.pools import UnrulyPool
from tests.unit.search.dreamshard.policies import training_set
from tests.unit.search.dreamshard.test_learner import BRIEF

WORLD = SimulatedWorld(simple_cost_model())
THREE = replace(BRIEF, actors=3)
TASKS = training_set(4)


@pytest.fixture(autouse=True)
def thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def alone():
    with one_thread():
        return learn_dreamshard(TASKS, WORLD, THREE)


@pytest.mark.parametrize(("size", "deaths"), [(1, 0.0), (2, 0.5), (5, 0.3)])
def test_workers_learn_the_same_bits_however_many_and_whoever_dies(alone, size, deaths):
    pool = UnrulyPool(size, seed=1, deaths=deaths)
    found = learn_dreamshard(TASKS, WORLD, THREE, pool=pool)
    assert same_weights(found, alone)
    assert found.metadata == alone.metadata
    assert bool(pool.redone) is bool(deaths)


def test_another_number_of_actors_is_another_policy(alone):
    assert not same_weights(alone, learn_dreamshard(TASKS, WORLD, BRIEF))
    assert not same_weights(alone, learn_dreamshard(TASKS, WORLD, replace(BRIEF, actors=2)))


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_killed_training_goes_on_with_or_without_workers(alone, tmp_path, pool_first):
    pools = [UnrulyPool(2), None]
    first, second = pools if pool_first else reversed(pools)
    state = tmp_path / "state"
    with pytest.raises(Killed):
        learn_dreamshard(TASKS, WORLD, THREE, record=DiesAfter(2), checkpoint=state, pool=first)
    assert same_weights(learn_dreamshard(TASKS, WORLD, THREE, checkpoint=state, pool=second), alone)


@pytest.fixture
def encoded():
    batch = PlacementBatch.of([PlacementArrays.of(task) for task in training_set(3)])
    network = DreamShardNetwork(
        torch.zeros(21), torch.ones(21), torch.Generator().manual_seed(0), DreamShardOptions().objective
    )
    with torch.no_grad():
        return network, encode(network, batch)


def test_each_actor_plays_its_tasks_from_its_seed(encoded):
    network, encoded = encoded
    generator = torch.Generator().manual_seed(5)
    episodes = Actors(2).play(network, encoded, generator, copies=4)
    seeds = torch.randint(2**62, (2,), generator=torch.Generator().manual_seed(5)).tolist()
    begin = 0
    for rows, seed in (([0, 1], seeds[0]), ([2], seeds[1])):
        part = encoded.rows(torch.tensor(rows)).repeat(4)
        own = Rollout(network, part).play(sampler(torch.Generator().manual_seed(seed)))
        end = begin + 4 * len(rows)
        assert torch.equal(episodes.assignment_eu[begin:end], own.assignment_eu)
        assert torch.equal(episodes.mask_ted[:, begin:end], own.mask_ted)
        assert torch.equal(episodes.start_edk[begin:end], own.start_edk)
        begin = end
    assert episodes.encoded.batch.tasks == tuple(task for task in encoded.batch.tasks for _ in range(4))
    assert estimates(network, episodes).shape == (encoded.batch.units + 1, 12)
    assert torch.isfinite(log_probabilities(network, episodes)[0]).all()


def test_random_choices_do_not_ask_the_policy(encoded):
    network, encoded = encoded
    played = [
        Actors(2).play(network, encoded, torch.Generator().manual_seed(5), copies=50, random=random)
        for random in (True, False)
    ]
    assert not torch.equal(played[0].assignment_eu, played[1].assignment_eu)
    placed = played[0].assignment_eu[played[0].assignment_eu >= 0]
    assert set(placed.tolist()) == set(range(encoded.batch.devices))


def test_there_may_be_more_actors_than_tasks(encoded):
    network, encoded = encoded
    alone, together = (
        Actors(7, pool).play(network, encoded, torch.Generator().manual_seed(1), copies=2)
        for pool in (None, UnrulyPool(3))
    )
    for field in fields(alone):
        if field.name != "encoded":
            assert torch.equal(getattr(alone, field.name), getattr(together, field.name)), field.name
    assert alone.assignment_eu.shape[0] == 6


def test_no_actor_is_too_few():
    with pytest.raises(InvalidInput, match="actors is 0, must be at least 1"):
        DreamShardOptions(actors=0)
