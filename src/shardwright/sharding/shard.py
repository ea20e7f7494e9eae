"""A shard: a block of a table, and the set of devices that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from shardwright.errors import InvalidInput
from shardwright.task.table import Table
from shardwright.task.topology import Topology

RowOrder: TypeAlias = Literal["id", "hotness"]


@dataclass(frozen=True)
class Shard:
    """A block of a table on one or more devices.

    Attributes:
        table: name of the table.
        rows: half-open range of rows, counted as `row_order` says.
        columns: half-open range of columns.
        devices: ranks that hold the block, ascending; more than one means replicas.
        row_order: whether row ranges count ids ("id") or rows sorted hottest first ("hotness").
        tier: with "hotness", the range of rows that is dealt out one by one to the blocks of this tier, so that each holds hot and
            less hot rows alike; `sharding.layout` says which row lies where. None: the block holds the very rows of its range.
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
            raise InvalidInput(
                f"shard of '{self.table}': only rows in order of hotness are dealt out; leave its tier away"
            )
        if not self.tier[0] <= self.rows[0] < self.rows[1] <= self.tier[1]:
            raise InvalidInput(
                f"shard of '{self.table}': rows [{self.rows[0]}, {self.rows[1]}) must lie in its tier [{self.tier[0]}, {self.tier[1]})"
            )

    @classmethod
    def whole(cls, table: Table, *devices: int) -> Shard:
        """The whole table on the given devices."""
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
        """Elements that two blocks of one table in two plans are known to share: none where rows are ordered or dealt otherwise."""
        if self.row_order != other.row_order or self.tier != other.tier or (self.tier and self.rows != other.rows):
            return 0
        return self.overlap(other)


def sharding_type_of(shards: Sequence[Shard], table: Table, topology: Topology) -> str:
    """The field's name for the pattern in which the shards of one table lie.

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
