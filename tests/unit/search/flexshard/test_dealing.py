"""How cold rows are shared out to devices of unequal room."""

import numpy as np
import pytest

from shardwright.search.flexshard.dealing import cold_levels


def shares(levels, devices):
    """Share of the cold rows on each device."""
    held, before = np.zeros(devices), 0.0
    for level in levels:
        held[level.ranks] += (level.until - before) / level.ranks.size
        before = level.until
    return held


def test_equal_room_and_room_that_suffices_make_one_level():
    for room in ([10.0] * 4, [10.0, 30.0, 11.0, 10.0]):
        (level,) = cold_levels(np.array(room), 40.0)
        assert level.until == 1.0
        assert level.ranks.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("room", [[5.0, 20.0, 20.0, 20.0], [1.0, 8.0, 12.0, 30.0], [0.0, 10.0, 20.0, 40.0]])
def test_nobody_gets_more_than_there_is_room_for(room):
    levels = cold_levels(np.array(room), 45.0)
    assert levels[-1].until == 1.0
    assert (shares(levels, 4) * 45.0 <= np.array(room) + 1e-9).all()
    assert shares(levels, 4).sum() == pytest.approx(1.0)


def test_there_are_only_a_few_levels():
    room = np.linspace(1.0, 100.0, 50)
    assert len(cold_levels(room, 0.6 * room.sum(), most=2)) <= 2
    assert len(cold_levels(room, 0.6 * room.sum(), most=1)) == 1


def test_too_little_room_is_still_shared_out():
    assert shares(cold_levels(np.array([1.0, 3.0]), 100.0), 2).sum() == pytest.approx(1.0)
    assert shares(cold_levels(np.array([-5.0, -1.0]), 100.0), 2).tolist() == [0.5, 0.5]
