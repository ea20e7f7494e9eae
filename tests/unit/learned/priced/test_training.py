from dataclasses import replace

import numpy as np
import pytest
import torch

from shardwright.errors import InvalidInput
from shardwright.learned.environment import choices
from shardwright.learned.options import PricedAutoShard, PricedDreamShard
from shardwright.learned.priced.policy import PricedPolicy
from shardwright.learned.priced.training import credited, play
from shardwright.learned.trainer import trainer
from shardwright.learned.worlds import MeasuredWorld, SimulatedWorld
from shardwright.testing.tasks import impossible_task
from tests.unit.learned.priced.made import mixed_task, models, policy_of, priced, random_network

KINDS = (PricedDreamShard, PricedAutoShard)


def world():
    one, *others = models().values()
    return SimulatedWorld(one, tuple(others))


def quick(kind, **changes):
    return kind(rounds=3, tasks=2, episodes=3, lag=2, **changes)


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_gains_add_up_to_the_step(name):
    task, network = priced(mixed_task(), models()[name]), random_network()
    played = play(PricedPolicy(policy_of(network)), task, 4, np.random.default_rng(0))
    torch.testing.assert_close(played.gain.sum(dim=0), 1 - played.step, rtol=1e-4, atol=1e-5)
    log, entropy = choices(network.logits(played.seen, played.facts), played.able, played.device)
    torch.testing.assert_close(log, played.log_prob, rtol=1e-3, atol=1e-3)
    assert (entropy >= 0).all()


def test_a_unit_without_a_device_costs_more_than_any_placement():
    played = play(
        PricedPolicy(policy_of(random_network())),
        priced(impossible_task(), models()["cpu"]),
        3,
        np.random.default_rng(0),
    )
    assert (played.step >= 1).all()
    assert (played.log_prob[~played.able.any(dim=2)] == 0).all()


def test_copies_are_compared_with_each_other():
    played = play(
        PricedPolicy(policy_of(random_network())), priced(mixed_task(), models()["cpu"]), 5, np.random.default_rng(0)
    )
    advantage, _ = credited(played, 1.0)
    torch.testing.assert_close(advantage.sum(dim=1), torch.zeros(len(advantage)), atol=1e-3, rtol=0.0)
    assert int(advantage[0].argmax()) == int(played.step.argmin())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_starts_badly_learns(kind):
    """From a gain of 0, which places at random."""
    tasks = [replace(mixed_task(12, 4))]
    training = trainer(
        tasks, SimulatedWorld(models()["h200"]), kind(rounds=60, tasks=4, lag=1, perturbed=0, learning_rate=0.02)
    )
    with torch.no_grad():
        training.network.gain.zero_()
    rewards = []
    for _ in range(60):
        rewards.append(training.make_round()["reward"])
        training.round += 1
    assert np.mean(rewards[-10:]) > np.mean(rewards[:3]) + 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_cannot_be_learned_from_raise(kind):
    with pytest.raises(InvalidInput, match="reads the prices of a cost model.*preset=published"):
        trainer([mixed_task(5, 2)], MeasuredWorld(), quick(kind))
