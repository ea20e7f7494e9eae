"""Turn two boundaries a table into blocks that fit the memory of every device, to the byte.

The hot rows [0, h) are one block on all devices. The warm rows [h, w) are dealt out like cards to the local ranks, on all hosts alike; the
cold rows [w, rows) are dealt to all devices. Each table continues at the device where the last one ended, so that the blocks that are a row
larger spread over the devices. If devices have unequal room, the coldest rows are dealt to the roomier devices only, as further cold tiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import prices_of, set_of, sets_of, waits_of
from shardwright.cost.score import class_ms, communication_ms, traffic
from shardwright.errors import InfeasibleTask
from shardwright.search.flexshard.bound import Limits, Mixture, Rates, TierRelaxation, gradient_memory, row_memory
from shardwright.sharding.memory import buffer_bytes, memory_account
from shardwright.sharding.shard import Shard, dealt_ranges
from shardwright.sharding.work import ShardWork
from shardwright.task.quantities import format_bytes
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
    """Deal out cold rows of `need` bytes to devices with `(devices,)` bytes of room: as evenly as they fit, in few levels.

    If the room is too small for all rows, each device gets more than its room, in proportion to it.
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
    """A tier of a table, and the places of its blocks.

    Attributes:
        table: the table.
        rows: the tier's rows.
        holders: `(n, replicas)` sets of devices; each block goes to one of them.
        start: index of the first block's set.
    """

    table: Table
    rows: tuple[int, int]
    holders: Ints
    start: int

    @property
    def parts(self) -> int:
        """Number of blocks of the tier."""
        return min(len(self.holders), self.rows[1] - self.rows[0])

    @property
    def sets(self) -> Ints:
        """`(parts, replicas)` the devices of each block."""
        chosen: Ints = self.holders[(self.start + np.arange(self.parts)) % len(self.holders)]
        return chosen

    def shards(self) -> list[Shard]:
        """The tier's blocks as shards."""
        columns, tier = (0, self.table.dim), self.rows if self.parts > 1 else None
        return [
            Shard(self.table.name, rows, columns, tuple(devices), "hotness", tier)
            for rows, devices in zip(dealt_ranges(self.rows, self.parts), self.sets.tolist(), strict=True)
        ]

    def book(self, task: Task, rows: Ints, buffers: Ints) -> None:
        """Add the blocks' bytes to the `(devices,)` bytes of rows and of buffers, as `sharding.memory` does but without access profiles."""
        size, more = divmod(self.rows[1] - self.rows[0], self.parts)
        sets, row = self.sets, row_memory(task, self.table)
        if sets.shape[1] > 1:
            row += gradient_memory(task, self.table)
        for count, among in ((size + 1, sets[:more]), (size, sets[more:])):
            if len(among):
                rows[among.ravel()] += count * row
                buffers[among.ravel()] += self._buffers(task, count)

    def _buffers(self, task: Task, rows: int) -> int:
        """Bytes of the buffers of a block of `rows` rows."""
        table, replicas = self.table, self.holders.shape[1]
        share = 1.0
        if rows < table.rows:
            share = table.access.share_of(*self.rows) * (rows / (self.rows[1] - self.rows[0]))
        lookups = table.pooling * share * task.batch_size / replicas
        samples = max(1, -(-task.batch_size // replicas))
        shares = table.feature_shares
        work = ShardWork(
            rows, table.dim, samples, lookups, False, table.access, table.dtype, 1.0, shares, table.weighted
        )
        return buffer_bytes(work, task.exchange.batches)


def deals(task: Task, tables: Sequence[Table], boundaries: Ints, levels: Sequence[Level]) -> Iterator[Deal]:
    """Deal out the tiers of all tables.

    Args:
        task: the task.
        tables: its tables that are tiered.
        boundaries: `(tables, 2)` ends of the hot and of the warm rows of each table.
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
    """`(devices,)` bytes of rows, and of buffers, of some tiers' blocks: as `memory_account` counts them, without making shards."""
    rows, buffers = np.zeros((2, task.topology.devices), dtype=np.int64)
    for deal in dealt:
        deal.book(task, rows, buffers)
    return rows, buffers


_ROUNDS = 12
_WORTHWHILE = 1e-4
_HALVINGS = 12
_LEVELS = (1, 2, 4)  # levels of cold rows to try, if memories are unequal
_NEAR_ENOUGH = 1.02


@dataclass(frozen=True, eq=False)
class Fitted:
    """Tiers at some boundaries: their predicted cost, and the `(devices,)` bytes of their rows and buffers."""

    boundaries: Ints
    ms: float
    dealt: list[Deal]
    rows: Ints
    buffers: Ints

    def excess(self, memory: Ints) -> Ints:
        """`(devices,)` bytes that the memory lacks."""
        lacking: Ints = np.maximum(self.rows + self.buffers - memory, 0)
        return lacking


class Dealer:
    """Finds tiers that fit the memory that other shards leave."""

    def __init__(self, task: Task, tables: Sequence[Table], rates: Rates, others: Sequence[Shard]) -> None:
        self._task, self._tables, self._rates, self._others = task, tables, rates, others
        self._tiers = {way.tier for way in rates.ways}  # as a rule, a device has a block of each tier of a table
        self.memory: Ints = np.array(task.topology.memory_bytes, dtype=np.int64) - memory_account(task, others).total
        self._waits = _waits(task, others)
        self._levels = 1

    def best(self, relaxation: TierRelaxation) -> Fitted:
        """The best tiers found.

        If devices have unequal memory, cold rows on all alike are tried first: further levels of cold rows need separate buffers.

        Raises:
            InfeasibleTask: there is no room to hold every row once.
        """
        if np.ptp(self.memory) == 0:
            return self._fitted(relaxation, self.memory)
        fitted, refused = [], None
        ideal = self._boundaries(relaxation, (self.memory - self._reserve()).astype(np.float64))[1]
        for self._levels in _LEVELS:
            memory = np.full_like(self.memory, self.memory.min()) if self._levels == 1 else self.memory
            try:
                fitted.append(self._fitted(relaxation, memory))
            except InfeasibleTask as error:
                refused = error
                continue
            if fitted[-1].ms <= _NEAR_ENOUGH * ideal:
                return fitted[-1]
        if refused is not None and not fitted:
            raise refused
        return min(fitted, key=self.communication)

    def communication(self, fitted: Fitted) -> float:
        """Ms of the slowest device's forward plus the slowest device's backward communication."""
        shards = [*self._others, *(shard for deal in fitted.dealt for shard in deal.shards())]
        return sum(float(ms.max()) for ms in communication_ms(self._task, shards))

    def _fitted(self, relaxation: TierRelaxation, memory: Ints) -> Fitted:
        """The best tiers found that fit the memory of every device.

        Buffers depend on the tiers. The first round assumes a block of each tier of each table on a device, later ones the real blocks.
        """
        best: Fitted | None = None
        budget: Floats = (memory - self._reserve()).astype(np.float64)
        for _ in range(_ROUNDS):
            tried = self._tried(self._boundaries(relaxation, budget), budget)
            excess = tried.excess(memory)
            if not excess.any():
                if best is not None and tried.ms >= best.ms * (1 - _WORTHWHILE):
                    break
                best, budget = tried, (memory - tried.buffers - self._uneven()).astype(np.float64)
            elif best is not None:
                break
            else:  # if memories are equal, budgets stay equal
                budget -= excess if np.ptp(memory) > 0 else excess.max()
        return best or self._smaller(tried, budget, memory)

    def _smaller(self, tried: Fitted, budget: Floats, memory: Ints) -> Fitted:
        """Make tiers that do not fit smaller until they do; at last, hold every row once.

        Raises:
            InfeasibleTask: every row once does not fit either.
        """
        for factor in (*0.5 ** np.arange(_HALVINGS), 0.0):
            smaller = np.floor(tried.boundaries * factor).astype(np.int64)
            tried = self._tried((smaller, np.inf), budget if factor else memory.astype(np.float64))
            if not (excess := tried.excess(memory)).any():
                return tried
        rank = int(excess.argmax())
        raise InfeasibleTask(
            f"rank {rank} lacks {format_bytes(float(excess[rank]))} for its share of the sequence tables, even with every row held only "
            "once: use more devices or memory, a smaller batch, or an optimizer with less state"
        )

    def _boundaries(self, relaxation: TierRelaxation, budget: Floats) -> tuple[Ints, float]:
        """`(tables, 2)` ends of the hot and the warm rows under budgets, and their predicted ms."""
        each = float(budget.min()) if np.ptp(budget) > 0 else None
        mixture: Mixture | None = None
        if budget.min() > 0 and self._task.topology.devices > 1:
            mixture = relaxation.solve(Limits(float(budget.sum()), each, self._waits))
        if mixture is None:
            return np.zeros((len(self._tables), 2), dtype=np.int64), np.inf
        rates = self._rates
        of_tier = [mixture.rows[rates.of_tier(tier)].sum(axis=0) for tier in ("hot", "warm")]
        held = np.stack([np.bincount(rates.table, rows, len(self._tables)) for rows in of_tier], axis=1)
        most = np.array([table.rows for table in self._tables])[:, None]
        ends: Ints = np.minimum(np.floor(np.cumsum(held, axis=1) + 1e-6), most).astype(np.int64)
        return ends, mixture.ms

    def _tried(self, optimum: tuple[Ints, float], budget: Floats) -> Fitted:
        """Deal out the tiers at some boundaries."""
        task, per_host, (boundaries, ms) = self._task, self._task.topology.devices_per_host, optimum
        row = np.array([row_memory(task, table) for table in self._tables], dtype=np.float64)
        rows = np.array([table.rows for table in self._tables], dtype=np.float64)
        hot, warm = boundaries.T
        gradient = np.array([gradient_memory(task, table) for table in self._tables], dtype=np.float64)
        above = float(((hot + (warm - hot) / per_host) * (row + gradient)).sum())
        levels = cold_levels(budget - above, float(((rows - warm) * row).sum()), self._levels)
        dealt = list(deals(task, self._tables, boundaries, levels))
        return Fitted(boundaries, ms, dealt, *bytes_of(task, dealt))

    def _reserve(self) -> float:
        """Bytes of a device's buffers with a block of each tier and level of each table, plus the unevenness of blocks."""
        topology, batch, total = self._task.topology, self._task.batch_size, self._uneven()
        batches = self._task.exchange.batches
        copies = {"cold": 1 / self._levels, "warm": topology.hosts, "hot": topology.devices}
        samples = sum(batch / copies[tier] for tier in self._tiers) + 2 * len(self._tiers)
        for table in self._tables:
            lookups = table.pooling * batch / topology.devices + len(self._tiers)
            total += 8 * batches * samples * len(table.poolings) + (8 * batches + 8 * table.dim) * lookups
        return total

    def _uneven(self) -> float:
        """Unevenness of blocks in bytes: a row of each tier of each table."""
        rows = sum(row_memory(self._task, table) + gradient_memory(self._task, table) for table in self._tables)
        return float(len(self._tiers) * rows)


def _waits(task: Task, others: Sequence[Shard]) -> Floats:
    """`(6,)` ms by collective and link class: latency, plus the slowest device's time to send the traffic of other shards."""
    flows, prices = traffic(task, others), prices_of(task)
    sets = sets_of(task, others) | {set_of("all_to_all", False)}
    of_passes = [
        wait + class_ms(task, flow).max(axis=1) + flow.apart.max()
        for flow, wait in zip((flows.forward, flows.backward), waits_of(prices, sets), strict=True)
    ]
    return np.concatenate([*of_passes, np.zeros(2)])
