"""Boundaries and blocks that the memory of every device is large enough for, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.flows import Floats
from shardwright.cost.score import communication_ms, traffic
from shardwright.errors import InfeasibleTask
from shardwright.search.flexshard.dealing import Deal, bytes_of, cold_levels, deals
from shardwright.search.flexshard.rates import Ints, Rates, gradient_memory, row_memory
from shardwright.search.flexshard.relaxation import Limits, Mixture, Relaxation
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.units import format_bytes

_ROUNDS = 12
_WORTHWHILE = 1e-4
_HALVINGS = 12
_LEVELS = (1, 2, 4)  # of cold rows, where memories are unequal
_NEAR_ENOUGH = 1.02


@dataclass(frozen=True, eq=False)
class Fitted:
    """Tiers at some boundaries: what they should cost, and the `(devices,)` bytes of their rows and buffers."""

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
    """Tiers within the memory that others leave."""

    def __init__(self, task: Task, tables: Sequence[Table], rates: Rates, others: Sequence[Shard]) -> None:
        self._task, self._tables, self._rates, self._others = task, tables, rates, others
        self._tiers = {way.tier for way in rates.ways}  # of each, a device has a block of a table, as a rule
        self.memory: Ints = np.array(task.topology.memory_bytes, dtype=np.int64) - memory_account(task, others).total
        self._waits = _waits(task, others)
        self._levels = 1

    def best(self, relaxation: Relaxation) -> Fitted:
        """The best tiers found.

        Where devices have unequal memory, cold rows on all alike come first: further levels of cold rows need buffers of their own.

        Raises:
            InfeasibleTask: there is no room for every row once.
        """
        if np.ptp(self.memory) == 0:
            return self._fitted(relaxation, self.memory)
        found, refused = [], None
        ideal = self._boundaries(relaxation, (self.memory - self._reserve()).astype(np.float64))[1]
        for self._levels in _LEVELS:
            memory = np.full_like(self.memory, self.memory.min()) if self._levels == 1 else self.memory
            try:
                found.append(self._fitted(relaxation, memory))
            except InfeasibleTask as error:
                refused = error
                continue
            if found[-1].ms <= _NEAR_ENOUGH * ideal:
                return found[-1]
        if refused is not None and not found:
            raise refused
        return min(found, key=self.communication)

    def communication(self, one: Fitted) -> float:
        """Ms of the slowest device's forward plus the slowest device's backward communication."""
        shards = [*self._others, *(shard for deal in one.dealt for shard in deal.shards())]
        return sum(float(ms.max()) for ms in communication_ms(self._task, shards))

    def _fitted(self, relaxation: Relaxation, memory: Ints) -> Fitted:
        """The best tiers found that no device's memory is too small for.

        Buffers depend on the tiers: at first a device is thought to have a block of each tier of each table, then what it has.
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
            else:  # where memories are equal, budgets stay so
                budget -= excess if np.ptp(memory) > 0 else excess.max()
        return best or self._smaller(tried, budget, memory)

    def _smaller(self, tried: Fitted, budget: Floats, memory: Ints) -> Fitted:
        """Tiers that do not fit made smaller until they do; every row once at last.

        Raises:
            InfeasibleTask: that does not fit either.
        """
        for factor in (*0.5 ** np.arange(_HALVINGS), 0.0):
            smaller = np.floor(tried.boundaries * factor).astype(np.int64)
            tried = self._tried((smaller, np.inf), budget if factor else memory.astype(np.float64))
            if not (excess := tried.excess(memory)).any():
                return tried
        rank = int(excess.argmax())
        raise InfeasibleTask(
            f"rank {rank} lacks {format_bytes(float(excess[rank]))} for its part of the sequence tables, rows dealt out to all devices "
            "and none of them twice: use more devices or memory, a smaller batch, or an optimizer with less state"
        )

    def _boundaries(self, relaxation: Relaxation, budget: Floats) -> tuple[Ints, float]:
        """`(tables, 2)` ends of the hot and the warm rows under budgets, and what they should cost."""
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

    def _tried(self, found: tuple[Ints, float], budget: Floats) -> Fitted:
        """Tiers at some boundaries."""
        task, near, (boundaries, ms) = self._task, self._task.topology.devices_per_host, found
        row = np.array([row_memory(task, table) for table in self._tables], dtype=np.float64)
        rows = np.array([table.rows for table in self._tables], dtype=np.float64)
        hot, warm = boundaries.T
        gradient = np.array([gradient_memory(task, table) for table in self._tables], dtype=np.float64)
        above = float(((hot + (warm - hot) / near) * (row + gradient)).sum())
        levels = cold_levels(budget - above, float(((rows - warm) * row).sum()), self._levels)
        dealt = list(deals(task, self._tables, boundaries, levels))
        return Fitted(boundaries, ms, dealt, *bytes_of(task, dealt))

    def _reserve(self) -> float:
        """Bytes of the buffers of a device, with a block of each tier and level of each table, and what blocks are uneven by."""
        topology, batch, total = self._task.topology, self._task.batch_size, self._uneven()
        copies = {"cold": 1 / self._levels, "warm": topology.hosts, "hot": topology.devices}
        samples = sum(batch / copies[tier] for tier in self._tiers) + 2 * len(self._tiers)
        for table in self._tables:
            lookups = table.pooling * batch / topology.devices + len(self._tiers)
            total += 8 * samples + (8 + 8 * table.dim) * lookups
        return total

    def _uneven(self) -> float:
        """Bytes of a row of each tier of each table."""
        rows = sum(row_memory(self._task, table) + gradient_memory(self._task, table) for table in self._tables)
        return float(len(self._tiers) * rows)


def _waits(task: Task, others: Sequence[Shard]) -> Floats:
    """`(4,)` latency, and ms of the slowest device for what others send."""
    topology = task.topology
    latency = np.array([topology.intra_latency_ms, topology.inter_latency_ms])
    present = np.array([topology.devices_per_host > 1, topology.hosts > 1])
    flows = traffic(task, others)
    busiest = [np.maximum(flow.sent, flow.received).max(axis=1) for flow in (flows.forward, flows.backward)]
    bandwidth = np.array(topology.link_bandwidth)
    return np.concatenate([latency * present + bytes_ / bandwidth * 1e3 for bytes_ in busiest])
