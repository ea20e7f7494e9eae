"""Devices keep the units they held: against all orders of the pieces."""

import itertools

import numpy as np
import pytest

from shardwright.search.engine.catalog import NO_HOME, Home
from shardwright.search.engine.plans import first_units


def home_of(runs: dict[int, tuple[int, int]], form=0) -> Home:
    """The home of one item: start and width by device."""
    devices = sorted(runs)
    return NO_HOME._replace(
        form=np.array([form]),
        first=np.array([0, len(devices)]),
        device=np.array(devices),
        start=np.array([runs[device][0] for device in devices]),
        width=np.array([runs[device][1] for device in devices]),
    )


def kept(runs, devices, widths, starts) -> int:
    total = 0
    for device, width, start in zip(devices, widths, starts, strict=True):
        begin, held = runs.get(device, (0, 0))
        total += max(0, min(start + width, begin + held) - max(start, begin))
    return total


def best_of_all(runs, devices, widths) -> int:
    best = 0
    for order in itertools.permutations(range(len(devices))):
        starts = np.empty(len(devices), dtype=int)
        starts[list(order)] = np.cumsum([0, *np.array(widths)[list(order)][:-1]])
        best = max(best, kept(runs, devices, widths, starts))
    return best


def test_without_a_home_units_follow_the_order_of_devices():
    assert first_units(NO_HOME, 0, 0, np.array([1, 4, 6]), np.array([2, 3, 1])).tolist() == [0, 2, 5]


def test_unchanged_pieces_keep_their_ranges():
    runs = {3: (0, 4), 0: (4, 2), 7: (6, 10)}
    devices = np.array([0, 3, 7])
    assert first_units(home_of(runs), 0, 0, devices, np.array([2, 4, 10])).tolist() == [4, 0, 6]


def test_a_newcomer_is_fitted_between():
    runs = {3: (0, 8), 0: (8, 8)}
    starts = first_units(home_of(runs), 0, 0, np.array([0, 1, 3]), np.array([6, 4, 6]))
    assert kept(runs, [0, 1, 3], [6, 4, 6], starts) == 12


def test_another_form_has_nothing_to_keep():
    assert first_units(home_of({5: (0, 4), 2: (4, 4)}), 0, 1, np.array([2, 5]), np.array([4, 4])).tolist() == [0, 4]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 4, 6])
def test_few_pieces_keep_the_most_that_is_possible(seed, count):
    rng = np.random.default_rng([seed, count])
    runs, begin = {}, 0
    for device in rng.permutation(8)[: rng.integers(1, 6)].tolist():
        runs[device] = (begin, int(rng.integers(1, 6)))
        begin += runs[device][1]
    units = max(begin, count)
    devices = np.sort(rng.permutation(8)[:count])
    cuts = np.sort(rng.permutation(np.arange(1, units))[: count - 1])
    widths = np.diff([0, *cuts.tolist(), units])
    starts = first_units(home_of(runs), 0, 0, devices, widths)
    order = np.argsort(starts)
    assert starts[order].tolist() == np.cumsum([0, *widths[order][:-1]]).tolist()  # no gaps, nothing twice
    assert kept(runs, devices.tolist(), widths.tolist(), starts) == best_of_all(runs, devices.tolist(), widths.tolist())


def test_of_many_pieces_most_stay():
    runs = {device: (4 * device, 4) for device in range(16)}
    devices, widths = np.arange(32), np.full(32, 2)
    starts = first_units(home_of(runs), 0, 0, devices, widths)
    assert kept(runs, devices.tolist(), widths.tolist(), starts) >= 30  # of 32 at best
