"""Episodes of the estimated MDP."""

from __future__ import annotations

import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.dreamshard.mdp import encode, estimates, log_probabilities, play, sampler
from shardwright.learned.environment import PlacementBatch
from tests.unit.learned.dreamshard.policies import network_of, random_policy, training_set


def made():
    batch = PlacementBatch.of([PlacementArrays.of(task) for task in training_set(3)])
    network = network_of(random_policy())
    with torch.no_grad():
        return network, encode(network, batch)


def test_copies_of_a_task_are_played_next_to_each_other():
    network, encoded = made()
    episodes = play(network, encoded.repeat(4), sampler(torch.Generator().manual_seed(5)))
    assert episodes.encoded.batch.tasks == tuple(task for task in encoded.batch.tasks for _ in range(4))
    assert estimates(network, episodes).shape == (encoded.batch.units + 1, 12)
    assert torch.isfinite(log_probabilities(network, episodes)[0]).all()


def test_random_choices_do_not_ask_the_policy():
    network, encoded = made()
    played = [
        play(network, encoded.repeat(50), sampler(torch.Generator().manual_seed(5), random=random))
        for random in (True, False)
    ]
    assert not torch.equal(played[0].assignment_eu, played[1].assignment_eu)
    placed = played[0].assignment_eu[played[0].assignment_eu >= 0]
    assert set(placed.tolist()) == set(range(encoded.batch.devices))
