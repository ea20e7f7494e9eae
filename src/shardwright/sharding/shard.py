"""A shard: a block of a table, the devices that hold it, and the order of its rows.

A block without a tier holds exactly the rows of its range. A tier of N rows, hottest first, is dealt out to its n row ranges like cards:
the p-th row of the tier goes to range p mod n, as its row p // n. All blocks of a tier then get the same share of the lookups; blocks of
consecutive rows would not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput
from shardwright.task.table import Table
from shardwright.task.topology import Topology

RowOrder: TypeAlias = Literal["id", "hotness"]
COLUMN_UNIT = 4
"""Block widths are multiples of this many columns: narrower blocks waste vector units and are not aligned to 16 bytes."""


@dataclass(frozen=True)
class Shard:
    """A block of a table on one or more devices.

    Attributes:
        table: name of the table.
        rows: half-open range of rows, counted in `row_order`.
        columns: half-open range of columns.
        devices: ranks that hold the block, ascending; more than one means replicas.
        row_order: whether row ranges count ids ("id") or rows sorted hottest first ("hotness").
        tier: with "hotness", the range of rows that is dealt out row by row to the blocks of this tier, so that each block holds hot
            and less hot rows alike; see the module. None: the block holds exactly the rows of its range.
    """

    table: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    devices: tuple[int, ...]
    row_order: RowOrder = "id"
    tier: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for field in ("rows", "columns"):
            start, stop = getattr(self, field)
            if not 0 <= start < stop:
                raise InvalidInput(
                    f"shard of '{self.table}': {field} [{start}, {stop}) must be a range with 0 <= start < stop"
                )
        if not self.devices or any(
            later <= earlier for earlier, later in zip(self.devices, self.devices[1:], strict=False)
        ):
            raise InvalidInput(
                f"shard of '{self.table}': devices {list(self.devices)} must be at least one rank, ascending and without repeats"
            )
        if self.devices[0] < 0:
            raise InvalidInput(f"shard of '{self.table}': device {self.devices[0]} must not be negative")
        if self.row_order not in ("id", "hotness"):
            raise InvalidInput(f"shard of '{self.table}': row_order {self.row_order!r} must be 'id' or 'hotness'")
        self._check_tier()

    def _check_tier(self) -> None:
        if self.tier is None:
            return
        if self.row_order != "hotness":
            raise InvalidInput(f"shard of '{self.table}': tier needs row_order 'hotness'; set it, or leave tier out")
        if not self.tier[0] <= self.rows[0] < self.rows[1] <= self.tier[1]:
            raise InvalidInput(
                f"shard of '{self.table}': rows [{self.rows[0]}, {self.rows[1]}) must lie in its tier [{self.tier[0]}, {self.tier[1]})"
            )

    @classmethod
    def whole(cls, table: Table, *devices: int) -> Shard:
        """Return one shard with the whole table on the given devices."""
        return cls(table.name, (0, table.rows), (0, table.dim), tuple(sorted(devices)))

    @property
    def row_count(self) -> int:
        """Rows of the block."""
        return self.rows[1] - self.rows[0]

    @property
    def dim(self) -> int:
        """Columns of the block."""
        return self.columns[1] - self.columns[0]

    @property
    def area(self) -> int:
        """Elements of the block."""
        return self.row_count * self.dim

    def overlap(self, other: Shard) -> int:
        """Elements common to two blocks of one table in one row order."""
        rows = min(self.rows[1], other.rows[1]) - max(self.rows[0], other.rows[0])
        columns = min(self.columns[1], other.columns[1]) - max(self.columns[0], other.columns[0])
        return max(rows, 0) * max(columns, 0)

    def common(self, other: Shard) -> int:
        """Elements that two plans' blocks of one table are known to share: 0 if their rows are ordered or dealt differently."""
        if self.row_order != other.row_order or self.tier != other.tier or (self.tier and self.rows != other.rows):
            return 0
        return self.overlap(other)


def sharding_type_of(shards: Sequence[Shard], table: Table, topology: Topology) -> str:
    """Return the sharding type of one table's shards.

    Args:
        shards: all shards of the table, tiling it exactly.
        table: the table.
        topology: the cluster the ranks belong to.
    """
    if any(shard.row_order == "hotness" for shard in shards):
        return "tiered"
    if len(shards) == 1:
        return "table_wise" if len(shards[0].devices) == 1 else "data_parallel"
    if any(len(shard.devices) > 1 for shard in shards):
        return "tiered"
    if all(shard.row_count == table.rows for shard in shards):
        return "column_wise"
    if all(shard.dim == table.dim for shard in shards):
        hosts = {topology.host_of(shard.devices[0]) for shard in shards}
        return "table_row_wise" if len(hosts) == 1 and topology.hosts > 1 else "row_wise"
    return "grid"


def dealt_ranges(tier: tuple[int, int], parts: int) -> list[tuple[int, int]]:
    """Return the row ranges to which a tier is dealt out: as even as possible, larger ones first.

    Args:
        tier: half-open range of rows.
        parts: number of ranges, at most the rows of the tier.
    """
    size, more = divmod(tier[1] - tier[0], parts)
    starts = [tier[0] + part * size + min(part, more) for part in range(parts + 1)]
    return list(pairwise(starts))


def even_cuts(length: int, parts: int) -> list[int]:
    """Cut a length into parts that differ by one at most; returns the `parts + 1` cuts from 0 to the length.

    Uses Python's integers, since rows times parts may exceed 64 bits.
    """
    return [part * length // parts for part in range(parts + 1)]


def equal_sizes(rows: int, count: int, *, as_torchrec: bool = True) -> list[tuple[int, int, int, int]]:
    """The cut of rows into `count` equal blocks: rows and number of the larger blocks, then of the smaller ones.

    Blocks differ by one row at most. If `count` does not divide the rows, TorchRec's cut differs: blocks of ceil(rows / count) rows, one
    with the rest, and empty ones.

    Args:
        rows: rows of the table.
        count: number of blocks.
        as_torchrec: whether to return TorchRec's cut too.
    """
    down, longer = divmod(rows, count)
    sizes = [(down + 1, longer, down, count - longer) if longer else (down, count, down, 0)]
    most = -(-rows // count)
    full, rest = divmod(rows, most)
    return [*sizes, (most, full, rest or most, int(rest > 0))] if as_torchrec and full != sizes[0][1] else sizes


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The order of one table's rows across its row ranges.

    A *segment* is a tier, or a block without a tier. A block counts as a tier dealt to a single range, so both share one arithmetic.

    Attributes:
        starts: `(s,)` first row of each segment, ascending from 0.
        parts: `(s,)` row ranges that each segment is dealt to.
        first: `(s,)` number of the first row range of each segment.
        ranges: the `(start, stop)` of all row ranges, ascending.
    """

    starts: Ints
    parts: Ints
    first: Ints
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> RowLayout:
        """Return the layout of shards that tile one table, with all columns cut at the same rows."""
        segment_of = {shard.rows: shard.tier or shard.rows for shard in shards}
        segments = sorted(Counter(segment_of.values()).items())
        starts = np.array([start for (start, _), _ in segments], dtype=np.int64)
        parts = np.array([count for _, count in segments], dtype=np.int64)
        return cls(starts, parts, np.cumsum(parts) - parts, tuple(sorted(segment_of)))

    def locate(self, rows: Ints) -> tuple[Ints, Ints]:
        """Find the place of `(n,)` rows, given as ids or as ranks by hotness, depending on the shards' row order.

        Returns:
            `(n,)` number of the row range in `ranges`, and `(n,)` row within that range.
        """
        segment = np.searchsorted(self.starts, rows, side="right") - 1
        position, parts = rows - self.starts[segment], self.parts[segment]
        return self.first[segment] + position % parts, position // parts

    def rows_of(self, number: int) -> Ints:
        """Return the rows of a range, in their order within it."""
        segment = int(np.searchsorted(self.first, number, side="right")) - 1
        start, stop = self.ranges[number]
        first = int(self.starts[segment]) + number - int(self.first[segment])
        return first + int(self.parts[segment]) * np.arange(stop - start, dtype=np.int64)
