"""The catalog: every way to make a task's tables, as arrays. The bound and the searches choose from it.

Blocks are priced many at once, since a search looks at tens of thousands of them. The figures of `sharding.work`, `sharding.memory` and
`cost.score` are computed as columns instead of shard by shard.

A table can lie in single blocks, each on one device: column blocks (of multiples of 4 columns), or row blocks on a grid of `row_units`
parts. Or it can be *spread*: cut into equal row blocks over a set of devices, or replicated on every device.

Terms. An *item* is a table, or a colocated group of tables. A *form* is a way to cut an item into single blocks: form i cuts item i into
columns, later forms cut into rows, or into another number of equal column blocks. A *piece* is what a device holds of a form: w units,
row `first[form] + w - 1` of the piece arrays. A piece is one block, or w blocks of a unit each if a table must have equal columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.search.units import allowed_devices, equal_blocks, row_block_devices, unit_width
from shardwright.sharding.memory import gradient_size
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.access import reuse_of_many
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import DTYPE_BYTES, Table
from shardwright.task.task import Task

_AT_ONCE = 16_384  # blocks encoded together: limits the encoder's memory
_STATE_BYTES = {"sgd": (0, 0), "rowwise_adagrad": (4, 0), "adagrad": (0, 4), "adam": (0, 8)}  # a row, and a weight


@dataclass(frozen=True, eq=False)
class Blocks:
    """n blocks, whose rows are a random part of their tables' rows (row ranges count ids).

    Attributes:
        table: `(n,)` index of the table.
        rows: `(n,)` rows of the block.
        dim: `(n,)` columns of the block.
        replicas: `(n,)` devices that hold the block.
    """

    table: Ints
    rows: Ints
    dim: Ints
    replicas: Ints

    def __len__(self) -> int:
        return self.table.size

    def part(self, chosen: slice | Ints) -> Blocks:
        """Some of the blocks."""
        return Blocks(self.table[chosen], self.rows[chosen], self.dim[chosen], self.replicas[chosen])


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """What n blocks add to each device that holds them.

    Attributes:
        call: `(n,)` the kind of fused call that serves it, as `Tables` numbers them.
        vectors: `(n, h + 2)` what it adds to that call's pre-activations of the cost model's hidden units, and to the linear parts of
            forward and backward time.
        bytes: `(n,)` memory.
        served: `(n, 2)` bytes of values and of ids that a single holder sends and receives in a pass; 0 for replicas.
    """

    call: Ints
    vectors: Floats
    bytes: Ints
    served: Floats

    def rows(self, chosen: Ints) -> BlockCosts:
        """The costs of some of the blocks."""
        return BlockCosts(self.call[chosen], self.vectors[chosen], self.bytes[chosen], self.served[chosen])


class Tables:
    """The tables of a task as columns, ready to be cut into blocks.

    Args:
        task: the task.
        cost_model: encodes the blocks.
    """

    def __init__(self, task: Task, cost_model: CostModel) -> None:
        self._task, self._model = task, cost_model
        tables = task.tables
        self.rows = np.array([table.rows for table in tables], dtype=np.int64)
        self.dim = np.array([table.dim for table in tables], dtype=np.int64)
        self._pooling = np.array([table.pooling for table in tables])
        self._pooled = np.array([table.pooled for table in tables], dtype=np.float64)
        self._weight_size = np.array([DTYPE_BYTES[table.dtype] for table in tables], dtype=np.float64)
        self._gradient = np.array(
            [gradient_size(task, table.pooled, table.dtype) for table in tables], dtype=np.float64
        )
        self._call_of: dict[tuple[int, int, int], int] = {}
        self._reuse: dict[int, tuple[Floats, Floats]] = {}

    @property
    def calls(self) -> int:
        """How many kinds of fused calls serve the blocks seen so far."""
        return len(self._call_of)

    def calls_of(self, blocks: Blocks) -> Ints:
        """`(n,)` the kind of fused call that serves each block (see `sharding.work`), numbered as they are first seen."""
        samples = np.maximum(1, -(-self._task.batch_size // blocks.replicas))
        kind = (8 * self._pooled + self._weight_size).astype(np.int64)[blocks.table]
        dim = np.where(self._pooled[blocks.table] > 0, 0, blocks.dim)
        found = np.zeros(len(blocks), dtype=np.int64)
        for one in np.unique(samples):
            for other in np.unique(kind[samples == one]):
                these = np.flatnonzero((samples == one) & (kind == other))
                widths, place = np.unique(dim[these], return_inverse=True)
                numbers = [
                    self._call_of.setdefault((int(one), int(other), width), self.calls) for width in widths.tolist()
                ]
                found[these] = np.array(numbers, dtype=np.int64)[place]
        return found

    def costs(self, blocks: Blocks) -> BlockCosts:
        """What each block adds to its devices."""
        pricing, count = self._model.pricing, len(blocks)
        vectors = np.empty((count, pricing.hidden.shape[0] + 2))
        memory, served = np.empty(count, dtype=np.int64), np.empty((count, 2))
        into = np.ascontiguousarray(np.hstack([pricing.hidden.T, pricing.linear.T]))
        for start in range(0, count, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            chunk = blocks.part(part)
            works = self._works(chunk)
            np.matmul(self._encode(chunk, works), into, out=vectors[part])
            memory[part] = _bytes(self._task.optimizer, works, self._gradient[chunk.table] * (chunk.replicas > 1))
            alone = chunk.replicas == 1
            values = 4.0 * works.dim * np.where(works.pooled > 0, works.samples, works.lookups)
            served[part] = np.stack([values * alone, 8.0 * works.lookups * alone], axis=1)
        return BlockCosts(self.calls_of(blocks), vectors, memory, served)

    def _works(self, blocks: Blocks) -> WorkArrays:
        share = blocks.rows / self.rows[blocks.table]
        lookups = self._pooling[blocks.table] * share * self._task.batch_size / blocks.replicas
        bins = np.empty((2, len(blocks), 17))
        for replicas in np.unique(blocks.replicas):
            these = blocks.replicas == replicas
            for kind, of_table in enumerate(self._reuse_of(int(replicas))):
                bins[kind, these] = of_table[blocks.table[these]] * share[these, None]
        return WorkArrays(
            rows=blocks.rows.astype(np.float64),
            dim=blocks.dim.astype(np.float64),
            samples=np.maximum(1.0, -(-self._task.batch_size // blocks.replicas)),
            lookups=lookups,
            pooled=self._pooled[blocks.table],
            weight_size=self._weight_size[blocks.table],
            reuse_rows=bins[0],
            reuse_lookups=bins[1],
            row_share=share,
        )

    def _reuse_of(self, replicas: int) -> tuple[Floats, Floats]:
        """Reuse bins of every table in the part of the batch that one replica serves; a random part of the rows has its share of them."""
        if replicas not in self._reuse:
            lookups = self._pooling * self._task.batch_size / replicas
            self._reuse[replicas] = reuse_of_many([table.access for table in self._task.tables], lookups.tolist())
        return self._reuse[replicas]

    def _encode(self, blocks: Blocks, works: WorkArrays) -> Floats:
        """Encodings of blocks; a cost model that cannot take columns gets them one by one."""
        columns = getattr(self._model, "encode_arrays", None)
        if columns is not None:
            found: Floats = columns(works)
            return found
        task = self._task
        shards = [
            Shard(task.tables[table].name, (0, int(rows)), (0, int(dim)), tuple(range(replicas)))
            for table, rows, dim, replicas in zip(blocks.table, blocks.rows, blocks.dim, blocks.replicas, strict=True)
        ]
        return self._model.encode([shard_work(task, shard) for shard in shards])


def _bytes(optimizer: str, works: WorkArrays, gradient: Floats) -> Ints:
    """Bytes that each block takes on a device, with `(n,)` bytes of gradient a weight; see `sharding.memory`."""
    by_row, by_weight = _STATE_BYTES[optimizer]
    weights = works.rows * works.dim
    lookups = np.ceil(works.lookups)
    outputs = 4 * works.dim * np.where(works.pooled > 0, works.samples, lookups)
    total = works.rows * (works.row_bytes + by_row) + by_weight * weights
    total += gradient * weights
    found: Ints = (total + 8 * (lookups + works.samples + 1) + 2 * outputs).astype(np.int64)
    return found


def check_finite(values: Floats, cost_model: CostModel) -> None:
    """Check numbers that a cost model has predicted.

    Raises:
        ShardwrightError: a number is not finite.
    """
    if not np.isfinite(values).all():
        raise ShardwrightError(
            f"cost model {cost_model.name} predicted a time that is not finite; train the model again"
        )


class Added(NamedTuple):
    """What n rows of pieces add to the fused calls of their devices. The parts of row i are `[part[i], part[i + 1])`, at least one.

    Attributes:
        part: `(n + 1,)`.
        call: `(parts,)` the call that each part is in.
        vectors: `(parts, h + 2)` what it adds there.
    """

    part: Ints
    call: Ints
    vectors: Floats

    @classmethod
    def of(cls, call: Ints, vectors: Floats) -> Added:
        """Rows of one block each, given by their calls `(n,)` and vectors `(n, h + 2)`."""
        return cls(np.arange(call.size + 1), np.ascontiguousarray(call), np.ascontiguousarray(vectors))

    @classmethod
    def of_groups(cls, call: Ints, vectors: Floats, groups: Sequence[Ints]) -> Added:
        """Rows that each stand for a group of blocks, given by the blocks' indices; blocks of a group in one call are one part."""
        if all(rows.size == 1 for rows in groups):
            rows = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
            return cls.of(call[rows], vectors[rows])
        parts = [[rows[call[rows] == kind] for kind in np.unique(call[rows])] for rows in groups]
        flat = [rows for of_row in parts for rows in of_row]
        return cls(
            np.cumsum([0, *(len(of_row) for of_row in parts)]),
            np.array([call[rows[0]] for rows in flat], dtype=np.int64),
            np.array([vectors[rows].sum(axis=0) for rows in flat]),
        )

    def take(self, order: Ints) -> Added:
        """The rows in this order."""
        counts = np.diff(self.part)[order]
        part = np.concatenate([[0], np.cumsum(counts)])
        source = np.arange(part[-1]) + np.repeat(self.part[order] - part[:-1], counts)
        return Added(part, self.call[source], self.vectors[source])

    def then(self, other: Added) -> Added:
        """These rows, and others behind them."""
        return Added(
            np.concatenate([self.part, self.part[-1] + other.part[1:]]),
            np.concatenate([self.call, other.call]),
            np.concatenate([self.vectors, other.vectors]),
        )

    def priced(self, prices: Floats) -> Floats:
        """`(n,)` ms of the rows at `(calls, h + 2)` prices."""
        return self.summed(priced(self.vectors, self.call, prices))

    def summed(self, of_parts: Floats) -> Floats:
        """`(n, …)` sums over the parts of each row."""
        single = len(of_parts) == self.part.size - 1
        found: Floats = of_parts if single else np.add.reduceat(of_parts, self.part[:-1])
        return found


def priced(vectors: Floats, call: Ints, prices: Floats) -> Floats:
    """`(n,)` ms of `(n, h + 2)` vectors at `(calls, h + 2)` prices, each vector at the prices of its call `(n,)`."""
    if len(prices) == 1 or not call.size or (call == call[0]).all():
        found: Floats = vectors @ prices[call[0] if call.size else 0]
        return found
    of_all: Floats = vectors @ prices.T  # reading the vectors is what takes time
    return of_all[np.arange(call.size), call]


def priced_at_all(vectors: Floats, call: Ints, prices: Floats) -> Floats:
    """`(k, n)` as `priced`, at k sets of `(calls, h + 2)` prices."""
    if prices.shape[1] == 1:  # one pass over the vectors: reading them is what takes time
        found: Floats = prices[:, 0] @ vectors.T
        return found
    return np.stack([priced(vectors, call, of_one) for of_one in prices])


ROW_UNITS = 16
_HOSTS = 8  # hosts that a table of equal row blocks chooses between: enough to balance, few enough for 1,000 devices
_FEWEST_ROWS = 64  # fewest rows of a row unit: blocks that differ by a row then cost the same to 2%


@dataclass(frozen=True, eq=False)
class Forms:
    """f forms and their pieces.

    Attributes:
        table: `(f,)` the table that a form cuts.
        rows: `(f,)` whether it cuts rows.
        equal: `(f,)` whether a piece of w units, the whole table aside, is w blocks.
        first: `(f + 1,)` where the pieces of each form begin.
        pieces: a block of every piece; for row pieces one with the most rows.
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
        """`(f,)` how many units each form has."""
        return np.diff(self.first)


@dataclass(frozen=True, eq=False)
class Spreads:
    """s ways to put a table on many devices at once.

    Attributes:
        table: `(s,)` the table, ascending.
        devices: for each, the ranks that hold a part; equal sets are one array.
        replicated: `(s,)` whether every device holds all of it, rather than a row block.
        blocks: the block that each of its devices holds; for row blocks the largest.
        costs: what that block adds to its device.
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


def column_units(table: Table, limits: TableConstraint) -> list[int]:
    """Units of each column form of a table; one form of one unit if it may not be cut."""
    if not limits.allows("column_wise") or (limits.max_shards or 2) < 2:
        return [1]
    if limits.equal_columns:
        return equal_blocks(table, limits) or [1]
    return [table.dim // unit_width(table, limits)]


def row_units(rows: int) -> int:
    """How many parts row blocks are made of: 16, or 2 if blocks of a finer grid would differ too much by a row."""
    return ROW_UNITS if rows >= ROW_UNITS * _FEWEST_ROWS else 2


def devices_of(task: Task, table: int) -> Ints:
    """Ranks that a table's pinning lets it use."""
    return np.flatnonzero(allowed_devices(task, task.constraints.of(task.tables[table].name)))


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
    """Whether single row blocks may lie on any devices. On one host they would be table_row_wise, so that must be allowed too."""
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
    """What each piece adds to its device: the costs of its block, times its number of blocks."""
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
    """The ways to spread a table: devices, and whether they hold replicas."""
    table, topology = task.tables[index], task.topology
    limit = task.constraints.of(table.name)
    devices = devices_of(task, index) if limit.devices else everyone
    hosts = np.unique(devices // topology.devices_per_host) if limit.devices or limit.sharding_types else np.zeros(0)
    one_host = topology.hosts > 1 and hosts.size == 1
    sets = [devices] if limit.allows("table_row_wise" if one_host else "row_wise") else []
    on_one = limit.allows("table_row_wise") and (limit.equal_rows or not limit.allows("row_wise"))
    if topology.hosts > 1 and on_one and not one_host:
        by_host = devices // topology.devices_per_host
        if limit.equal_rows:  # together, the tables can use all hosts
            hosts = np.roll(hosts, -_HOSTS * index)[:_HOSTS]
        sets += [devices[by_host == host] for host in hosts]
    of_rows = [row_block_devices(table, limit, topology, among) for among in sets]
    ways = [(ranks, False) for ranks in of_rows if ranks is not None]
    if limit.allows("data_parallel") and devices.size == topology.devices > 1:
        ways.append((devices, True))
    return ways


def reduced_bytes(task: Task, weights: Ints) -> Floats:
    """`(n, 2)` bytes that each of the replicas on all devices sends inside its host and between hosts; see `cost.score`."""
    per_host, hosts = task.topology.devices_per_host, task.topology.hosts
    gradient = 4.0 * weights
    return np.stack([2 * (per_host - 1) / per_host * gradient, 2 * (hosts - 1) / hosts * gradient / per_host], axis=1)
