"""Everything that can be made of the tables of a task, as arrays: what the bound and every search choose from.

A table can lie in single blocks, each on one device: column blocks (of multiples of 4 columns), or row blocks on a grid of `row_units`
parts. Or it can be *spread*: cut into equal row blocks over a set of devices, or replicated on every device.

Terms: an *item* is a table, or a colocated group of tables; a *form* is a way to cut an item into single blocks (form i cuts item i into
columns, later forms cut into rows, or into another number of equal column blocks); a *piece* is what a device holds of a form, w units of
it, row `first[form] + w - 1` of the piece arrays. A piece is one block, or w blocks of a unit where a table must have equal columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.search.cuts import equal_blocks, row_block_devices, unit_width
from shardwright.search.engine.blocks import BlockCosts, Blocks, Tables
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

ROW_UNITS = 16
_HOSTS = 8  # hosts that a table of equal row blocks chooses between: enough to balance, few enough for 1,000 devices
_FEWEST_ROWS = 64  # a row unit has so many at least: blocks that differ by a row then cost the same to 2%


@dataclass(frozen=True, eq=False)
class Forms:
    """f forms and their pieces.

    Attributes:
        table: `(f,)` the table that a form cuts.
        rows: `(f,)` whether it cuts rows.
        equal: `(f,)` whether a piece of w units, the whole table aside, is w blocks.
        first: `(f + 1,)` where the pieces of each form begin.
        pieces: a block of every piece; of row pieces those with the most rows.
        costs: what each piece adds to its device.
        legal: `(pieces,)` whether constraints and the memory of at least one device leave room for it.
    """

    table: Ints
    rows: Bools
    equal: Bools
    first: Ints
    pieces: Blocks
    costs: BlockCosts
    legal: Bools

    @property
    def units(self) -> Ints:
        """`(f,)` width of each form."""
        return np.diff(self.first)


@dataclass(frozen=True, eq=False)
class Spreads:
    """s ways to put a table on many devices at once.

    Attributes:
        table: `(s,)` the table, ascending.
        devices: of each, the ranks that hold a part; equal sets are one array.
        replicated: `(s,)` whether every device holds all of it, rather than a row block.
        blocks: the block that each of its devices holds; of row blocks the largest.
        costs: what it adds to each of its devices.
        reduced: `(s, 2)` bytes that each of its devices sends to reduce gradients, inside a host and between hosts.
    """

    table: Ints
    devices: tuple[Ints, ...]
    replicated: Bools
    blocks: Blocks
    costs: BlockCosts
    reduced: Floats


@dataclass(frozen=True, eq=False)
class Catalog:
    """What can be made of every table on its own.

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
    """All that the constraints and the memory of single devices leave of a task's tables."""
    tables = Tables(task, cost_model)
    roomy = largest_memory(task)
    return Catalog(task, tables, _forms(task, tables, roomy), _spreads(task, tables))


def column_units(table: Table, limits: TableConstraint) -> list[int]:
    """Units of each column form of a table; one form of one unit where it may not be cut."""
    if not limits.allows("column_wise") or (limits.max_shards or 2) < 2:
        return [1]
    if limits.equal_columns:
        return equal_blocks(table, limits) or [1]
    return [table.dim // unit_width(table, limits)]


def row_units(rows: int) -> int:
    """Parts that row blocks are made of: 16, or halves where the blocks of a finer grid would differ too much by a row."""
    return ROW_UNITS if rows >= ROW_UNITS * _FEWEST_ROWS else 2


def devices_of(task: Task, table: int) -> Ints:
    """Ranks that a table may use by its pinning."""
    pinned = task.constraints.of(task.tables[table].name).devices
    return np.array(sorted(set(pinned)), dtype=np.int64) if pinned else np.arange(task.topology.devices)


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
    others = [
        (index, units, in_rows)
        for index, table in enumerate(task.tables)
        for units, in_rows in (
            *(((row_units(table.rows), True),) if _may_cut_rows(task, index) else ()),
            *((count, False) for count in columns[index][1:]),
        )
    ]
    table = np.array([*range(len(columns)), *(index for index, *_ in others)], dtype=np.int64)
    units = np.array([*(counts[0] for counts in columns), *(units for _, units, _ in others)], dtype=np.int64)
    rows = np.array([*(False for _ in columns), *(in_rows for *_, in_rows in others)], dtype=bool)
    equal = np.array([limit.equal_columns for limit in limits], dtype=bool)[table] & ~rows
    first = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
    pieces, blocks = _pieces(tables, table, units, rows, equal)
    costs = _costs(tables, pieces, blocks)
    whole = first[1:] - 1
    allowed = np.array([limit.allows("table_wise") for limit in limits])
    legal = costs.bytes <= roomy[pieces.table]
    legal[whole] &= allowed[table]
    least = np.array([limit.min_columns or 1 for limit in limits])[pieces.table]
    legal &= pieces.dim >= np.minimum(least, tables.dim[pieces.table])
    return Forms(table, rows, equal, first, pieces, costs, legal)


def _may_cut_rows(task: Task, index: int) -> bool:
    """Whether single row blocks may lie on any devices: all on one host makes the plan table_row_wise, so that must be allowed too."""
    table = task.tables[index]
    limit = task.constraints.of(table.name)
    kinds = limit.allows("row_wise") and (task.topology.hosts == 1 or limit.allows("table_row_wise"))
    if limit.equal_rows or not kinds or limit.max_shards == 1:
        return False
    return task.topology.devices > 1 and table.rows > 1


def _pieces(tables: Tables, table: Ints, units: Ints, rows: Bools, equal: Bools) -> tuple[Blocks, Ints]:
    """A block of every piece of some forms, and how many such blocks the piece is."""
    form = np.repeat(np.arange(table.size), units)
    wide = np.arange(form.size) - np.repeat(np.cumsum(units) - units, units) + 1
    of, parts, in_rows = table[form], units[form], rows[form]
    several = equal[form] & (wide < parts)
    dim = np.where(in_rows, tables.dim[of], tables.dim[of] * np.where(several, 1, wide) // parts)
    height = np.where(in_rows, -(-tables.rows[of] * wide // parts), tables.rows[of])
    return Blocks(of, height, dim, np.ones_like(of)), np.where(several, wide, 1)


def _costs(tables: Tables, pieces: Blocks, blocks: Ints) -> BlockCosts:
    """What each piece adds to its device, which is so many times what its block does."""
    single = np.flatnonzero(blocks == 1)
    costs = tables.costs(pieces.part(single))
    if single.size == blocks.size:
        return costs
    source = (np.cumsum(blocks == 1) - 1)[np.arange(blocks.size) - (blocks - 1)]  # a form's first piece is one block
    vectors, served = costs.vectors[source] * blocks[:, None], costs.served[source] * blocks[:, None]
    return BlockCosts(costs.call[source], vectors, costs.bytes[source] * blocks, served)


def _spreads(task: Task, tables: Tables) -> Spreads:
    everyone = np.arange(task.topology.devices)
    shared: dict[bytes, Ints] = {}
    found = [
        (index, ranks if ranks is everyone else shared.setdefault(ranks.tobytes(), ranks), copies)
        for index in range(len(task.tables))
        for ranks, copies in _ways_to_spread(task, index, everyone)
    ]
    table = np.array([index for index, *_ in found], dtype=np.int64)
    replicated = np.array([copies for *_, copies in found], dtype=bool)
    count = np.array([devices.size for _, devices, _ in found], dtype=np.int64)
    blocks = Blocks(
        table,
        np.where(replicated, tables.rows[table], -(-tables.rows[table] // np.maximum(count, 1))),
        tables.dim[table],
        np.where(replicated, count, 1),
    )
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    room = {id(devices): memory[devices].min() for devices in (everyone, *shared.values())}
    costs = tables.costs(blocks)
    fits = costs.bytes <= np.array([room[id(devices)] for _, devices, _ in found], dtype=np.int64)
    return Spreads(
        table[fits],
        tuple(devices for (_, devices, _), fit in zip(found, fits, strict=True) if fit),
        replicated[fits],
        Blocks(blocks.table[fits], blocks.rows[fits], blocks.dim[fits], blocks.replicas[fits]),
        BlockCosts(costs.call[fits], costs.vectors[fits], costs.bytes[fits], costs.served[fits]),
        reduced_bytes(task, blocks.rows[fits] * blocks.dim[fits]) * replicated[fits, None],
    )


def _ways_to_spread(task: Task, index: int, everyone: Ints) -> list[tuple[Ints, bool]]:
    """Devices, and whether they hold replicas."""
    table, topology = task.tables[index], task.topology
    limit = task.constraints.of(table.name)
    devices = devices_of(task, index) if limit.devices else everyone
    hosts = np.unique(devices // topology.devices_per_host) if limit.devices or limit.sharding_types else np.zeros(0)
    one_host = topology.hosts > 1 and hosts.size == 1
    sets = [devices] if limit.allows("table_row_wise" if one_host else "row_wise") else []
    on_one = limit.allows("table_row_wise") and (limit.equal_rows or not limit.allows("row_wise"))
    if topology.hosts > 1 and on_one and not one_host:
        by_host = devices // topology.devices_per_host
        if limit.equal_rows:  # all hosts are open to all tables together
            hosts = np.roll(hosts, -_HOSTS * index)[:_HOSTS]
        sets += [devices[by_host == host] for host in hosts]
    of_rows = [row_block_devices(table, limit, topology, among) for among in sets]
    ways = [(ranks, False) for ranks in of_rows if ranks is not None]
    if limit.allows("data_parallel") and devices.size == topology.devices > 1:
        ways.append((devices, True))
    return ways


def reduced_bytes(task: Task, weights: Ints) -> Floats:
    """`(n, 2)` bytes that each of the replicas on all devices sends inside its host and between hosts; see `cost.score`."""
    near, hosts = task.topology.devices_per_host, task.topology.hosts
    gradient = 4.0 * weights
    return np.stack([2 * (near - 1) / near * gradient, 2 * (hosts - 1) / hosts * gradient / near], axis=1)
