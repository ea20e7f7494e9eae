"""Boundaries of all sequence tables together, their blocks, and how far their communication is from the best possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.cost.flows import Floats
from shardwright.cost.score import communication_ms
from shardwright.search.flexshard.bound import communication_bound, tier_bound
from shardwright.search.flexshard.dealing import bytes_of, cold_levels, deals
from shardwright.search.flexshard.fitting import Dealer, Fitted
from shardwright.search.flexshard.rates import Ints, Tier, rates_of, row_memory
from shardwright.search.flexshard.relaxation import Relaxation
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.task import Task

ALL_TIERS: tuple[Tier, ...] = ("cold", "hot", "warm")
_NEAR_ENOUGH = 1.1  # of the bound: beyond it, memory is so tight that other tiers are tried too


@dataclass(frozen=True, eq=False)
class TierPlan:
    """Tiers of the sequence tables of a task.

    Attributes:
        task: the task.
        boundaries: end of the hot and of the warm rows of each table, hottest first.
        shards: the blocks of the tables, and those that were given besides.
        bound_ms: no choice of tiers has less `communication_ms`.
        plans_bound_ms: no plan of the task has, whatever its blocks. It is lower where memory is tight: a plan may save the offsets of a
            whole batch, which every device needs for each table of which it holds cold rows, by holding those on few devices.
    """

    task: Task
    boundaries: dict[str, tuple[int, int]]
    shards: tuple[Shard, ...]
    bound_ms: float
    plans_bound_ms: float

    @cached_property
    def communication_ms(self) -> float:
        """Slowest device's forward plus slowest device's backward communication."""
        forward, backward = communication_ms(self.task, self.shards)
        return float(forward.max() + backward.max())

    @property
    def gap(self) -> float:
        """(communication − bound) / bound; 0 where there is no communication."""
        return self.communication_ms / self.bound_ms - 1 if self.bound_ms > 0 else 0.0


def tier_plan(task: Task, *, tiers: Sequence[Tier] = ALL_TIERS, others: Sequence[Shard] = ()) -> TierPlan:
    """Choose the tiers of all sequence tables that `others` does not hold.

    Args:
        task: the task.
        tiers: tiers to use; always "cold" first.
        others: shards of the other tables, whose memory and traffic are taken into account.

    Raises:
        InfeasibleTask: the memory does not hold the tables in equal cold blocks either.
    """
    settled = {shard.table for shard in others}
    tables = [table for table in task.tables if not table.pooled and table.name not in settled]
    plans_bound, relaxation = communication_bound(task)
    if not tables:
        return TierPlan(task, {}, tuple(others), plans_bound, plans_bound)
    rates = rates_of(task, tables, tiers)
    of_these = len(tables) == sum(not table.pooled for table in task.tables) and tuple(tiers) == ALL_TIERS
    found = Relaxation(rates, relaxation if of_these else None)
    dealer = Dealer(task, tables, rates, others)
    bound = max(plans_bound, tier_bound(task, dealer.memory, found))
    best = dealer.best(found)
    if best.ms > bound * _NEAR_ENOUGH:
        best = _with_fewer_tiers(task, tables, tiers, others, best)
    ends = {table.name: (hot, warm) for table, (hot, warm) in zip(tables, best.boundaries.tolist(), strict=True)}
    shards = (*others, *(shard for deal in best.dealt for shard in deal.shards()))
    return TierPlan(task, ends, shards, bound, plans_bound)


def _with_fewer_tiers(
    task: Task, tables: Sequence[Table], tiers: Sequence[Tier], others: Sequence[Shard], best: Fitted
) -> Fitted:
    """The best with all tiers, or with one of the upper ones left out: a tier takes buffers, for which little memory may be too tight."""
    found = [best]
    for left_out in tiers[1:] if len(tiers) > 2 else ():
        rates = rates_of(task, tables, [tier for tier in tiers if tier != left_out])
        dealer = Dealer(task, tables, rates, others)
        found.append(dealer.best(Relaxation(rates)))
    return found[0] if len(found) == 1 else min(found, key=dealer.communication)


def least_memory(task: Task, tables: Sequence[Table], room: Floats | Ints) -> Ints:
    """`(devices,)` bytes that some tables take where every row is held once, dealt to devices with `(devices,)` bytes of room."""
    if not tables:
        return np.zeros(task.topology.devices, dtype=np.int64)
    need = float(sum(table.rows * row_memory(task, table) for table in tables))
    spared = sum((8 + 8 * table.dim) * table.pooling * task.batch_size for table in tables) / task.topology.devices
    levels = cold_levels(np.asarray(room, dtype=np.float64) - spared, need)
    rows, buffers = bytes_of(task, list(deals(task, tables, np.zeros((len(tables), 2), dtype=np.int64), levels)))
    return rows + buffers
