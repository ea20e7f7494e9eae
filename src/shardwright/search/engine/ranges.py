"""Which units of an item each of its pieces takes: those that its device held before, as far as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.search.engine.blocks import Ints
from shardwright.search.engine.home import Home

_EXACT = 8  # pieces up to which the best order is found by trying all sets of pieces


@dataclass(frozen=True)
class _Piece:
    """A piece of `width` units on a device that held the units `[start, stop)` of the item; none where they are equal."""

    width: int
    start: int
    stop: int

    def kept(self, first: int) -> int:
        """Units that stay if the piece begins at `first`."""
        return max(0, min(first + self.width, self.stop) - max(first, self.start))

    @property
    def most(self) -> int:
        """Units that stay at best."""
        return min(self.width, self.stop - self.start)


def first_units(home: Home, item: int, form: int, devices: Ints, widths: Ints) -> Ints:
    """The first unit of each piece of an item; the pieces cover its units without gaps.

    Args:
        home: what devices held before.
        item: the item.
        form: form of its pieces.
        devices: `(n,)` a device each, no two equal.
        widths: `(n,)` units of each.
    """
    order = list(range(widths.size))
    if home.first.size and home.form[item] == form:
        order = _best_order(_pieces(home, item, devices, widths))
    result = np.empty_like(widths)
    result[order] = np.concatenate([[0], np.cumsum(widths[order])[:-1]])
    return result


def _pieces(home: Home, item: int, devices: Ints, widths: Ints) -> list[_Piece]:
    held = {
        int(home.device[index]): (int(home.start[index]), int(home.start[index] + home.width[index]))
        for index in range(int(home.first[item]), int(home.first[item + 1]))
    }
    return [_Piece(int(width), *held.get(int(device), (0, 0))) for device, width in zip(devices, widths, strict=True)]


def _best_order(pieces: list[_Piece]) -> list[int]:
    """An order in which as many units as possible stay; of many pieces a good one."""
    held = [index for index, piece in enumerate(pieces) if piece.most]
    order = sorted(held, key=lambda index: pieces[index].start)
    others = [index for index, piece in enumerate(pieces) if not piece.most]
    if _kept(pieces, [*order, *others]) == sum(piece.most for piece in pieces):
        return [*order, *others]
    if len(pieces) <= _EXACT:
        return _best_of_all(pieces)
    for index in others:
        places = range(len(order) + 1)
        order = max(([*order[:at], index, *order[at:]] for at in places), key=lambda tried: _kept(pieces, tried))
    return order


def _kept(pieces: Sequence[_Piece], order: Sequence[int]) -> int:
    first, total = 0, 0
    for index in order:
        total += pieces[index].kept(first)
        first += pieces[index].width
    return total


def _best_of_all(pieces: list[_Piece]) -> list[int]:
    """The best order, built from the best orders of all smaller sets of pieces."""
    count = len(pieces)
    best: list[tuple[int, tuple[int, ...]]] = [(-1, ())] * 2**count
    best[0] = (0, ())
    for chosen in range(2**count):
        kept, order = best[chosen]
        first = sum(pieces[index].width for index in order)
        for index in range(count):
            more = chosen | 1 << index
            total = kept + pieces[index].kept(first)
            if more != chosen and total > best[more][0]:
                best[more] = (total, (*order, index))
    return list(best[-1][1])
