"""Whom a rank asks for a row: one *code* for each lookup, made of the row's group, whom to ask, and what to ask for.

    code = (group × members + destination) << bits | question

Codes sort by group, then destination. Destinations are members of a process group in ascending order with the rank itself last, so that
what is sent lies before what stays. The question is a slot of the destination, or, to a proxy, a host and a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardwright._engine import find_codes as native_find_codes
from shardwright.runtime.placement import Ints, Placement
from shardwright.runtime.ranking import Ranking
from shardwright.runtime.replica_sets import ALONE


@dataclass(frozen=True)
class Codes:
    """How codes are laid out in 64 bits.

    Attributes:
        bits: of the question.
        members: of the process group.
        me: position of this rank in it.
    """

    bits: int
    members: int
    me: int

    def destinations(self, members: Ints) -> Ints:
        """`(n,)` destinations of `(n,)` members: others in ascending order, then the rank itself."""
        return np.where(members == self.me, self.members - 1, members - (members > self.me))

    def of(self, groups: Ints, members: Ints, questions: Ints) -> Ints:
        """`(n,)` codes of `(n,)` groups, members and questions."""
        codes: Ints = ((groups * self.members + self.destinations(members)) << self.bits) + questions
        return codes


class Router:
    """Codes of keys, for one rank.

    A segment of rows is dealt to ranges, so the range of a row and its place there follow from a division; a search finds the segment.

    Attributes:
        arrays: firsts, starts, parts, ranges and first_codes, as the engine's `find_codes` wants them.
    """

    def __init__(self, placement: Placement, codes: Ints, device: torch.device) -> None:
        """Make a router.

        Args:
            placement: where everything lies.
            codes: `(ranges,)` code of the first row of each range.
            device: where keys will be.
        """
        starts, parts, first = placement.segments
        self._starts = torch.from_numpy(starts.copy()).to(device)
        self._parts = torch.from_numpy(parts.copy()).to(device)
        self._first = torch.from_numpy(first.copy()).to(device)
        self._codes = torch.from_numpy(codes).to(device)
        tables = np.searchsorted(starts, placement.base[:-1])
        self.arrays = (np.append(tables, starts.size), starts.copy(), parts.copy(), first.copy(), codes)
        self._dealt = bool((parts > 1).any())
        self._base = self._codes[self._first] - self._starts if starts.size else self._starts

    def codes(self, keys: torch.Tensor) -> torch.Tensor:
        """`(n,)` codes of `(n,)` keys."""
        segment = torch.searchsorted(self._starts, keys, right=True).sub_(1)
        if not self._dealt:
            return keys + self._base[segment]
        position, parts = keys - self._starts[segment], self._parts[segment]
        row = torch.div(position, parts, rounding_mode="floor")
        position.addcmul_(row, parts, value=-1).add_(self._first[segment])
        return self._codes[position].add_(row)


def find_codes(
    ranking: Ranking, router: Router, ids: torch.Tensor, counts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor | bool]:
    """The codes of lookups.

    Args:
        ranking: the rank maps.
        router: where rows are asked for.
        ids: `(n,)` ids, table after table.
        counts: lookups of each table.

    Returns:
        `(n,)` codes, and whether any id is out of range, whose code is that of row 0.
    """
    if ids.device.type != "cpu":
        keys, wrong = ranking.keys(ids, torch.tensor(counts, device=ids.device))
        return router.codes(keys), wrong
    codes = torch.empty_like(ids)
    ends = np.cumsum([0, *counts])
    return codes, native_find_codes(ids.numpy(), ends, *ranking.arrays, *router.arrays, codes.numpy())


def chosen_holders(placement: Placement, rank: int) -> Ints:
    """`(ranges,)` whom a rank asks for the rows of each range: itself, else its host, else their owner."""
    holders = placement.owner.copy()
    replicated = np.flatnonzero(placement.exchanges[placement.ranges[0]] != ALONE)
    for index in replicated:
        shard, number = placement.ranges[0, index], placement.ranges[3, index]
        holders[index] = placement.sets[shard].nearest(rank, int(number))
    return holders


def slot_bits(placement: Placement) -> int:
    """Bits that hold any slot of any rank."""
    most = max(int(placement.rows_on(rank).max(initial=1)) for rank in range(placement.plan.task.topology.devices))
    return max(most.bit_length(), 1)
