"""Training finds plans that are known to be best, asks the world for each plan once, and stops when it must."""

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
from shardwright.errors import ShardwrightError  # noqa: E402
from shardwright.search.learned.arrays import PlacementArrays  # noqa: E402
from shardwright.search.rnn.network import SequenceToSequence  # noqa: E402
from shardwright.search.rnn.options import RnnOptions  # noqa: E402
from shardwright.search.rnn.rollout import Sequence, roll_out  # noqa: E402
from shardwright.search.rnn.training import PlanLedger, train_placement  # noqa: E402

from .worlds import LoadWorld, equal_tables, pooling_of  # noqa: E402

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


def test_a_deadline_gone_by_still_gives_a_plan():
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
    with pytest.raises(ShardwrightError, match="world 'load' says that a plan takes"):
        train_placement(arrays, LoadWorld(result=answer), SMALL, seed=0, deadline=None)


def test_failed_episodes_cost_more_than_any_plan():
    """Two devices hold three of five tables each: plans exist, but tables by chance on two devices are none of five."""
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
