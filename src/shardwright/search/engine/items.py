"""What a search places: items, each a table or a colocated group, with the pieces and spreads that their tables share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.search.engine.blocks import Added, Floats, Ints
from shardwright.search.engine.catalog import Bools, Catalog
from shardwright.task.task import Task


class Parts:
    """Piece rows picked from a catalog, and rows of merged groups behind them."""

    def __init__(self, catalog: Catalog) -> None:
        self._forms = catalog.forms
        self._merged: list[Ints] = []
        self.rows: list[Ints] = []
        self.units: list[int] = []

    def copy(self, form: int) -> None:
        """All pieces of a form."""
        self.rows.append(np.arange(self._forms.first[form], self._forms.first[form + 1]))
        self.units.append(self.rows[-1].size)

    def merge(self, tables: tuple[int, ...]) -> None:
        """Pieces that hold the same share of the columns of some tables: as many units as the tables' own have in common."""
        own = self._forms.units[np.array(tables)]
        units = int(np.gcd.reduce(own))
        begin = self._forms.first[-1] + len(self._merged)
        self._merged += [
            self._forms.first[np.array(tables)] + width * own // units - 1 for width in range(1, units + 1)
        ]
        self.rows.append(np.arange(begin, begin + units))
        self.units.append(units)

    def arrays(self) -> tuple[Added, Ints, Floats, Bools]:
        """What the picked rows add to calls, their bytes, served bytes and legality."""
        rows = np.concatenate(self.rows)
        costs, legal = self._forms.costs, self._forms.legal
        if not self._merged:
            if not np.array_equal(rows, np.arange(rows.size)):
                costs, legal = costs.rows(rows), legal[rows]
            return Added.of(costs.call, costs.vectors), costs.bytes, costs.served, legal
        pieces = int(self._forms.first[-1])
        groups = [np.array([row]) if row < pieces else self._merged[row - pieces] for row in rows.tolist()]
        begins = np.cumsum([0, *(group.size for group in groups)])[:-1]
        flat = np.concatenate(groups)
        return (
            Added.of_groups(costs.call, costs.vectors, groups),
            np.add.reduceat(costs.bytes[flat], begins),
            np.add.reduceat(costs.served[flat], begins),
            np.logical_and.reduceat(legal[flat], begins),
        )


def pieces_of(catalog: Catalog, members: tuple[tuple[int, ...], ...]) -> tuple[Parts, Ints]:
    """The pieces of a column form of every item, then those of all other forms; and which form of the catalog each is.

    Of a group it is that of its first table.
    """
    forms, parts = catalog.forms, Parts(catalog)
    single = [tables[0] for tables in members if len(tables) == 1]
    for tables in members:
        if len(tables) == 1:
            parts.copy(tables[0])
        else:
            parts.merge(tables)
    first_other = len(catalog.task.tables)
    others = first_other + np.flatnonzero(np.isin(forms.table[first_other:], single))
    for form in others:
        parts.copy(int(form))
    return parts, np.concatenate([[tables[0] for tables in members], others]).astype(np.int64)


def members_of(task: Task) -> tuple[tuple[int, ...], ...]:
    """Tables of each item: single ones, then colocated groups."""
    position = {table.name: index for index, table in enumerate(task.tables)}
    groups = [tuple(sorted(position[name] for name in group)) for group in task.constraints.colocated_groups()]
    grouped = {table for group in groups for table in group}
    return (*((index,) for index in range(len(task.tables)) if index not in grouped), *sorted(groups))


@dataclass(frozen=True, eq=False)
class ItemSpreads:
    """Spreads by item; see `catalog.Spreads`."""

    item: Ints
    devices: tuple[Ints, ...]
    replicated: tuple[bool, ...]
    added: Added
    bytes: Ints
    served: Floats
    reduced: Floats


def spreads_of(catalog: Catalog, members: tuple[tuple[int, ...], ...]) -> ItemSpreads:
    """The spreads that all tables of an item share, summed over them."""
    spreads = catalog.spreads
    of_table: dict[int, dict[tuple[bool, int], int]] = {}
    for index, table in enumerate(spreads.table):
        key = (bool(spreads.replicated[index]), id(spreads.devices[index]))  # equal sets are one array
        of_table.setdefault(int(table), {})[key] = index
    items, shared = [], []
    for item, tables in enumerate(members):
        ways = [of_table.get(table, {}) for table in tables]
        for key in ways[0]:
            if all(key in way for way in ways):
                items.append(item)
                shared.append([way[key] for way in ways])
    costs, first = spreads.costs, [indices[0] for indices in shared]

    def summed(values: Floats) -> Floats:
        rows = [values[indices].sum(axis=0) for indices in shared]
        return np.array(rows).reshape(len(rows), *values.shape[1:])

    return ItemSpreads(
        np.array(items, dtype=np.int64),
        tuple(spreads.devices[index] for index in first),
        tuple(bool(spreads.replicated[index]) for index in first),
        Added.of_groups(costs.call, costs.vectors, [np.array(indices, dtype=np.int64) for indices in shared]),
        summed(costs.bytes.astype(np.float64)).astype(np.int64),
        summed(costs.served),
        summed(spreads.reduced),
    )


def most_pieces(task: Task, tables: tuple[int, ...]) -> int:
    """Most pieces of an item: each holds a part of every one of its tables."""
    limits = [task.constraints.of(task.tables[table].name).max_shards for table in tables]
    return min((limit for limit in limits if limit is not None), default=np.iinfo(np.int64).max)


def allowed_devices(task: Task, members: tuple[tuple[int, ...], ...]) -> Bools:
    """`(items, d)` where an item may go by the pinning of its tables; `(0, 0)` where nothing is pinned."""
    if not any(limits.devices for limits in task.constraints.tables.values()):
        return np.zeros((0, 0), dtype=bool)
    masks = np.ones((len(members), task.topology.devices), dtype=bool)
    for item, tables in enumerate(members):
        for table in tables:
            pinned = task.constraints.of(task.tables[table].name).devices
            if pinned:
                masks[item] &= np.isin(np.arange(task.topology.devices), pinned)
    return masks


def rivals_of(task: Task, members: tuple[tuple[int, ...], ...], owner: dict[int, int]) -> Bools:
    """`(items, items)` which items may not share a device; `(0, 0)` where all may."""
    pairs = task.constraints.apart_pairs()
    if not pairs:
        return np.zeros((0, 0), dtype=bool)
    position = {table.name: index for index, table in enumerate(task.tables)}
    rivals = np.zeros((len(members),) * 2, dtype=bool)
    for one, other in map(tuple, pairs):
        i, j = owner[position[one]], owner[position[other]]
        rivals[i, j] = rivals[j, i] = True
    return rivals
