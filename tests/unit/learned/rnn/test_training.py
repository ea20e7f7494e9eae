"""Training finds plans that are known to be best, asks the world for each plan once, and stops when it must."""

import time

import numpy as np
import pytest
import torch

from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.environment import masked
from shardwright.learned.options import RnnOptions
from shardwright.learned.rnn.training import (
    PlanLedger,
    Sequence,
    SequenceToSequence,
    likelihood,
    roll_out,
    train_placement,
)
from shardwright.testing import conformance_tasks
from shardwright.testing.tasks import impossible_task

from .worlds import LoadWorld, equal_tables, pooling_of

SMALL = RnnOptions(updates=60, episodes=16, hidden=16, learning_rate=0.01)


def test_policy_itself_learns_to_balance():
    """Not only luck: in the last quarter of the draws plans are much better than in the first batches."""
    arrays, world = PlacementArrays.of(equal_tables(12, 3)), LoadWorld()
    best = train_placement(arrays, world, SMALL, seed=0, deadline=None)
    loads = pooling_of(arrays)
    ms = [np.bincount(plan, weights=loads, minlength=3).max() for plan in world.asked]
    ideal = loads.sum() / 3
    assert np.bincount(best, weights=loads, minlength=3).max() == min(ms)
    assert min(ms) <= 1.02 * ideal
    assert np.mean(ms[-60:]) - ideal < 0.6 * (np.mean(ms[:60]) - ideal)


def test_every_plan_is_asked_for_once():
    arrays, world = PlacementArrays.of(equal_tables(3, 2)), LoadWorld()
    train_placement(arrays, world, RnnOptions(updates=20, episodes=8, hidden=4), seed=0, deadline=None)
    assert 1 < len(world.asked) == len(set(world.asked)) <= 2**3


def test_same_seed_same_questions_and_another_seed_others():
    arrays, worlds = PlacementArrays.of(equal_tables(12, 3)), [LoadWorld() for _ in range(3)]
    options = RnnOptions(updates=4, episodes=4, hidden=8)
    for world, seed in zip(worlds, (1, 1, 2), strict=True):
        train_placement(arrays, world, options, seed=seed, deadline=None)
    assert worlds[0].asked == worlds[1].asked != worlds[2].asked


def test_a_past_deadline_still_gives_a_plan():
    arrays, world = PlacementArrays.of(equal_tables(6, 2)), LoadWorld()
    best = train_placement(arrays, world, SMALL, seed=0, deadline=time.monotonic())
    assert tuple(best) in world.asked
    assert len(world.asked) <= SMALL.episodes


def test_no_update_begins_that_would_end_too_late():
    class SlowWorld(LoadWorld):
        def costs(self, placed):
            time.sleep(0.2)
            return super().costs(placed)

    arrays, world = PlacementArrays.of(equal_tables(30, 4)), SlowWorld()
    options = RnnOptions(updates=1000, episodes=2, hidden=8)
    train_placement(arrays, world, options, seed=0, deadline=time.monotonic() + 1.0)
    assert 2 <= len(world.asked) <= 2 * 5


@pytest.mark.parametrize("answer", [np.nan, np.inf])
def test_a_world_without_finite_times_is_refused(answer):
    arrays = PlacementArrays.of(equal_tables(4, 2))
    with pytest.raises(ShardwrightError, match="world 'load' returned (nan|inf) ms for a plan"):
        train_placement(arrays, LoadWorld(result=answer), SMALL, seed=0, deadline=None)


def test_failed_episodes_cost_more_than_any_plan():
    """Two devices with room for three and for one of five equal tables: every episode fails, and costs more than any whole plan."""
    roomy = PlacementArrays.of(equal_tables(5, 2))
    need = int(roomy.bytes[0])
    arrays = PlacementArrays.of(equal_tables(5, 2, memory=[3 * need, 2 * need - 1]))
    world = LoadWorld()
    assert train_placement(arrays, world, RnnOptions(updates=2, episodes=4, hidden=4), seed=0, deadline=None) is None
    assert world.asked == []
    ledger = PlanLedger(roomy, world)
    network, generator = SequenceToSequence(21, 5, 2, 4), torch.Generator().manual_seed(0)
    good = ledger.costs(roll_out(network, Sequence.of(roomy, 4), generator))
    bad = ledger.costs(roll_out(network, Sequence.of(arrays, 4), generator))
    assert bad.min() > good.max() == ledger.worst_ms


def test_nothing_outside_changes():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    train_placement(PlacementArrays.of(equal_tables(4, 2)), LoadWorld(), RnnOptions(updates=1), seed=3, deadline=None)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def made(task, episodes=6):
    arrays = PlacementArrays.of(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SequenceToSequence(21, len(arrays), arrays.devices, 8)
    return network, Sequence.of(arrays, episodes), torch.Generator().manual_seed(0)


def test_episodes_do_not_touch_each_other():
    network, sequence, _ = made(equal_tables(5, 3))
    encoded = sequence.encode(network)
    one, other = torch.tensor([[network.start, 0, 1, 2, 0]]), torch.tensor([[network.start, 2, 2, 1, 1]])
    both, _ = network.decode(encoded, 0, torch.cat([one, other]))
    torch.testing.assert_close(both[1:], network.decode(encoded, 0, other)[0])
    assert not torch.allclose(both[0, 1:], both[1, 1:])  # earlier choices matter


def test_likelihood_is_that_of_the_choices():
    network, sequence, generator = made(conformance_tasks()["constraints of every kind"])
    rollout = roll_out(network, sequence, generator)
    log_e, entropy_e = likelihood(network, sequence, rollout)
    encoded, state = sequence.encode(network), None
    expected, entropy, device = torch.zeros(6), torch.zeros(6), torch.full((6, 1), network.start)
    for turn in range(len(sequence.order_u)):
        logits, state = network.decode(encoded, turn, device, state)
        for episode in range(6):
            allowed = torch.flatten(rollout.mask_eud[episode, turn].nonzero())
            chances = torch.softmax(logits[episode, 0, allowed], dim=0)
            place = (allowed == rollout.device_eu[episode, turn]).nonzero()[0, 0]
            expected[episode] += chances[place].log()
            entropy[episode] -= (chances * chances.log()).sum()
        device = rollout.device_eu[:, turn : turn + 1]
    torch.testing.assert_close(log_e, expected / len(sequence.order_u))
    torch.testing.assert_close(entropy_e, entropy / len(sequence.order_u))


def test_a_unit_without_a_device_fails_the_episode_and_counts_for_nothing():
    network, sequence, generator = made(impossible_task())
    rollout = roll_out(network, sequence, generator)
    assert (rollout.excess_e > 0).all()
    log_e, entropy_e = likelihood(network, sequence, rollout)
    (log_e.sum() + entropy_e.sum()).backward()
    assert torch.isfinite(log_e).all()
    assert all(torch.isfinite(weight.grad).all() for weight in network.parameters())


def test_without_a_generator_the_likeliest_device():
    network, sequence, _ = made(conformance_tasks()["several tables on four devices"])
    rollout = roll_out(network, sequence, None)
    assert (rollout.device_eu == rollout.device_eu[:1]).all()
    before = torch.cat([torch.full((6, 1), network.start), rollout.device_eu[:, :-1]], dim=1)
    logits, _ = network.decode(sequence.encode(network), 0, before)
    assert (masked(logits, rollout.mask_eud).argmax(dim=2) == rollout.device_eu).all()
