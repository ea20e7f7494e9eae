"""Which units of an item each of its pieces takes: those that its device held before, as far as possible."""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import Ints
from shardwright.search.engine.home import Home

_EXACT = 8  # pieces up to which the best order is found by trying all sets of pieces


def first_units(home: Home, item: int, form: int, devices: Ints, widths: Ints) -> Ints:
    """The first unit of each piece of an item; the pieces cover its units without gaps.

    Args:
        home: what devices held before.
        item: the item.
        form: form of its pieces.
        devices: `(n,)` a device each, no two equal.
        widths: `(n,)` units of each.
    """
    order = np.arange(widths.size)
    if home.first.size and home.form[item] == form:
        start, stop = held_ranges(home, item, devices)
        order = best_order(widths, start, stop)
    result = np.empty_like(widths)
    result[order] = np.concatenate([[0], np.cumsum(widths[order])[:-1]])
    return result


@compiled
def held_ranges(home: Home, item: int, devices: Ints) -> tuple[Ints, Ints]:
    """The units `[start, stop)` that each of some devices held of an item; an empty range for none."""
    start, stop = np.zeros(devices.size, dtype=np.int64), np.zeros(devices.size, dtype=np.int64)
    for index in range(home.first[item], home.first[item + 1]):
        for piece in range(devices.size):
            if devices[piece] == home.device[index]:
                start[piece], stop[piece] = home.start[index], home.start[index] + home.width[index]
    return start, stop


@compiled
def best_order(widths: Ints, start: Ints, stop: Ints) -> Ints:
    """An order of pieces in which as many units as possible stay; of many pieces a good one.

    Args:
        widths: `(n,)` units of each piece.
        start: `(n,)` first unit that its device held.
        stop: `(n,)` the unit after the last; equal to the first where it held none.
    """
    held = np.argsort(np.where(stop > start, start, np.iinfo(np.int64).max), kind="mergesort")
    if kept_units(widths, start, stop, held) == np.minimum(widths, stop - start).sum():
        return held
    if widths.size <= _EXACT:
        return _best_of_all(widths, start, stop)
    order = held[: (stop > start).sum()]
    for index in held[order.size :]:
        best, most = order, -1
        for place in range(order.size + 1):
            tried = np.concatenate((order[:place], np.array([index]), order[place:]))
            kept = kept_units(widths, start, stop, tried)
            if kept > most:
                best, most = tried, kept
        order = best
    return order


@inner
def kept_units(widths: Ints, start: Ints, stop: Ints, order: Ints) -> int:
    """Units that stay where they are if pieces take theirs in some order."""
    first, total = 0, 0
    for index in order:
        total += max(0, min(first + widths[index], stop[index]) - max(first, start[index]))
        first += widths[index]
    return total


@compiled
def _best_of_all(widths: Ints, start: Ints, stop: Ints) -> Ints:
    """The best order, built from the best orders of all smaller sets of pieces."""
    count = widths.size
    kept, last = np.full(1 << count, -1), np.zeros(1 << count, dtype=np.int64)
    kept[0] = 0
    for chosen in range(1 << count):
        first = 0
        for index in range(count):
            if chosen >> index & 1:
                first += widths[index]
        for index in range(count):
            if not chosen >> index & 1:
                stays = max(0, min(first + widths[index], stop[index]) - max(first, start[index]))
                more = chosen | 1 << index
                if kept[chosen] + stays > kept[more]:
                    kept[more], last[more] = kept[chosen] + stays, index
    order = np.zeros(count, dtype=np.int64)
    chosen = (1 << count) - 1
    for place in range(count - 1, -1, -1):
        order[place] = last[chosen]
        chosen &= ~(1 << last[chosen])
    return order
