"""Turn a catalog into the arrays of the engine, and the engine's solutions back into shards.

A search places items. An item is a table or a colocated group, with the pieces and spreads that its tables share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwright._engine import Problem, Solution, best_order
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.search.engine.catalog import Added, Catalog, row_units
from shardwright.search.units import allowed_devices, rivals_of
from shardwright.sharding.shard import Shard, even_cuts
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology


class Parts:
    """Piece rows picked from a catalog, and behind them merged rows of colocated groups."""

    def __init__(self, catalog: Catalog) -> None:
        self._forms = catalog.forms
        self._merged: list[Ints] = []
        self.rows: list[Ints] = []
        self.units: list[int] = []

    def copy(self, form: int) -> None:
        """Add all pieces of a form."""
        self.rows.append(np.arange(self._forms.first[form], self._forms.first[form + 1]))
        self.units.append(self.rows[-1].size)

    def merge(self, tables: tuple[int, ...]) -> None:
        """Add pieces that hold the same share of the columns of several tables. They have as many units as the gcd of the tables' units."""
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
    """The pieces of each item's column form, then of all other forms; and the catalog's form behind each form.

    For a group, that is the form of its first table.
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
    """The most pieces that an item may have; each piece holds a part of every one of its tables."""
    limits = [task.constraints.of(task.tables[table].name).max_shards for table in tables]
    return min((limit for limit in limits if limit is not None), default=np.iinfo(np.int64).max)


def _allowed(task: Task, members: tuple[tuple[int, ...], ...]) -> Bools:
    """`(items, d)` whether the pinning of its tables lets an item go to a device; `(0, 0)` if nothing is pinned."""
    if not any(limits.devices for limits in task.constraints.tables.values()):
        return np.zeros((0, 0), dtype=bool)
    masks = [allowed_devices(task, task.constraints.of(table.name)) for table in task.tables]
    return np.array([np.logical_and.reduce([masks[table] for table in tables]) for tables in members])


NOTHING = -1
"""No piece, device or spread."""


class Home(NamedTuple):
    """The start plan in the terms of a search: which units of each item the devices hold.

    A device holds the units `[start, start + width)` of an item's form; if it held several ranges, the widest counts.

    Attributes:
        form: `(items,)` form of each item, or -1; `(0,)` without a plan.
        first: `(items + 1,)` where the devices of each item begin; `(0,)` without a plan.
        device: devices that hold a part, ascending for each item.
        width: units they hold.
        start: the first unit they hold.
        unit_ms: `(f,)` ms that a unit of each form costs its receiver; 0 for tables that must be made anew wherever they lie.
        spread_ms: `(spreads,)` ms that taking each spread costs, over all its devices.
        least_ms: `(items,)` least ms that any way of an item costs: some device must receive what no device holds.
    """

    form: Ints
    first: Ints
    device: Ints
    width: Ints
    start: Ints
    unit_ms: Floats
    spread_ms: Floats
    least_ms: Floats


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0)
NO_HOME = Home(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS)
"""No plan to start from."""


class EngineArrays(NamedTuple):
    """What stays the same in a search. Letters: d devices, h hidden units, f forms, r rows of the piece arrays; see `native/problem.hpp`.

    Attributes:
        first: `(f + 1,)` where the pieces of each form begin: one of w units is row `first[form] + w - 1`.
        item: `(f,)` the item that a form cuts.
        next_form: `(f,)` the item's next form; after its last form comes its first. Form i is one of item i.
        equal: `(f,)` whether a piece of w units is w blocks.
        part: `(r + 1,)` this and the next two: what each piece adds to the calls of its device, see `catalog.Added`.
        call: see above.
        vectors: see above.
        bytes: `(r,)` memory of a piece.
        served: `(r, 2)` bytes of values and of ids that its holder serves.
        legal: `(r,)` whether a piece is allowed.
        price: `(r,)` rough ms that a piece adds to its device.
        most: `(items,)` most pieces of an item.
        allowed: `(items, d)` where pieces of an item may go; `(0, 0)` if all may go everywhere.
        rivals: `(items, items)` which items may not share a device; `(0, 0)` if all may.
        spread_first: `(items + 1,)` the spreads of each item.
        spread_range: `(spreads, 2)` where the devices of each spread begin and end.
        spread_device: devices of all spreads; equal sets share their place.
        spread_part: `(spreads + 1,)` this and the next two: what a spread adds to each of its devices.
        spread_call: see above.
        spread_vectors: see above.
        spread_bytes: `(spreads,)` memory on each of its devices.
        spread_served: `(spreads, 2)` as `served`, for each of its devices.
        spread_reduced: `(spreads, 2)` bytes each device sends to reduce gradients, inside a host and between hosts.
        mix: `(2, h)`.
        base: `(h + 2,)` the sums of a call with nothing in it.
        once: `(2,)` ms that a device takes besides its calls. Devices without a piece get them too, which changes no maximum.
        memory: `(d,)` bytes.
        links: `(6,)` see `link_facts`.
    """

    first: Ints
    item: Ints
    next_form: Ints
    equal: Bools
    part: Ints
    call: Ints
    vectors: Floats
    bytes: Ints
    served: Floats
    legal: Bools
    price: Floats
    most: Ints
    allowed: Bools
    rivals: Bools
    spread_first: Ints
    spread_range: Ints
    spread_device: Ints
    spread_part: Ints
    spread_call: Ints
    spread_vectors: Floats
    spread_bytes: Ints
    spread_served: Floats
    spread_reduced: Floats
    mix: Floats
    base: Floats
    once: Floats
    memory: Ints
    links: Floats


@dataclass(frozen=True, eq=False)
class Assembly:
    """A search's arrays, and what its items are.

    Attributes:
        arrays: what stays the same in the search.
        catalog: what the arrays were made from.
        members: `(items,)` tables of each item: one, or a colocated group.
        forms: `(forms,)` the catalog's form behind each form; for a group, that of its first table.
        spread_devices: the ranks of each spread.
        spread_replicated: `(spreads,)` whether its devices hold replicas.
        home: the plan to start from.
    """

    arrays: EngineArrays
    catalog: Catalog
    members: tuple[tuple[int, ...], ...]
    forms: Ints
    spread_devices: tuple[Ints, ...]
    spread_replicated: Bools
    home: Home = NO_HOME

    @cached_property
    def problem(self) -> Problem:
        """The arrays as the engine holds them."""
        home = {f"home_{name}": array for name, array in self.home._asdict().items()}
        return Problem(**self.arrays._asdict(), **home)

    @property
    def task(self) -> Task:
        """The task whose tables are placed."""
        return self.catalog.task

    def tables_of(self, item: int) -> list[Table]:
        """The tables of an item."""
        return [self.task.tables[table] for table in self.members[item]]

    @property
    def rows(self) -> Bools:
        """`(forms,)` whether each form cuts rows."""
        found: Bools = self.catalog.forms.rows[self.forms]
        return found

    @cached_property
    def whole(self) -> Ints:
        """`(items,)` the row of each item's whole piece."""
        found: Ints = self.arrays.first[1 : self.arrays.most.size + 1] - 1
        return found

    def units(self, form: int) -> int:
        """How many units a form cuts its item into."""
        return int(self.arrays.first[form + 1] - self.arrays.first[form])

    def forms_of(self, item: int) -> list[int]:
        """All forms of an item."""
        found = [item]
        while (form := int(self.arrays.next_form[found[-1]])) != item:
            found.append(form)
        return found

    def spreads_of(self, item: int) -> range:
        """All spreads of an item."""
        return range(int(self.arrays.spread_first[item]), int(self.arrays.spread_first[item + 1]))

    def spread_shards(self, table: Table, spread: int) -> list[Shard]:
        """A table in a spread of its item: replicas on the spread's devices, or equal row blocks."""
        ranks = self.spread_devices[spread].tolist()
        if self.spread_replicated[spread]:
            return [Shard.whole(table, *ranks)]
        blocks = zip(pairwise(even_cuts(table.rows, len(ranks))), ranks, strict=True)
        return [Shard(table.name, rows, (0, table.dim), (rank,)) for rows, rank in blocks]


def assemble(catalog: Catalog, cost_model: CostModel, vector_price: Floats, links_price: Floats) -> Assembly:
    """The arrays of a search over a catalog.

    Args:
        catalog: the ways to make every table.
        cost_model: its head prices devices.
        vector_price: `(calls, h + 2)` rough ms a unit of each sum.
        links_price: `(2,)` rough ms a byte of values and of ids.
    """
    task = catalog.task
    members = members_of(task)
    owner = {table: item for item, tables in enumerate(members) for table in tables}
    parts, forms = pieces_of(catalog, members)
    own, memory, served, legal = parts.arrays()
    item = np.array([owner[int(table)] for table in catalog.forms.table[forms]], dtype=np.int64)
    spreads = spreads_of(catalog, members)
    ranges, devices = _device_ranges(spreads.devices)
    arrays = EngineArrays(
        first=np.concatenate([[0], np.cumsum(parts.units)]).astype(np.int64),
        item=item,
        next_form=_rings(item),
        equal=catalog.forms.equal[forms],
        part=own.part,
        call=own.call,
        vectors=own.vectors,
        bytes=memory,
        served=np.ascontiguousarray(served),
        legal=legal,
        price=own.priced(vector_price) + served @ links_price,
        most=np.array([most_pieces(task, tables) for tables in members], dtype=np.int64),
        allowed=_allowed(task, members),
        rivals=rivals_of(task, [[task.tables[index].name for index in group] for group in members]),
        spread_first=np.searchsorted(spreads.item, np.arange(len(members) + 1)).astype(np.int64),
        spread_range=ranges,
        spread_device=devices,
        spread_part=spreads.added.part,
        spread_call=spreads.added.call,
        spread_vectors=spreads.added.vectors,
        spread_bytes=spreads.bytes,
        spread_served=spreads.served,
        spread_reduced=spreads.reduced,
        mix=np.ascontiguousarray(cost_model.pricing.mix),
        base=cost_model.pricing.base,
        once=cost_model.pricing.once,
        memory=np.array(task.topology.memory_bytes, dtype=np.int64),
        links=link_facts(task.topology),
    )
    return Assembly(arrays, catalog, members, forms, spreads.devices, np.array(spreads.replicated, dtype=bool))


def link_facts(topology: Topology) -> Floats:
    """`(6,)` devices, devices a host, ms a byte inside and between hosts, latency in ms inside and between hosts."""
    intra, inter = topology.link_bandwidth
    speeds = 1e3 / intra, 1e3 / inter
    return np.array([topology.devices, topology.devices_per_host, *speeds, *topology.link_latency_ms])


def _rings(item: Ints) -> Ints:
    """`(forms,)` the next form of the same item; after its last form comes its first."""
    order = np.argsort(item, kind="stable")
    result = np.empty_like(order)
    for forms in np.split(order, np.flatnonzero(np.diff(item[order])) + 1):
        result[forms] = np.roll(forms, -1)
    return result


def _device_ranges(sets: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """`(sets, 2)` where the devices of each set lie in one array, and that array; equal sets are one object and share their place."""
    begin, place, parts = 0, {}, [np.zeros(0, dtype=np.int64)]
    for devices in sets:
        if id(devices) not in place:
            place[id(devices)] = (begin, begin + devices.size)
            parts.append(devices)
            begin += devices.size
    ranges = np.array([place[id(devices)] for devices in sets], dtype=np.int64).reshape(len(sets), 2)
    return ranges, np.concatenate(parts)


def shards_of(assembly: Assembly, solution: Solution) -> list[Shard]:
    """The shards of a full solution; devices keep the units that they held in the start plan, if there is one."""
    shards: list[Shard] = []
    for item, spread in enumerate(solution.spread_of.tolist()):
        if spread >= 0:
            for table in assembly.tables_of(item):
                shards += assembly.spread_shards(table, spread)
    form_of, width_of, device_of = solution.form, solution.width, solution.device
    item_of = assembly.arrays.item[form_of]
    order = np.lexsort((device_of, item_of))
    for pieces in np.split(order, np.flatnonzero(np.diff(item_of[order])) + 1) if order.size else ():
        form, devices, widths = int(form_of[pieces[0]]), device_of[pieces], width_of[pieces]
        starts = first_units(assembly.home, int(item_of[pieces[0]]), form, devices, widths)
        for device, start, stop in zip(devices.tolist(), starts.tolist(), (starts + widths).tolist(), strict=True):
            shards += piece_shards(assembly, form, (start, stop), device)
    return shards


def first_units(home: Home, item: int, form: int, devices: Ints, widths: Ints) -> Ints:
    """The first unit of each piece of an item; the pieces cover its units without gaps.

    As far as possible, devices keep the units that they held before.

    Args:
        home: what devices held before.
        item: the item.
        form: form of its pieces.
        devices: `(n,)` the device of each piece, no two equal.
        widths: `(n,)` units of each piece.
    """
    order = np.arange(widths.size)
    if home.first.size and home.form[item] == form:
        held = {
            int(home.device[place]): (int(home.start[place]), int(home.start[place] + home.width[place]))
            for place in range(int(home.first[item]), int(home.first[item + 1]))
        }
        ranges = [held.get(device, (0, 0)) for device in devices.tolist()]
        order = best_order(widths.tolist(), [start for start, _ in ranges], [stop for _, stop in ranges])
    result = np.empty_like(widths)
    result[order] = np.concatenate([[0], np.cumsum(widths[order])[:-1]])
    return result


def piece_shards(assembly: Assembly, form: int, units: tuple[int, int], device: int) -> list[Shard]:
    """The blocks of units `[start, stop)` of a form, for each table of its item."""
    if assembly.rows[form]:
        table = assembly.task.tables[assembly.catalog.forms.table[assembly.forms[form]]]
        start, stop = (table.rows * unit // row_units(table.rows) for unit in units)
        return [Shard(table.name, (start, stop), (0, table.dim), (device,))]
    whole, members = assembly.units(form), assembly.members[assembly.arrays.item[form]]
    shards = []
    for index in members:
        table = assembly.task.tables[index]
        own = assembly.forms[form] if len(members) == 1 else index
        start, stop = (unit * table.dim // whole for unit in units)
        equal = assembly.catalog.forms.equal[own] and stop - start < table.dim
        width = table.dim // int(assembly.catalog.forms.units[own]) if equal else stop - start
        cuts = range(start, stop, width)
        shards += [Shard(table.name, (0, table.rows), (cut, cut + width), (device,)) for cut in cuts]
    return shards
