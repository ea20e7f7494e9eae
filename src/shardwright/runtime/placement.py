"""The place of every row of every table: a plan as arrays, the same on all ranks.

A *part* is a table's range of columns that no shard cuts further. Every part has its own row blocks, so whole tables, columns of any
width, grids and tiers are handled alike: a lookup in a table is a lookup in each of its parts, and the row's holder answers for that part.

Parts of equal width, type and use form a *group*; a rank keeps all its rows of a group in one matrix. A row's *slot* is its row in that
matrix. Row blocks (and tiers) are dealt out further to *ranges*: a block on one device is one range, a block with replicas on n devices
is n ranges. One holder *owns* each range: it sums the gradients of the range's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.flows import replica_exchange
from shardwright.errors import InvalidInput
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import RowLayout, Shard
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

ALONE, TOUCHED, WHOLE = 0, 1, 2
"""Agreement of replicas on a gradient: none, with one holder; by the touched rows; by the whole block."""

WIRE_TYPES = ("fp32", "fp16", "bf16")
"""Types in which values and gradients can travel."""


class Group(NamedTuple):
    """The common properties of the parts of a group. Groups whose holders answer with rows come before those that answer with sums.

    Attributes:
        sums: whether a holder answers a bag by the sum of its rows; else each lookup by its row.
        dim: columns.
        dtype: type of the weights.
        replicated: whether replicas must agree on gradients before rows are updated; set for groups of sums only.
        weighted: whether lookups of sums have weights.
    """

    sums: bool
    dim: int
    dtype: str
    replicated: bool = False
    weighted: bool = False


class Part(NamedTuple):
    """A range of a table's columns.

    Attributes:
        table: the table.
        columns: half-open range of its columns.
    """

    table: Table
    columns: tuple[int, int]

    @property
    def dim(self) -> int:
        """Columns of the part."""
        return self.columns[1] - self.columns[0]

    @property
    def title(self) -> str:
        """The part for people: the table's name, and the columns if they are not all."""
        name, (start, stop) = self.table.name, self.columns
        return name if self.dim == self.table.dim else f"{name}[:, {start}:{stop}]"


def parts_of(table: Table, shards: Sequence[Shard]) -> list[tuple[Part, list[Shard]]]:
    """Cut a table at every column where some shard ends; returns each part with its row blocks, by rows."""
    cuts = sorted({column for shard in shards for column in shard.columns})
    parts = []
    for start, stop in pairwise(cuts):
        covering = [shard for shard in shards if shard.columns[0] <= start and stop <= shard.columns[1]]
        own = [replace(shard, columns=(start, stop)) for shard in sorted(covering, key=lambda shard: shard.rows)]
        parts.append((Part(table, (start, stop)), own))
    return parts


@dataclass(frozen=True, eq=False)
class Placement:
    """All rows of the chosen tables, by *key*: rows (ids, or ranks by hotness) numbered through all parts, one part after another.

    Attributes:
        plan: the plan.
        parts: the parts of the tables, sorted by group.
        groups: the groups.
        group_of: `(parts,)` group of each part.
        base: `(parts + 1,)` key of each part's first row.
        shards: the row blocks of all parts.
        exchanges: `(shards,)` agreement of its replicas on a gradient: `ALONE`, `TOUCHED` or `WHOLE`.
        segments: `(3, segments)` first key, number of ranges that the segment is dealt to, and index of its first range.
        ranges: `(4, ranges)` shard, rows, first row within the shard, and number among the shard's ranges.
    """

    plan: Plan
    parts: tuple[Part, ...]
    groups: tuple[Group, ...]
    group_of: Ints
    base: Ints
    shards: tuple[Shard, ...]
    exchanges: Ints
    segments: Ints
    ranges: Ints

    @classmethod
    def of(cls, plan: Plan, names: Sequence[str], exact: bool = False) -> Placement:
        """Return the placement of some of a plan's tables.

        Args:
            plan: the plan.
            names: the tables.
            exact: whether holders of row blocks answer with rows, which the asking rank sums in the order of a whole table.

        Raises:
            InvalidInput: no table is named, one is named twice, or a table has int8 weights or replicas on an irregular set of devices.
        """
        if not names or len(set(names)) < len(names):
            raise InvalidInput(f"tables are {list(names)[:10]}; name at least one table, and each once")
        tables = [_runnable(plan, name) for name in names]
        for what in ("values", "gradients"):
            if (kind := getattr(plan.task.exchange, what)) not in WIRE_TYPES:
                raise InvalidInput(
                    f"the task's exchange sends {what} as {kind}; this module sends fp32, fp16 and bf16: state one of these"
                )
        cut = [
            (*part, _group_of(*part, exact)) for table in tables for part in parts_of(table, plan.by_table[table.name])
        ]
        groups = sorted({group for *_, group in cut})
        cut.sort(key=lambda piece: piece[2])
        base = np.concatenate([[0], np.cumsum([part.table.rows for part, *_ in cut])]).astype(np.int64)
        shards: list[Shard] = []
        segments: list[tuple[int, ...]] = []
        ranges: list[tuple[int, ...]] = []
        for start, (_, held, _) in zip(base.tolist(), cut, strict=False):
            for shard in held:
                _check_holders(shard, plan.task.topology)
            layout = RowLayout.of(held)
            for row, blocks, first in np.stack([layout.starts, layout.parts, layout.first], 1).tolist():
                copies = max(len(shard.devices) for shard in held[first : first + blocks])
                rows = sum(shard.row_count for shard in held[first : first + blocks])
                segments.append((start + row, blocks * copies, len(ranges)))
                ranges += [(len(shards) + first + block, *more) for block, *more in _dealt(rows, blocks, copies)]
            shards += held
        return cls(
            plan,
            tuple(part for part, *_ in cut),
            tuple(groups),
            np.array([groups.index(group) for *_, group in cut], dtype=np.int64),
            base,
            tuple(shards),
            np.array([_exchange_of(plan.task, shard) for shard in shards], dtype=np.int64),
            np.ascontiguousarray(np.array(segments, dtype=np.int64).T),
            np.ascontiguousarray(np.array(ranges, dtype=np.int64).T),
        )

    @cached_property
    def row_groups(self) -> int:
        """Number of groups whose holders answer with rows; they come first."""
        return sum(not group.sums for group in self.groups)

    @cached_property
    def part_of_shard(self) -> Ints:
        """`(shards,)` the part of each shard."""
        number = {(part.table.name, part.columns): index for index, part in enumerate(self.parts)}
        return np.array([number[shard.table, shard.columns] for shard in self.shards], dtype=np.int64)

    @cached_property
    def part_of_range(self) -> Ints:
        """`(ranges,)` the part of each range."""
        parts: Ints = self.part_of_shard[self.ranges[0]]
        return parts

    @cached_property
    def group_of_range(self) -> Ints:
        """`(ranges,)` the group of each range."""
        groups: Ints = self.group_of[self.part_of_range]
        return groups

    @cached_property
    def owner(self) -> Ints:
        """`(ranges,)` the rank that sums the gradients of a range's rows: its only holder, or one of its replicas."""
        return self._dealt_to([shard.devices for shard in self.shards], self.ranges[3])

    def nearest(self, rank: int) -> Ints:
        """`(ranges,)` the rank that `rank` asks for the rows of each range: itself, else a holder on its host, else the owner."""
        host_of, near = self.plan.task.topology.host_of, []
        for shard in self.shards:
            on_host = tuple(holder for holder in shard.devices if host_of(holder) == host_of(rank))
            near.append((rank,) if rank in on_host else on_host or shard.devices)
        sums = np.array([group.sums for group in self.groups])[self.group_of_range]
        # Sums come from one holder, which has the whole bag; requests for rows are shared out to all near holders.
        return self._dealt_to(near, np.where(sums, rank, self.ranges[3]))

    def _dealt_to(self, holders: Sequence[tuple[int, ...]], numbers: Ints) -> Ints:
        """`(ranges,)` a rank for each range: those of the `(shards,)` holders take turns by the `(ranges,)` numbers."""
        turns = zip(self.ranges[0].tolist(), numbers.tolist(), strict=True)
        return np.array([holders[shard][number % len(holders[shard])] for shard, number in turns], dtype=np.int64)

    @cached_property
    def slot_bits(self) -> int:
        """Bits that suffice for any slot of any rank."""
        keys, first = self._held
        rows = np.array([shard.row_count for shard in self.shards], dtype=np.int64)
        return int((first + rows[keys // self.plan.task.topology.devices]).max()).bit_length()

    @cached_property
    def _held(self) -> tuple[Ints, Ints]:
        """`(pairs,)` shard × devices + rank of every copy of a shard, ascending, and the copy's first slot."""
        shard = np.repeat(np.arange(len(self.shards)), [len(shard.devices) for shard in self.shards])
        rank = np.array([device for shard in self.shards for device in shard.devices], dtype=np.int64)
        rows = np.array([shard.row_count for shard in self.shards], dtype=np.int64)[shard]
        group = self.group_of[self.part_of_shard[shard]]
        order = np.lexsort((shard, self.exchanges[shard], group, rank))
        place = rank[order] * len(self.groups) + group[order]
        before = np.cumsum(rows[order]) - rows[order]
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        slots = np.empty_like(rank)
        slots[order] = before - np.repeat(before[starts], np.diff(np.append(starts, place.size)))
        return shard * self.plan.task.topology.devices + rank, slots

    def slots_of_shard(self, index: int, rank: int) -> slice:
        """Slots of the rows of a shard on a rank that holds it, range after range."""
        keys, first = self._held
        start = int(first[np.searchsorted(keys, index * self.plan.task.topology.devices + rank)])
        return slice(start, start + self.shards[index].row_count)

    def slots(self, ranges: Ints, ranks: Ints | int) -> Ints:
        """`(n,)` first slots of `(n,)` ranges on `(n,)` ranks that hold them."""
        keys, first = self._held
        wanted = self.ranges[0, ranges] * self.plan.task.topology.devices + ranks
        slots: Ints = first[np.searchsorted(keys, wanted)] + self.ranges[2, ranges]
        return slots

    def held_by(self, rank: int, exchange: int | None = None) -> Ints:
        """`(n,)` ranges that a rank holds, ascending: all of them, or only those whose replicas agree by one kind of exchange."""
        mine = np.array([rank in shard.devices for shard in self.shards], dtype=np.bool_)
        if exchange is not None:
            mine &= self.exchanges == exchange
        return np.flatnonzero(mine[self.ranges[0]])

    def rows_on(self, rank: int, exchange: int | None = None) -> Ints:
        """`(groups,)` number of rows in the ranges of `held_by`."""
        mine = self.held_by(rank, exchange)
        rows = np.bincount(self.group_of_range[mine], weights=self.ranges[1, mine], minlength=len(self.groups))
        return rows.astype(np.int64)

    def keys(self, number: int, start: int, stop: int) -> Ints:
        """`(stop - start,)` keys of the rows `[start, stop)` of a range, in the order of their slots."""
        segment = int(np.searchsorted(self.segments[2], number, side="right")) - 1
        first, parts, before = self.segments[:, segment]
        keys: Ints = first + (number - before) + parts * np.arange(start, stop, dtype=np.int64)
        return keys


def _runnable(plan: Plan, name: str) -> Table:
    if name not in plan.by_table:
        raise InvalidInput(f"table '{name}' is not in the plan; its tables are {', '.join(list(plan.by_table)[:10])}")
    table = plan.task.table_by_name[name]
    if table.dtype == "int8":
        raise InvalidInput(
            f"table '{name}' has int8 weights; this module trains fp32 and fp16 ones: state one of these as its dtype"
        )
    return table


def _check_holders(shard: Shard, topology: Topology) -> None:
    """Refuse replicas that lie on other local ranks of one host than of another."""
    hosts = {rank // topology.devices_per_host for rank in shard.devices}
    local = {rank % topology.devices_per_host for rank in shard.devices}
    if len(shard.devices) != len(hosts) * len(local):
        raise InvalidInput(
            f"table '{shard.table}': rows [{shard.rows[0]}, {shard.rows[1]}) lie on devices {list(shard.devices)[:8]}; "
            "replicas must lie on the same local ranks of each of their hosts. "
            "Use one device, one local rank of every host, or all devices"
        )


def _group_of(part: Part, held: Sequence[Shard], exact: bool) -> Group:
    table, sums = part.table, part.table.pooled and not (exact and len(held) > 1)
    if not sums:
        return Group(False, part.dim, table.dtype)
    return Group(True, part.dim, table.dtype, any(len(shard.devices) > 1 for shard in held), table.weighted)


def _dealt(rows: int, blocks: int, copies: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ranges of a segment: block, rows, first row within the block, and number among the block's ranges."""
    size, more = divmod(rows, blocks * copies)
    offsets = [0] * blocks
    for part in range(blocks * copies):
        block, count = part % blocks, size + (part < more)
        yield block, count, offsets[block], part // blocks
        offsets[block] += count


def _exchange_of(task: Task, shard: Shard) -> int:
    """The agreement of a shard's replicas on its gradient: `ALONE`, `TOUCHED` or `WHOLE`."""
    if len(shard.devices) == 1:
        return ALONE
    way: str = task.exchange.replica_gradients
    if way == "cheaper":
        way = replica_exchange(task, shard)
    return WHOLE if way == "whole" else TOUCHED
