"""From two boundaries a table to blocks on devices, and the bytes they take there, exactly.

The hot rows [0, h) are one block on all devices. The warm rows [h, w) are dealt out to the local ranks of all hosts alike, the
cold rows [w, rows) to all devices, as cards are; a table goes on where the last one ended, so that no device always gets the block
that is a row larger. Where devices have unequal room, the coldest rows are dealt to the roomier ones only: a further cold tier each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.flows import Floats
from shardwright.search.flexshard.rates import Ints, gradient_memory, row_memory
from shardwright.sharding.layout import dealt_ranges
from shardwright.sharding.memory import buffer_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork
from shardwright.task.table import Table
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Level:
    """A part of the cold rows, dealt to some devices.

    Attributes:
        until: share of a table's cold rows that lie in this level and in those before it.
        ranks: the devices, ascending.
    """

    until: float
    ranks: Ints


def cold_levels(room: Floats, need: float, most: int = 4) -> list[Level]:
    """How to deal out cold rows of `need` bytes to devices with `(devices,)` bytes of room: as evenly as they fit, in few levels.

    Where the room does not suffice, all devices get more than they have in proportion to it.
    """
    devices = room.size
    if most == 1 or need <= 0 or room.min() >= need / devices:
        return [Level(1.0, np.arange(devices))]
    room = np.maximum(room, 0.0)
    edges = np.unique(np.quantile(room, np.linspace(0, 1, most), method="lower"))
    levels, left = [], min(need, float(room.sum()))
    total = left
    for step, edge in zip(np.diff(edges, prepend=0.0), edges, strict=True):
        among = np.flatnonzero(room >= edge)
        amount = min(float(step) * among.size, left)
        left -= amount
        if amount > 0:
            levels.append(Level(1 - left / total, among))
    if not levels:
        return [Level(1.0, np.arange(devices))]
    return [*levels[:-1], Level(1.0, levels[-1].ranks)]


@dataclass(frozen=True, eq=False)
class Deal:
    """A tier of a table and where it lies.

    Attributes:
        table: the table.
        rows: its rows.
        holders: `(n, replicas)` sets of devices, one of which each block goes to.
        start: the first block's.
    """

    table: Table
    rows: tuple[int, int]
    holders: Ints
    start: int

    @property
    def parts(self) -> int:
        """Blocks of the tier."""
        return min(len(self.holders), self.rows[1] - self.rows[0])

    @property
    def sets(self) -> Ints:
        """`(parts, replicas)` the devices of each block."""
        chosen: Ints = self.holders[(self.start + np.arange(self.parts)) % len(self.holders)]
        return chosen

    def shards(self) -> list[Shard]:
        """The blocks."""
        columns, tier = (0, self.table.dim), self.rows if self.parts > 1 else None
        return [
            Shard(self.table.name, rows, columns, tuple(devices), "hotness", tier)
            for rows, devices in zip(dealt_ranges(self.rows, self.parts), self.sets.tolist(), strict=True)
        ]

    def book(self, task: Task, rows: Ints, buffers: Ints) -> None:
        """Add what the blocks take to the `(devices,)` bytes of rows and of buffers: `sharding.memory`, without access profiles."""
        size, more = divmod(self.rows[1] - self.rows[0], self.parts)
        sets, row = self.sets, row_memory(task, self.table)
        if sets.shape[1] > 1:
            row += gradient_memory(task, self.table)
        for count, among in ((size + 1, sets[:more]), (size, sets[more:])):
            if len(among):
                rows[among.ravel()] += count * row
                buffers[among.ravel()] += self._buffers(task, count)

    def _buffers(self, task: Task, rows: int) -> int:
        """Buffers of a block of so many rows."""
        table, replicas = self.table, self.holders.shape[1]
        share = 1.0
        if rows < table.rows:
            share = table.access.share_of(*self.rows) * (rows / (self.rows[1] - self.rows[0]))
        lookups = table.pooling * share * task.batch_size / replicas
        samples = max(1, -(-task.batch_size // replicas))
        return buffer_bytes(ShardWork(rows, table.dim, samples, lookups, False, table.access, table.dtype))


def deals(task: Task, tables: Sequence[Table], boundaries: Ints, levels: Sequence[Level]) -> Iterator[Deal]:
    """The tiers of all tables.

    Args:
        task: the task.
        tables: its tables that are tiered.
        boundaries: `(tables, 2)` end of the hot and of the warm rows of each.
        levels: how cold rows are dealt.
    """
    ranks = np.arange(task.topology.devices)
    everywhere, rails = ranks[None], ranks.reshape(task.topology.hosts, -1).T
    warm_start, cold_start = 0, [0] * len(levels)
    for table, (hot, warm) in zip(tables, boundaries.tolist(), strict=True):
        if hot:
            yield Deal(table, (0, hot), everywhere, 0)
        if warm > hot:
            yield Deal(table, (hot, warm), rails, warm_start)
            warm_start = (warm_start + warm - hot) % len(rails)
        first = warm
        for number, level in enumerate(levels):
            last = warm + round((table.rows - warm) * level.until)
            if last > first:
                yield Deal(table, (first, last), level.ranks[:, None], cold_start[number])
                cold_start[number] = (cold_start[number] + last - first) % level.ranks.size
            first = max(first, last)


def bytes_of(task: Task, dealt: Sequence[Deal]) -> tuple[Ints, Ints]:
    """`(devices,)` memory of the rows, and of the buffers, of some tiers' blocks: what `memory_account` says, without making them."""
    rows, buffers = np.zeros((2, task.topology.devices), dtype=np.int64)
    for deal in dealt:
        deal.book(task, rows, buffers)
    return rows, buffers
