"""Episodes of the actors, and the learner's pass over the same episodes."""

import numpy as np
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.losses import policy_loss
from shardwright.learned.autoshard.network import (
    EncodedTasks,
    costliest_first,
    go_through,
    placements,
    roll_out,
    scattered,
)
from shardwright.learned.environment import PlacementBatch, choices
from shardwright.learned.options import AutoShardOptions
from shardwright.sharding.checking import check_plan
from shardwright.testing.tasks import constrained_task, impossible_task, tight_task
from tests.unit.learned.autoshard.made import random_network, varied_task


def mixed_batch() -> PlacementBatch:
    """Tasks of different numbers of tables and devices, one with constraints of every kind."""
    tasks = [varied_task(0, 5, 2), varied_task(1, 9, 4), constrained_task(), tight_task()]
    return PlacementBatch.of([PlacementArrays.of(task) for task in tasks])


def test_the_learner_gives_the_actors_choices_the_same_probability():
    """On-policy: the sums, costs and states of all steps at once are those of playing step by step."""
    network = random_network(3)
    played = roll_out(network, mixed_batch(), np.random.default_rng(0))
    log_prob = _log_prob(network, played)
    placed = played.placed_te
    torch.testing.assert_close(log_prob[placed], played.log_prob_te[placed], rtol=1e-4, atol=1e-4)
    assert played.log_prob_te[placed].std() > 0.01


def test_part_of_a_trajectory_is_processed_like_the_whole():
    network = random_network(3)
    played = roll_out(network, mixed_batch(), np.random.default_rng(0))
    whole, part = go_through(network, played), go_through(network, played.part(torch.tensor([1, 3])))
    for of_part, of_whole in zip(part, whole, strict=True):
        torch.testing.assert_close(of_part, of_whole[:, [1, 3]])


def test_whole_placements_keep_every_rule():
    batch = mixed_batch()
    whole_episodes = set()
    for seed in range(5):
        for played in (
            roll_out(random_network(seed), batch, np.random.default_rng(seed)),
            scattered(batch, np.random.default_rng(seed)),
        ):
            whole, placed = placements(batch, played.assignment_eu, played.excess_e)
            whole_episodes |= set(whole)
            for task, assignment in placed:
                check_plan(task.task, task.plan(assignment, "", 0).shards)
    assert whole_episodes == {0, 1, 2, 3}


def test_an_episode_without_room_fails_and_learns_nothing_from_the_step_without_a_choice():
    batch = PlacementBatch.of([PlacementArrays.of(impossible_task())])
    network = random_network(0)
    played = roll_out(network, batch, np.random.default_rng(0))
    assert played.excess_e[0] > 0
    assert placements(batch, played.assignment_eu, played.excess_e) == ([], [])
    assert played.placed_te[:, 0].tolist() == [True, True, False]
    learner_loss = policy_loss(network, played, -played.excess_e, AutoShardOptions())
    learner_loss.loss.backward()
    assert torch.isfinite(learner_loss.loss)
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_units_are_ordered_by_predicted_cost_and_padding_comes_last():
    network, batch = random_network(1), mixed_batch()
    encoded = EncodedTasks.of(network, batch)
    order = costliest_first(network, batch, encoded)
    cost = network.relative_cost(encoded.units_euh).detach()
    for episode, count in enumerate(batch.unit_count_e.tolist()):
        own = order[episode, :count]
        assert sorted(own.tolist()) == list(range(count))
        assert (cost[episode, own].diff() <= 0).all()


def test_scattered_placements_show_sets_of_all_sizes():
    batch = PlacementBatch.of([PlacementArrays.of(varied_task(0, 12, 4))] * 60)
    played = scattered(batch, np.random.default_rng(0))
    sizes = torch.nn.functional.one_hot(played.assignment_eu, 4).sum(dim=1)
    assert set(sizes.flatten().tolist()) >= {0, 1, 2, 3, 4, 6, 8, 10, 12}


def test_the_reward_reaches_the_probability_of_what_was_done():
    """One gradient step on a rewarded episode makes its choices likelier, one on a penalised episode less likely."""
    batch = PlacementBatch.of([PlacementArrays.of(varied_task(0, 6, 3))])
    options = AutoShardOptions(entropy_weight=0.0, value_weight=0.0)
    for reward, sign in ((5.0, 1), (-5.0, -1)):
        network = random_network(2)
        played = roll_out(network, batch, np.random.default_rng(1))
        before = _log_prob(network, played).sum()
        policy_loss(network, played, torch.tensor([reward]), options).loss.backward()
        with torch.no_grad():
            for parameter in network.policy.parameters():
                parameter.add_(parameter.grad, alpha=-1e-3)
        assert sign * (_log_prob(network, played).sum() - before) > 0


def _log_prob(network, played) -> torch.Tensor:
    """`(t, e)` log probability of what was done, by the learner's networks."""
    return choices(go_through(network, played)[0], played.mask_ted, played.action_te)[0].detach()
