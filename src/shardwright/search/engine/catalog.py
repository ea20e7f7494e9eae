"""The catalog: every way to make a task's tables, as arrays; and the arrays of the engine, made from it.

A table can lie in single blocks, each on one device: column blocks (of multiples of 4 columns), or row blocks on a grid of `row_units`
parts. Or it can be *spread*: cut into equal row blocks over a set of devices, replicated on every device, or cut into column blocks whose
rows are each dealt to a host (a grid). Colocated tables may each be spread in a way of its own over the same devices, also in equal column
blocks. The bound and the searches choose from these ways.

Terms. An *item* is the unit that a search places: a table, or a colocated group with the pieces and spreads that its tables share. A *form*
is a way to cut an item into single blocks: form i cuts item i into columns, later forms cut into rows, or into another number of equal
column blocks. A *piece* is a device's part of a form: w units, row `first[form] + w - 1` of the piece arrays. A piece is one block, or w
blocks of a unit each if a table must have equal columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from shardwright._engine import Problem, cheapest_widths
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.blocks import Added, BlockCosts, Blocks, PieceCosts, Spread, Tables, priced, spread_links
from shardwright.cost.collectives import LinkFacts, Way, dealt_way, set_ms, set_of
from shardwright.cost.model import CostModel, PricingHead
from shardwright.search.engine.colocated import item_spreads
from shardwright.search.units import rivals_of
from shardwright.sharding.ways import (
    Dealt,
    allowed_devices,
    column_units,
    columns_on_all,
    dealt_ways,
    free_grid_counts,
    row_place,
    row_units,
)
from shardwright.task.table import Table
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Forms:
    """f forms and their pieces.

    Attributes:
        table: `(f,)` the table that a form cuts.
        rows: `(f,)` whether it cuts rows.
        columns: `(f,)` equal column blocks, each of which the form cuts in the same way; 1 except for the rows of grids.
        searched: `(f,)` whether its pieces may lie on any devices. A search leaves out forms of rows whose blocks may not; the bound counts
            them.
        equal: `(f,)` whether a piece of w units is w blocks; the whole table is one block, unless it may not be table_wise.
        first: `(f + 1,)` index of the first piece of each form.
        pieces: a block of every piece; for row pieces one with the most rows.
        costs: addition of each piece to its device.
        legal: `(pieces,)` whether constraints and the memory of at least one device leave room for it.
    """

    table: Ints
    rows: Bools
    columns: Ints
    searched: Bools
    equal: Bools
    first: Ints
    pieces: Blocks
    costs: BlockCosts
    legal: Bools

    @property
    def units(self) -> Ints:
        """`(f,)` how many units each form has."""
        return np.diff(self.first)

    @cached_property
    def form(self) -> Ints:
        """`(pieces,)` the form of each piece."""
        return np.repeat(np.arange(self.table.size), self.units)

    @cached_property
    def width(self) -> Ints:
        """`(pieces,)` units of each piece."""
        return np.arange(self.form.size) - self.first[self.form] + 1

    def cheapest(self, price: Floats, fewest: Ints | None = None) -> tuple[Floats, Ints]:
        """The cheapest composition of each form.

        Args:
            price: `(pieces,)` ms of a piece; infinite if it may not be used.
            fewest: `(f,)` fewest pieces of a form; ignored for grids, whose column blocks may share the pieces out in any way.

        Returns:
            `(f,)` ms, and `(pieces,)` how often the composition uses each piece, over all column blocks.
        """
        if fewest is not None:
            fewest = np.where(self.columns > 1, 1, fewest)
        of_form, uses = cheapest_widths(self.first, price, fewest)
        return of_form * self.columns, uses * self.columns[self.form]


@dataclass(frozen=True, eq=False)
class Spreads:
    """s ways to put a table on many devices at once.

    Attributes:
        table: `(s,)` the table, ascending.
        dealt: each spread; equal sets of devices are one array.
        blocks: a block that each of its devices holds; for row blocks the largest.
        costs: addition of the blocks of a device to it.
        ways: how the outputs of each reach the devices.
        links: addition of each to the links of its devices.
    """

    table: Ints
    dealt: tuple[Dealt, ...]
    blocks: Blocks
    costs: BlockCosts
    ways: tuple[Way, ...]
    links: Spread

    @cached_property
    def copies(self) -> Ints:
        """The ways in which every device holds all of a table."""
        return np.flatnonzero([way.copies for way in self.dealt])


@dataclass(frozen=True, eq=False)
class Catalog:
    """The ways to make every table on its own.

    Attributes:
        task: the task.
        tables: its tables as columns.
        forms: a column form of each table in order, then the others.
        spreads: the ways to spread each table.
    """

    task: Task
    tables: Tables
    forms: Forms
    spreads: Spreads


def make_catalog(task: Task, cost_model: CostModel) -> Catalog:
    """Make the catalog of a task: all ways that the constraints and the memory of single devices allow."""
    tables = Tables(task, cost_model)
    roomy = largest_memory(task)
    return Catalog(task, tables, _forms(task, tables, roomy), _spreads(task, tables))


def devices_of(task: Task, table: int) -> Ints:
    """Ranks that a table's pinning lets it use."""
    return np.flatnonzero(allowed_devices(task.topology, task.constraints.of(task.tables[table].name)))


def largest_memory(task: Task) -> Ints:
    """`(tables,)` memory of the roomiest device that each table may use."""
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    result = np.full(len(task.tables), memory.max())
    for index, table in enumerate(task.tables):
        if task.constraints.of(table.name).devices:
            result[index] = memory[devices_of(task, index)].max()
    return result


def _forms(task: Task, tables: Tables, roomy: Ints) -> Forms:
    limits = [task.constraints.of(table.name) for table in task.tables]
    columns = [column_units(table, limit) for table, limit in zip(task.tables, limits, strict=True)]
    places = [
        row_place(limit, task.topology, devices_of(task, index)) if table.rows > 1 else None
        for index, (table, limit) in enumerate(zip(task.tables, limits, strict=True))
    ]
    others = [
        (index, units, in_rows, of_grid)
        for index, table in enumerate(task.tables)
        for units, in_rows, of_grid in (
            *(((row_units(table.rows), True, 1),) if places[index] else ()),
            *((count, False, 1) for count in columns[index][1:]),
            *(
                (row_units(table.rows), True, count)
                for count in free_grid_counts(table, limits[index])
                if devices_of(task, index).size > 1
            ),
        )
    ]
    table = np.array([*range(len(columns)), *(index for index, *_ in others)], dtype=np.int64)
    units = np.array([*(counts[0] for counts in columns), *(units for _, units, *_ in others)], dtype=np.int64)
    rows = np.array([*(False for _ in columns), *(in_rows for _, _, in_rows, _ in others)], dtype=bool)
    of_grid = np.array([*(1 for _ in columns), *(count for *_, count in others)], dtype=np.int64)
    searched = ~rows | np.array([place == "anywhere" for place in places], dtype=bool)[table] & (of_grid == 1)
    # The two halves of a short table on the devices of a host, or on all, would be a spread.
    searched &= ~(rows & (units == 2) & (2 in (task.topology.devices_per_host, task.topology.devices)))
    equal = np.array([limit.equal_columns for limit in limits], dtype=bool)[table] & ~rows
    first = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
    uncut = np.array([limit.allows("table_wise") for limit in limits], dtype=bool)[table]
    pieces, blocks = _pieces(tables, table, units, rows, of_grid, equal & (units > 1), uncut)
    costs = _costs(tables, pieces, blocks)
    whole = first[1:] - 1
    legal = costs.bytes <= roomy[pieces.table]
    legal[whole] &= uncut | (equal & (units > 1)) | (of_grid > 1)  # other column blocks of the grid may have rows cut
    least = np.array([limit.min_columns or 1 for limit in limits])[pieces.table]
    legal &= pieces.dim >= np.minimum(least, tables.dim[pieces.table])
    return Forms(table, rows, of_grid, searched, equal, first, pieces, costs, legal)


def _pieces(
    tables: Tables, table: Ints, units: Ints, rows: Bools, columns: Ints, equal: Bools, uncut: Bools
) -> tuple[Blocks, Ints]:
    """A block of every piece of some forms, and how many such blocks the piece is. `uncut`: whether the table may be one block."""
    form = np.repeat(np.arange(table.size), units)
    wide = np.arange(form.size) - np.repeat(np.cumsum(units) - units, units) + 1
    of, parts, in_rows = table[form], units[form], rows[form]
    several = equal[form] & ((wide < parts) | ~uncut[form])
    dim = np.where(in_rows, tables.dim[of] // columns[form], tables.dim[of] * np.where(several, 1, wide) // parts)
    height = np.where(in_rows, -(-tables.rows[of] * wide // parts), tables.rows[of])
    return Blocks(of, height, dim, np.ones_like(of)), np.where(several, wide, 1)


def _costs(tables: Tables, pieces: Blocks, blocks: Ints) -> BlockCosts:
    """The costs that each piece adds to its device: those of its block, times its number of blocks."""
    single = np.flatnonzero(blocks == 1)
    costs = tables.costs(pieces.part(single))
    if single.size == blocks.size:
        return costs
    source = (np.cumsum(blocks == 1) - 1)[np.arange(blocks.size) - (blocks - 1)]  # a form's first piece is one block
    return costs.take(source, blocks)


def _spreads(task: Task, tables: Tables) -> Spreads:
    grouped = {name for group in task.constraints.colocated_groups() for name in group}
    dealt = [
        (index, way)
        for index, table in enumerate(task.tables)
        for limits in (task.constraints.of(table.name),)
        for way in (
            *dealt_ways(table, limits, task.topology, index),
            *(columns_on_all(table, limits, task.topology) if table.name in grouped else ()),
        )
    ]
    ways = [way for _, way in dealt]
    table, columns, on_each, replicas = (
        np.array(values, dtype=np.int64)
        for values in (
            [index for index, _ in dealt],
            [way.columns for way in ways],
            [way.per_device for way in ways],
            [way.devices.size if way.copies else 1 for way in ways],
        )
    )
    rows = np.array([way.block_rows(task.tables[index]) for index, way in dealt], dtype=np.int64)
    blocks = Blocks(table, rows, tables.dim[table] // columns, replicas)
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    costs = tables.costs(blocks)
    room = np.array([memory[way.devices].min() for way in ways], dtype=np.int64)
    fits = np.flatnonzero(costs.bytes * on_each <= room)
    blocks, costs = blocks.part(fits), costs.take(fits, on_each[fits])
    shared: dict[bytes, Ints] = {}  # equal sets are one array
    ways = [
        replace(way, devices=shared.setdefault(way.devices.tobytes(), way.devices))
        for way in map(ways.__getitem__, fits)
    ]
    outputs = tuple(_outputs(task, int(index), way) for index, way in zip(table[fits], ways, strict=True))
    links = spread_links(task, outputs, costs, blocks.rows * blocks.dim)
    return Spreads(table[fits], tuple(ways), blocks, costs, outputs, links)


def _outputs(task: Task, table: int, way: Dealt) -> Way:
    """The way in which the outputs of each spread reach the devices; see `cost.collectives.way_of`."""
    of_host = way.devices[: way.devices.size // way.hosts].tolist()
    return "data_parallel" if way.copies else dealt_way(task, task.tables[table], of_host)


Members: TypeAlias = tuple[tuple[int, ...], ...]
"""Tables of each item."""


def members_of(task: Task) -> Members:
    """Tables of each item: single ones, then colocated groups."""
    position = {table.name: index for index, table in enumerate(task.tables)}
    groups = [tuple(sorted(position[name] for name in group)) for group in task.constraints.colocated_groups()]
    grouped = {table for group in groups for table in group}
    return (*((index,) for index in range(len(task.tables)) if index not in grouped), *sorted(groups))


def _item_pieces(catalog: Catalog, members: Members) -> tuple[Ints, PieceCosts, Bools, Ints]:
    """The pieces of each item's column form, then of all other forms.

    A piece of a group holds the same share of the columns of all its tables. Its form has as many units as the gcd of the tables' units.

    Returns:
        `(forms + 1,)` the first piece of each form, the pieces' costs, whether they are legal, and the catalog's form behind each form.
    """
    forms, first, tables = catalog.forms, catalog.forms.first, len(catalog.task.tables)
    single = [group[0] for group in members if len(group) == 1]
    others = tables + np.flatnonzero(np.isin(forms.table[tables:], single) & forms.searched[tables:])
    behind = np.concatenate([[group[0] for group in members], others]).astype(np.int64)
    if len(single) == tables and forms.searched.all():
        return first, forms.costs.single(), forms.legal, behind
    rows = [np.arange(first[table], first[table + 1]) for table in single]
    merged: list[Ints] = []
    for group in (list(group) for group in members if len(group) > 1):
        own = forms.units[group]
        units = int(np.gcd.reduce(own))
        rows.append(first[-1] + len(merged) + np.arange(units))  # merged pieces come behind all others
        merged += [first[group] + width * own // units - 1 for width in range(1, units + 1)]
    rows += [np.arange(first[form], first[form + 1]) for form in others]
    order = np.concatenate(rows)
    costs = forms.costs.single().then(forms.costs.of_groups(merged)).take(order)
    legal = np.concatenate([forms.legal, np.array([forms.legal[pieces].all() for pieces in merged], dtype=bool)])[order]
    return np.cumsum([0, *(of_form.size for of_form in rows)]), costs, legal, behind


def most_pieces(task: Task, tables: tuple[int, ...]) -> int:
    """The most pieces that an item may have; each piece holds a part of every one of its tables."""
    limits = [task.constraints.of(task.tables[table].name).max_shards for table in tables]
    return min((limit for limit in limits if limit is not None), default=np.iinfo(np.int64).max)


def _allowed(task: Task, members: Members) -> Bools:
    """`(items, d)` whether the pinning of its tables lets an item go to a device; `(0, 0)` if nothing is pinned."""
    if not any(limits.devices for limits in task.constraints.tables.values()):
        return np.zeros((0, 0), dtype=bool)
    masks = [allowed_devices(task.topology, task.constraints.of(table.name)) for table in task.tables]
    return np.array([np.logical_and.reduce([masks[table] for table in tables]) for tables in members])


NOTHING = -1
"""No piece, device or spread."""


class Home(NamedTuple):
    """The start plan in the terms of a search: which units of each item the devices hold.

    A device holds the units `[start, start + width)` of an item's form; if it held several ranges, the widest counts.

    Attributes:
        form: `(items,)` form of each item, or -1; `(0,)` without a plan.
        first: `(items + 1,)` index of the first device of each item; `(0,)` without a plan.
        device: devices that hold a part, ascending for each item.
        width: units they hold.
        start: the first unit they hold.
        unit_ms: `(f,)` ms that a unit of each form costs its receiver; 0 for tables that must be made anew wherever they lie.
        spread_ms: `(spreads,)` ms that taking each spread costs, over all its devices.
        least_ms: `(items,)` least ms that any way of an item costs: some device must receive the parts that no device holds.
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


class SpreadArrays(NamedTuple):
    """The spreads of a search's items, n in all; see `native/problem.hpp`.

    Attributes:
        first: `(items + 1,)` the spreads of each item.
        range: `(n, 2)` first and last index of the devices of each spread, half-open.
        device: devices of all spreads; equal sets share their place.
        added: additions of each to each of its devices.
        bytes: `(n,)` memory on each of its devices.
        served: `(n, 3)` bytes of values to near and to far devices and of ids that each of its devices serves by all-to-alls.
        apart: `(n, 2)` ms of each device's other collectives, forward and backward.
        sets: `(n,)` as `EngineArrays.sets`.
    """

    first: Ints
    range: Ints
    device: Ints
    added: Added
    bytes: Ints
    served: Floats
    apart: Floats
    sets: Ints


class EngineArrays(NamedTuple):
    """The constant arrays of a search. Letters: d devices, f forms, r rows of the piece arrays; see `Problem` in `native/problem.hpp`.

    Attributes:
        first: `(f + 1,)` index of the first piece of each form: one of w units is row `first[form] + w - 1`.
        item: `(f,)` the item that a form cuts.
        next_form: `(f,)` the item's next form; after its last form comes its first. Form i is one of item i.
        equal: `(f,)` whether a piece of w units is w blocks.
        added: additions of each piece to its device.
        bytes: `(r,)` memory of a piece.
        served: `(r, 2)` bytes of values and of ids that its holder serves.
        legal: `(r,)` whether a piece is allowed.
        price: `(r,)` rough ms that a piece adds to its device.
        sets: `(items,)` the sets of collectives that an item in pieces needs, a bit each; see `cost.collectives`.
        set_ms: ms of the latencies of each set; see `cost.collectives.set_ms`.
        most: `(items,)` most pieces of an item.
        allowed: `(items, d)` where pieces of an item may go; `(0, 0)` if all may go everywhere.
        rivals: `(items, items)` which items may not share a device; `(0, 0)` if all may.
        spreads: the spreads.
        head: prices calls. Devices without a piece get its `once` too, which changes no maximum.
        memory: `(d,)` bytes.
        links: prices the links.
    """

    first: Ints
    item: Ints
    next_form: Ints
    equal: Bools
    added: Added
    bytes: Ints
    served: Floats
    legal: Bools
    price: Floats
    sets: Ints
    set_ms: Floats
    most: Ints
    allowed: Bools
    rivals: Bools
    spreads: SpreadArrays
    head: PricingHead
    memory: Ints
    links: LinkFacts


@dataclass(frozen=True, eq=False)
class Assembly:
    """A search's arrays, and the meaning of its items.

    Attributes:
        arrays: the constant arrays of the search.
        catalog: the source of the arrays.
        members: `(items,)` tables of each item: one, or a colocated group.
        forms: `(forms,)` the catalog's form behind each form; for a group, that of its first table.
        dealt: each spread, for each table of its item; all on the same devices.
        home: the plan to start from.
    """

    arrays: EngineArrays
    catalog: Catalog
    members: Members
    forms: Ints
    dealt: tuple[tuple[Dealt, ...], ...]
    home: Home = NO_HOME

    @cached_property
    def problem(self) -> Problem:
        """The arrays as the engine holds them."""
        return Problem(self.arrays, self.home)

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
        cuts_rows: Bools = self.catalog.forms.rows[self.forms]
        return cuts_rows

    @cached_property
    def spread_item(self) -> Ints:
        """`(spreads,)` the item of each spread."""
        return np.repeat(np.arange(len(self.members)), np.diff(self.arrays.spreads.first))

    @cached_property
    def spread_copies(self) -> Bools:
        """`(spreads,)` whether the devices of each spread hold replicas only."""
        return np.array([all(way.copies for way in ways) for ways in self.dealt], dtype=bool)

    @cached_property
    def whole(self) -> Ints:
        """`(items,)` the row of each item's whole piece."""
        whole: Ints = self.arrays.first[1 : self.arrays.most.size + 1] - 1
        return whole

    def units(self, form: int) -> int:
        """Number of units into which a form cuts its item."""
        return int(self.arrays.first[form + 1] - self.arrays.first[form])

    def forms_of(self, item: int) -> list[int]:
        """All forms of an item."""
        forms = [item]
        while (form := int(self.arrays.next_form[forms[-1]])) != item:
            forms.append(form)
        return forms

    def spreads_of(self, item: int) -> range:
        """All spreads of an item."""
        return range(int(self.arrays.spreads.first[item]), int(self.arrays.spreads.first[item + 1]))


def assemble(
    catalog: Catalog, cost_model: CostModel, vector_price: Floats, links_price: Floats, weights: Floats | None = None
) -> Assembly:
    """The arrays of a search over a catalog.

    Args:
        catalog: the ways to make every table.
        cost_model: its head prices devices.
        vector_price: `(calls, h + 2)` rough ms a unit of each sum.
        links_price: `(3,)` rough ms a byte of values to near and to far devices, and of ids.
        weights: `(3,)` weights of values, gradients and ids that dense layers hide in part; see `cost.collectives.set_ms`.
    """
    task = catalog.task
    members = members_of(task)
    owner = {table: item for item, tables in enumerate(members) for table in tables}
    first, own, legal, forms = _item_pieces(catalog, members)
    item = np.array([owner[int(table)] for table in catalog.forms.table[forms]], dtype=np.int64)
    spreads = catalog.spreads
    rough = priced(spreads.costs.vectors, spreads.costs.call, vector_price) + spreads.links.served @ links_price
    rough += spreads.links.apart.sum(axis=1) / task.topology.devices
    spread_item, shared = item_spreads(spreads.table, spreads.dealt, members, rough)
    dealt = tuple(tuple(spreads.dealt[way] for way in group) for group in shared)
    ranges, devices = _device_ranges([ways[0].devices for ways in dealt])

    def summed(values: Floats) -> Floats:
        rows = [values[group].sum(axis=0) for group in shared]
        return np.array(rows).reshape(len(rows), *values.shape[1:])

    arrays = EngineArrays(
        first=first,
        item=item,
        next_form=_rings(item),
        equal=catalog.forms.equal[forms],
        added=own.added,
        bytes=own.bytes,
        served=np.ascontiguousarray(own.served),
        legal=legal,
        price=own.added.priced(vector_price) + own.served @ [links_price[:2].sum(), links_price[2]],
        sets=_bits(task, [[("all_to_all", table) for table in tables] for tables in members]),
        set_ms=set_ms(task, weights),
        most=np.array([most_pieces(task, tables) for tables in members], dtype=np.int64),
        allowed=_allowed(task, members),
        rivals=rivals_of(task, [[task.tables[index].name for index in group] for group in members]),
        spreads=SpreadArrays(
            first=np.searchsorted(spread_item, np.arange(len(members) + 1)).astype(np.int64),
            range=ranges,
            device=devices,
            added=Added.of_groups(spreads.costs.call, spreads.costs.vectors, shared),
            bytes=summed(spreads.costs.bytes.astype(np.float64)).astype(np.int64),
            served=summed(spreads.links.served),
            apart=summed(spreads.links.apart),
            sets=_bits(task, [[(spreads.ways[way], int(spreads.table[way])) for way in group] for group in shared]),
        ),
        head=cost_model.pricing.head,
        memory=np.array(task.topology.memory_bytes, dtype=np.int64),
        links=LinkFacts.of(task),
    )
    return Assembly(arrays, catalog, members, forms, dealt)


def _bits(task: Task, needs: Sequence[Sequence[tuple[Way, int]]]) -> Ints:
    """`(n,)` the sets of collectives that n things need, a bit each, given the ways of their tables."""
    sets = [{set_of(way, task.tables[table].pooled) for way, table in ways} for ways in needs]
    return np.array([sum(1 << kind for kind in needed) for needed in sets], dtype=np.int64)


def _rings(item: Ints) -> Ints:
    """`(forms,)` the next form of the same item; after its last form comes its first."""
    order = np.argsort(item, kind="stable")
    result = np.empty_like(order)
    for forms in np.split(order, np.flatnonzero(np.diff(item[order])) + 1):
        result[forms] = np.roll(forms, -1)
    return result


def _device_ranges(sets: Sequence[Ints]) -> tuple[Ints, Ints]:
    """`(sets, 2)` where the devices of each set lie in one array, and that array; equal sets are one object and share their place."""
    begin, place, parts = 0, {}, [np.zeros(0, dtype=np.int64)]
    for devices in sets:
        if id(devices) not in place:
            place[id(devices)] = (begin, begin + devices.size)
            parts.append(devices)
            begin += devices.size
    ranges = np.array([place[id(devices)] for devices in sets], dtype=np.int64).reshape(len(sets), 2)
    return ranges, np.concatenate(parts)
