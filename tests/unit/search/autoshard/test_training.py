"""Several actors: the same policy wherever they play, another one than with one actor, and whole trajectories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from shardwright.errors import InvalidInput
from shardwright.search.autoshard.learner import learn_autoshard
from shardwright.search.autoshard.network import Trajectory, roll_out
from shardwright.search.autoshard.strategy import AutoShardOptions
from shardwright.search.autoshard.training import play
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.environment import PlacementBatch
from shardwright.threads import one_thread
from tests.kills import DiesAfter, Killed, same_weights
from tests.pools import UnrulyPool
from tests.unit.search.autoshard.made import QUICK, random_network, simulated, varied_task

THREE = replace(QUICK, actors=3)
TASKS = [varied_task(number, count=count) for number, count in enumerate((6, 10, 8))]


@pytest.fixture(autouse=True)
def thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def alone():
    with one_thread():
        return learn_autoshard(TASKS, simulated(), THREE)


@pytest.mark.parametrize(("size", "deaths"), [(1, 0.0), (2, 0.5), (5, 0.3)])
def test_workers_learn_the_same_bits_however_many_and_whoever_dies(alone, size, deaths):
    pool = UnrulyPool(size, seed=1, deaths=deaths)
    found = learn_autoshard(TASKS, simulated(), THREE, pool=pool)
    assert same_weights(found, alone)
    assert found.metadata == alone.metadata
    assert bool(pool.redone) is bool(deaths)


def test_another_number_of_actors_is_another_policy(alone):
    assert not same_weights(alone, learn_autoshard(TASKS, simulated(), QUICK))
    assert not same_weights(alone, learn_autoshard(TASKS, simulated(), replace(QUICK, actors=2)))


def test_one_actor_plays_here():
    pool = UnrulyPool(2)
    assert same_weights(
        learn_autoshard(TASKS, simulated(), QUICK, pool=pool),
        learn_autoshard(TASKS, simulated(), QUICK),
    )
    assert not pool.finished


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_killed_training_goes_on_with_or_without_workers(alone, tmp_path, monkeypatch, pool_first):
    monkeypatch.setattr("shardwright.search.autoshard.learner.SAVED_EVERY", 1)
    pools = [UnrulyPool(2), None]
    first, second = pools if pool_first else reversed(pools)
    state = tmp_path / "state"
    with pytest.raises(Killed):
        learn_autoshard(TASKS, simulated(), THREE, record=DiesAfter(2), checkpoint=state, pool=first)
    assert same_weights(learn_autoshard(TASKS, simulated(), THREE, checkpoint=state, pool=second), alone)
    with pytest.raises(InvalidInput, match="made with options"):
        learn_autoshard(TASKS, simulated(), QUICK, checkpoint=state)


def batch_of(*counts):
    return PlacementBatch.of([PlacementArrays.of(varied_task(count, count=count)) for count in counts])


def test_each_actor_plays_its_share_from_its_seed():
    network, batch, random = random_network(0), batch_of(5, 9, 7, 6, 8), batch_of(4, 6)
    trajectory, done = play(network, batch, random, [11, 12])
    assert trajectory.batch is batch
    for rows, seed in (([0, 1, 2], 11), ([3, 4], 12)):
        own = roll_out(network, batch.rows(torch.tensor(rows)), np.random.default_rng(seed))
        part = trajectory.part(torch.tensor(rows))
        assert part.batch.tasks == own.batch.tasks == tuple(batch.tasks[row] for row in rows)
        for name, value in own.tensors().items():
            assert torch.equal(part.tensors()[name], value), name
    assert done.assignment_eu.shape == (2, 6)
    assert (done.excess_e == 0).all()
    assert not torch.equal(play(network, batch, random, [11, 13])[1].assignment_eu, done.assignment_eu)


def test_there_may_be_more_actors_than_episodes():
    network, batch, random = random_network(0), batch_of(5, 9), batch_of(4)
    trajectory, done = play(network, batch, random, list(range(6)), UnrulyPool(3))
    assert trajectory.assignment_eu.shape == (2, 9)
    assert done.assignment_eu.shape == (1, 4)


def test_parts_join_to_the_whole():
    trajectory = roll_out(random_network(0), batch_of(5, 9, 7), np.random.default_rng(0))
    parts = [trajectory.part(torch.tensor(rows)).tensors() for rows in ([0], [1, 2])]
    joined = Trajectory.joined(trajectory.batch, parts)
    for name, value in trajectory.tensors().items():
        assert torch.equal(joined.tensors()[name], value), name


def test_no_actor_is_too_few():
    with pytest.raises(InvalidInput, match="actors is 0, must be a whole number of at least 1"):
        AutoShardOptions(actors=0)
