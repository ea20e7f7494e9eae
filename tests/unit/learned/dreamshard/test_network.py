"""The networks have the published shape, and the estimated MDP prices the units on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.dreamshard.mdp import encode, log_probabilities, play, sampler
from shardwright.learned.dreamshard.network import PolicyNetwork
from shardwright.learned.environment import PlacementBatch
from shardwright.testing.tasks import constrained_task, task_of, tight_task
from tests.unit.learned.dreamshard.policies import network_of, random_policy


def batch_of(*tasks):
    return PlacementBatch.of([PlacementArrays.of(task) for task in tasks])


def network(seed=0):
    return network_of(random_policy(seed))


def test_overall_cost_sums_the_slowest_phases_or_takes_the_slowest_device():
    sums = torch.rand(1, 4, 32)
    step, embedding = (
        network_of(replace(random_policy(), metadata={"objective": o})).cost for o in ("step", "embedding")
    )
    known = step.device_costs(step.hidden(sums))[0].clamp(min=0)
    difference = known.amax(dim=0).sum() - known.sum(dim=1).amax()
    torch.testing.assert_close(step.overall_cost(sums)[0] - embedding.overall_cost(sums)[0], difference)


def test_encodings_are_not_negative_so_that_padded_devices_do_not_count():
    assert (network().cost.encoder(torch.randn(50, 21)) >= 0).all()


def test_order_is_by_cost_alone_with_padding_last():
    encoded = encode(network(), batch_of(task_of(3, 2), task_of(9, 2)))
    cost = network().cost
    alone = cost.device_costs(cost.hidden(encoded.units_euh)).sum(dim=-1)
    assert sorted(encoded.order_eu[0, :3].tolist()) == [0, 1, 2]
    ordered = torch.gather(alone, 1, encoded.order_eu)
    assert (ordered[1].diff() <= 0).all()
    assert (ordered[0, :3].diff() <= 0).all()


@pytest.mark.slow
def test_probabilities_judged_again_are_those_that_sampled():
    """The probabilities that REINFORCE differentiates, all steps at once, are those that the rollout drew from step by step."""
    net, batch = network(), batch_of(*[constrained_task(), task_of(6, 3), tight_task()] * 200)
    with torch.no_grad():
        encoded = encode(net, batch)
        episodes = play(net, encoded, sampler(torch.Generator().manual_seed(0)))
    log_te, entropy_te = log_probabilities(net, episodes)
    choice_te = episodes.mask_ted.sum(dim=2) > 1
    assert (log_te[~choice_te].abs() < 1e-6).all()
    assert (entropy_te[~choice_te].abs() < 1e-6).all()
    # E[−log p] is the entropy, if the choices were drawn from p: over the 200 episodes of each task, to a few per cent
    surprise, entropy = -log_te.sum(dim=0).view(200, 3), entropy_te.sum(dim=0).view(200, 3)
    assert torch.allclose(surprise.mean(dim=0), entropy.mean(dim=0), rtol=0.1, atol=0.05)


def test_shares_of_a_step_price_the_device_with_the_unit():
    net, batch = network(), batch_of(task_of(8, 3))
    with torch.no_grad():
        encoded = encode(net, batch)
        episodes = play(net, encoded, sampler(torch.Generator().manual_seed(1)))
        last = int(episodes.unit_te[-1, 0])
        device = int(episodes.device_te[-1, 0])
        final = net.cost.device_costs(net.cost.hidden(encoded.sums(episodes.assignment_eu)))[0, device]
    assert last == int(encoded.order_eu[0, -1])
    shares = episodes.shares_tedk[-1, 0, device]
    torch.testing.assert_close(shares.expm1() * encoded.even_ek[0], final.clamp(min=0), rtol=1e-4, atol=1e-5)


def test_no_device_is_too_slow_to_get_worse():
    """However hot two tables are, they are worse on one device than on two."""
    policy = PolicyNetwork(torch.Generator().manual_seed(0))
    with torch.no_grad():
        policy.power.fill_(28.0)

    def value(times_even: float) -> float:
        return float(policy.value(torch.log1p(torch.full((3,), times_even))))

    for hot in (0.5, 1.0, 3.0, 10.0, 40.0):
        assert value(2 * hot) + value(0.0) < 2 * value(hot)
    values = [value(share) for share in (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
