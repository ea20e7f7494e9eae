"""The costs that blocks of a task's tables add to their devices, for many blocks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import WAYS, Way, prices_of
from shardwright.cost.features import WorkArrays
from shardwright.cost.flows import GRADIENT_BYTES, SHORT_ID_BYTES
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.sharding.memory import STATE_BYTES, gradient_size
from shardwright.sharding.work import ID_BYTES, LENGTH_BYTES, WEIGHT_BYTES
from shardwright.task.access import reuse_of_many
from shardwright.task.table import DTYPE_BYTES
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES

_AT_ONCE = 16_384  # blocks encoded together: limits the encoder's memory


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
    """The costs that n blocks add to each device that holds them.

    Attributes:
        call: `(n,)` the kind of fused call that serves the block, as `Tables` numbers them.
        vectors: `(n, h + 2)` the block's share of that call's pre-activations in the cost model's hidden layer, and of the linear parts of
            forward and backward time.
        bytes: `(n,)` memory.
        served: `(n, 2)` bytes of values and of ids that a single holder sends and receives in a pass by all-to-alls; 0 for replicas.
    """

    call: Ints
    vectors: Floats
    bytes: Ints
    served: Floats

    def take(self, blocks: Ints, count: Ints) -> BlockCosts:
        """The costs of the blocks with these indices."""
        vectors, served = self.vectors[blocks] * count[:, None], self.served[blocks] * count[:, None]
        return BlockCosts(self.call[blocks], vectors, self.bytes[blocks] * count, served)

    def single(self) -> PieceCosts:
        """The costs of pieces that are one block each."""
        return PieceCosts(Added.of(self.call, self.vectors), self.bytes, self.served)

    def of_groups(self, groups: Sequence[Ints]) -> PieceCosts:
        """The costs of pieces that are a group of blocks each, given by the blocks' indices."""
        flat = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
        begins = np.cumsum([0, *(rows.size for rows in groups)])[:-1]
        added = Added.of_groups(self.call, self.vectors, groups)
        return PieceCosts(added, np.add.reduceat(self.bytes[flat], begins), np.add.reduceat(self.served[flat], begins))


class Tables:
    """The tables of a task as columns, ready to be cut into blocks."""

    def __init__(self, task: Task, cost_model: CostModel) -> None:
        self._task, self._model = task, cost_model
        tables = task.tables
        self.rows = np.array([table.rows for table in tables], dtype=np.int64)
        self.dim = np.array([table.dim for table in tables], dtype=np.int64)
        self._pooling = np.array([table.pooling for table in tables])
        self._features = np.array([len(table.poolings) for table in tables], dtype=np.float64)
        self._id_size = np.array([ID_BYTES + WEIGHT_BYTES * table.weighted for table in tables])
        self._shared = task.exchange.collectives == "shared"
        self._value_size = VALUE_BYTES[task.exchange.values]
        self._ordered = np.array([bool(table.id_shares) for table in tables], dtype=bool)
        self._pooled = np.array([table.pooled for table in tables], dtype=np.float64)
        self._weight_size = np.array([DTYPE_BYTES[table.dtype] for table in tables], dtype=np.float64)
        self._gradient = np.array(
            [gradient_size(task, table.pooled, table.dtype) for table in tables], dtype=np.float64
        )
        self._call_of: dict[tuple[int, int, int], int] = {}
        self._reuse: dict[int, tuple[Floats, Floats]] = {}

    @property
    def calls(self) -> int:
        """Number of kinds of fused calls that serve the blocks seen so far."""
        return len(self._call_of)

    def calls_of(self, blocks: Blocks) -> Ints:
        """`(n,)` the kind of fused call that serves each block (see `sharding.work`), numbered as they are first seen."""
        samples = np.maximum(1, -(-self._task.batch_size // blocks.replicas))
        kind = (8 * self._pooled + self._weight_size).astype(np.int64)[blocks.table]
        dim = np.where(self._pooled[blocks.table] > 0, 0, blocks.dim)
        call = np.zeros(len(blocks), dtype=np.int64)
        for count in np.unique(samples):
            for sort in np.unique(kind[samples == count]):
                these = np.flatnonzero((samples == count) & (kind == sort))
                widths, place = np.unique(dim[these], return_inverse=True)
                numbers = [
                    self._call_of.setdefault((int(count), int(sort), width), self.calls) for width in widths.tolist()
                ]
                call[these] = np.array(numbers, dtype=np.int64)[place]
        return call

    def costs(self, blocks: Blocks) -> BlockCosts:
        """The costs that each block adds to its devices."""
        pricing, count = self._model.pricing, len(blocks)
        vectors = np.empty((count, pricing.hidden.shape[0] + 2))
        memory, served = np.empty(count, dtype=np.int64), np.empty((count, 2))
        into = np.ascontiguousarray(np.hstack([pricing.hidden.T, pricing.linear.T]))
        for start in range(0, count, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            chunk = blocks.part(part)
            works = self._works(chunk)
            np.matmul(self._model.encode_arrays(works), into, out=vectors[part])
            gradient, id_size = self._gradient[chunk.table] * (chunk.replicas > 1), self._id_size[chunk.table]
            memory[part] = _bytes(self._task, works, gradient, id_size)
            alone = chunk.replicas == 1
            served[part] = self._sent(chunk, works) * alone[:, None]
        return BlockCosts(self.calls_of(blocks), vectors, memory, served)

    def _sent(self, blocks: Blocks, works: WorkArrays) -> Floats:
        """`(n, 2)` bytes of values and of ids, as `cost.flows` counts them."""
        id_size = self._id_size[blocks.table]
        outputs, ids = works.outputs, id_size * works.lookups + LENGTH_BYTES * works.bags * works.pooled
        if self._shared:
            outputs = np.minimum(outputs, works.lookups)
            weighted = id_size > ID_BYTES
            ids = np.where(works.pooled, SHORT_ID_BYTES * (1 + weighted), id_size) * works.lookups
        return np.stack([self._value_size * works.dim * outputs, ids], axis=1)

    def _works(self, blocks: Blocks) -> WorkArrays:
        share = blocks.rows / self.rows[blocks.table]
        busy = self._busy(blocks, share)
        lookups = self._pooling[blocks.table] * (share * busy) * self._task.batch_size / blocks.replicas
        bins = np.empty((2, len(blocks), 17))
        for replicas in np.unique(blocks.replicas):
            these = blocks.replicas == replicas
            for kind, of_table in enumerate(self._reuse_of(int(replicas))):
                bins[kind, these] = of_table[blocks.table[these]] * share[these, None]
        uneven = np.flatnonzero(busy != 1)
        if uneven.size:  # as a part of a table whose rows are all as busy as the block's
            access = [self._task.tables[table].access for table in blocks.table[uneven]]
            of_whole = reuse_of_many(access, (lookups[uneven] / share[uneven]).tolist())
            bins[:, uneven] = np.stack(of_whole) * share[uneven, None]
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
            features=self._features[blocks.table],
        )

    def _busy(self, blocks: Blocks, share: Floats) -> Floats:
        """`(n,)` lookups of each block over those of an equally large block of a table whose hot rows lie scattered."""
        result = np.ones(len(blocks))
        for block in np.flatnonzero(self._ordered[blocks.table] & (share < 1)).tolist():
            table = self._task.tables[blocks.table[block]]
            result[block] = table.share_of_block(int(blocks.rows[block])) / share[block]
        return result

    def _reuse_of(self, replicas: int) -> tuple[Floats, Floats]:
        """Reuse bins of every table in the part of the batch that one replica serves; a random part of the rows has its share of them."""
        if replicas not in self._reuse:
            lookups = self._pooling * self._task.batch_size / replicas
            self._reuse[replicas] = reuse_of_many([table.access for table in self._task.tables], lookups.tolist())
        return self._reuse[replicas]


def _bytes(task: Task, works: WorkArrays, gradient: Floats, id_size: Ints) -> Ints:
    """Bytes that each block takes on a device, with `(n,)` bytes of gradient a weight and of ids a lookup; see `sharding.memory`."""
    by_row, by_weight = STATE_BYTES[task.optimizer]
    weights = works.rows * works.dim
    outputs = 4 * works.dim * np.ceil(works.outputs)
    total = works.rows * (works.row_bytes + by_row) + by_weight * weights
    total += gradient * weights
    inputs = id_size * np.ceil(works.lookups) + 8 * (works.bags + 1)
    bytes_: Ints = (total + task.exchange.batches * inputs + 2 * outputs).astype(np.int64)
    return bytes_


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
    """Additions of n rows to the fused calls of their devices. Row i consists of the parts `[part[i], part[i + 1])`, at least one.

    Attributes:
        part: `(n + 1,)`.
        call: `(parts,)` the call to which each part belongs.
        vectors: `(parts, h + 2)` the numbers that the part adds to the call.
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
        """These rows, followed by others."""
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
        sums: Floats = of_parts if single else np.add.reduceat(of_parts, self.part[:-1])
        return sums


class PieceCosts(NamedTuple):
    """The costs that n pieces, of one or several blocks each, add to their devices.

    Attributes:
        added: their additions to fused calls.
        bytes: `(n,)` memory.
        served: `(n, 2)` as in `BlockCosts`.
    """

    added: Added
    bytes: Ints
    served: Floats

    def take(self, order: Ints) -> PieceCosts:
        """The pieces in this order."""
        return PieceCosts(self.added.take(order), self.bytes[order], self.served[order])

    def then(self, other: PieceCosts) -> PieceCosts:
        """These pieces, followed by others."""
        memory, served = np.concatenate([self.bytes, other.bytes]), np.concatenate([self.served, other.served])
        return PieceCosts(self.added.then(other.added), memory, served)


def priced(vectors: Floats, call: Ints, prices: Floats) -> Floats:
    """`(n,)` ms of `(n, h + 2)` vectors at `(calls, h + 2)` prices, each vector at the prices of its call `(n,)`."""
    if len(prices) == 1 or not call.size or (call == call[0]).all():
        ms: Floats = vectors @ prices[call[0] if call.size else 0]
        return ms
    of_all: Floats = vectors @ prices.T  # reading the vectors takes nearly all the time
    return of_all[np.arange(call.size), call]


def priced_at_all(vectors: Floats, call: Ints, prices: Floats) -> Floats:
    """`(k, n)` as `priced`, at k sets of `(calls, h + 2)` prices."""
    if prices.shape[1] == 1:  # one pass over the vectors, since reading them takes nearly all the time
        ms: Floats = prices[:, 0] @ vectors.T
        return ms
    return np.stack([priced(vectors, call, of_one) for of_one in prices])


class Spread(NamedTuple):
    """The traffic that n ways to put a table on many devices at once add to the links of each of these devices.

    Attributes:
        served: `(n, 3)` bytes that all-to-alls serve: of values to near and to far devices, and of ids.
        apart: `(n, 2)` ms of other collectives, forward and backward.
    """

    served: Floats
    apart: Floats


def spread_links(task: Task, ways: Sequence[Way], costs: BlockCosts, weights: Ints) -> Spread:
    """The traffic that spreads add to the links of each device.

    Args:
        task: the task.
        ways: the way of each spread.
        costs: the costs of the block on each device.
        weights: `(n,)` weights of that block.
    """
    prices, way = prices_of(task), np.array([WAYS.index(name) for name in ways], dtype=np.int64)
    served, values = costs.served[:, [0, 0, 1]], costs.served[:, 0]
    served[way == WAYS.index("row_wise"), :2] = 0.0
    inside = way == WAYS.index("table_row_wise")
    served[inside, 0] = 0.0
    served[inside, 1] /= task.topology.devices_per_host
    apart = np.zeros((len(ways), 2))
    for place, of_place in enumerate(("row_wise", "table_row_wise")):
        dealt = way == WAYS.index(of_place)
        apart[dealt] = values[dealt, None] * prices.dealt[place]
    copied = way == WAYS.index("data_parallel")
    apart[copied, 1] = GRADIENT_BYTES * weights[copied] * prices.replicas
    return Spread(served, apart)
