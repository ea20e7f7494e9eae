"""Spreads of colocated tables over the same devices."""

import numpy as np
import pytest

from shardwright.search.engine.colocated import item_spreads
from shardwright.sharding.ways import Dealt

EVERYWHERE, FIRST = np.arange(4), np.arange(2)
KINDS = (Dealt(EVERYWHERE), Dealt(EVERYWHERE, copies=True), Dealt(EVERYWHERE, 4, 4))


def spreads_of(tables):
    """Each table in rows, in copies and in columns on all devices, and in rows on the first two."""
    ways = [*KINDS, Dealt(FIRST)]
    return np.repeat(np.arange(tables), len(ways)), ways * tables


@pytest.mark.parametrize(("tables", "mixes"), [(1, 3 + 1), (2, 3**2 + 1), (3, 3**3 + 1)])
def test_all_mixes_of_few_choices_on_the_same_devices_are_made(tables, mixes):
    table, dealt = spreads_of(tables)
    item, shared = item_spreads(table, dealt, [tuple(range(tables))], np.ones(table.size))
    assert item.tolist() == [0] * mixes
    assert len({tuple(mix) for mix in shared}) == mixes
    assert all(len({id(dealt[spread].devices) for spread in mix}) == 1 for mix in shared)


def test_many_choices_are_the_cheapest_its_neighbours_and_all_tables_alike():
    table, dealt = spreads_of(4)
    price = np.where([way.copies for way in dealt], 2.0, 3.0)
    price[0] = 1.0  # the first table in rows
    _, shared = item_spreads(table, dealt, [(0, 1, 2, 3)], price)
    mixes = {tuple(dealt[spread] for spread in mix) for mix in shared if dealt[mix[0]].devices is EVERYWHERE}
    rows, copies, _ = KINDS
    cheapest = (rows, copies, copies, copies)
    alike = {(kind,) * 4 for kind in KINDS}
    assert {cheapest, *alike} <= mixes
    assert all(sum(one is not other for one, other in zip(mix, cheapest, strict=True)) <= 1 for mix in mixes - alike)
    assert len(mixes) == 1 + 4 * 2 + 3 - 1  # all in copies is a neighbour of the cheapest


def test_tables_that_share_no_devices_have_no_spread():
    _, shared = item_spreads(np.array([0, 1]), [Dealt(EVERYWHERE), Dealt(FIRST)], [(0, 1)], np.ones(2))
    assert shared == []
