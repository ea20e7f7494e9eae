"""The spreads of a search's items: those of a single table, and for colocated tables a spread of each over the same devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.sharding.ways import Dealt

_MIXES = 32  # choices of a group's spreads up to which all are made


def item_spreads(
    table: Ints, dealt: Sequence[Dealt], members: Sequence[tuple[int, ...]], price: Floats
) -> tuple[Ints, list[Ints]]:
    """The spreads of items, each on the same devices for all tables of the item.

    Args:
        table: `(n,)` the table of each spread of a table.
        dealt: the spreads of the tables; equal sets of devices are one array.
        members: tables of each item.
        price: `(n,)` rough price of each.

    Returns:
        `(spreads,)` the item of each, and the spreads of its tables.
    """
    of_table: dict[int, dict[int, list[int]]] = {}
    for index, (of, way) in enumerate(zip(table.tolist(), dealt, strict=True)):
        of_table.setdefault(of, {}).setdefault(id(way.devices), []).append(index)
    items, shared = [], []
    for item, tables in enumerate(members):
        ways = [of_table.get(of, {}) for of in tables]
        common = [[way[devices] for way in ways] for devices in ways[0] if all(devices in way for way in ways)]
        mixes = sorted(mix for choices in common for mix in _mixes(choices, dealt, price))
        items += [item] * len(mixes)
        shared += [np.array(mix, dtype=np.int64) for mix in mixes]
    return np.array(items, dtype=np.int64), shared


def _mixes(choices: list[list[int]], dealt: Sequence[Dealt], price: Floats) -> set[tuple[int, ...]]:
    """Choices of one spread for each table.

    All if they are few; else the cheapest choice, those that differ from it in one table, and those that cut all tables alike.
    """
    if math.prod(map(len, choices)) <= _MIXES:
        return set(product(*choices))
    cheapest = tuple(min(of_table, key=lambda spread: price[spread]) for of_table in choices)
    mixes = {(*cheapest[:at], other, *cheapest[at + 1 :]) for at, of_table in enumerate(choices) for other in of_table}
    by_cut = [{(dealt[spread].copies, dealt[spread].columns): spread for spread in of_table} for of_table in choices]
    return mixes | {tuple(of[cut] for of in by_cut) for cut in by_cut[0] if all(cut in of for of in by_cut)}
