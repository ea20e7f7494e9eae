"""The strategies `flexshard` and `two_tiers`: sequence tables in tiers, and everything else placed around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.cost.score import communication_ms
from shardwright.errors import InfeasibleTask
from shardwright.search.baselines import KINDS, place_uniformly, why_not_uniform
from shardwright.search.certified import Certified
from shardwright.search.flexshard.bound import (
    Tier,
    TierRelaxation,
    communication_bound,
    rates_of,
    row_memory,
    tier_bound,
)
from shardwright.search.flexshard.dealing import Dealer, Fitted, bytes_of, cold_levels, deals
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import Constraints
from shardwright.task.table import Table
from shardwright.task.task import Task

ALL_TIERS: tuple[Tier, ...] = ("cold", "hot", "warm")
_NEAR_ENOUGH = 1.1  # times the bound: above it, memory is so tight that other tiers are tried too


@dataclass(frozen=True, eq=False)
class TierPlan:
    """Tiers of the sequence tables of a task.

    Attributes:
        task: the task.
        boundaries: end of the hot and of the warm rows of each table, hottest first.
        shards: the blocks of these tables, and the shards that were given for others.
        bound_ms: no choice of tiers has less `communication_ms`.
        plans_bound_ms: no plan of the task, with any blocks, has less. It is lower than `bound_ms` if memory is tight: every device that
            holds cold rows of a table needs the offsets of a whole batch, and a plan may save some by holding cold rows on few devices.
    """

    task: Task
    boundaries: dict[str, tuple[int, int]]
    shards: tuple[Shard, ...]
    bound_ms: float
    plans_bound_ms: float

    @cached_property
    def communication_ms(self) -> float:
        """Forward communication of the slowest device plus backward communication of the slowest device, in ms."""
        forward, backward = communication_ms(self.task, self.shards)
        return float(forward.max() + backward.max())

    @property
    def gap(self) -> float:
        """(communication − bound) / bound; 0 without communication."""
        return self.communication_ms / self.bound_ms - 1 if self.bound_ms > 0 else 0.0


def tier_plan(task: Task, *, tiers: Sequence[Tier] = ALL_TIERS, others: Sequence[Shard] = ()) -> TierPlan:
    """Choose the tiers of all sequence tables that `others` does not hold.

    Args:
        task: the task.
        tiers: tiers to use; always "cold" first.
        others: shards of the other tables, whose memory and traffic are taken into account.

    Raises:
        InfeasibleTask: the tables do not fit the memory, not even in equal cold blocks.
    """
    settled = {shard.table for shard in others}
    tables = [table for table in task.tables if not table.pooled and table.name not in settled]
    plans_bound, relaxation = communication_bound(task)
    if not tables:
        return TierPlan(task, {}, tuple(others), plans_bound, plans_bound)
    rates = rates_of(task, tables, tiers)
    of_these = len(tables) == sum(not table.pooled for table in task.tables) and tuple(tiers) == ALL_TIERS
    tier_relaxation = TierRelaxation(rates, relaxation if of_these else None)
    dealer = Dealer(task, tables, rates, others)
    bound = max(plans_bound, tier_bound(task, dealer.memory, tier_relaxation))
    best = dealer.best(tier_relaxation)
    if best.ms > bound * _NEAR_ENOUGH:
        best = _with_fewer_tiers(task, tables, tiers, others, best)
    ends = {table.name: (hot, warm) for table, (hot, warm) in zip(tables, best.boundaries.tolist(), strict=True)}
    shards = (*others, *(shard for deal in best.dealt for shard in deal.shards()))
    return TierPlan(task, ends, shards, bound, plans_bound)


def _with_fewer_tiers(
    task: Task, tables: Sequence[Table], tiers: Sequence[Tier], others: Sequence[Shard], best: Fitted
) -> Fitted:
    """Try all tiers, and all but one upper tier, and keep the best: a tier takes buffers, for which memory may be too tight."""
    fits = [best]
    for left_out in tiers[1:] if len(tiers) > 2 else ():
        rates = rates_of(task, tables, [tier for tier in tiers if tier != left_out])
        dealer = Dealer(task, tables, rates, others)
        fits.append(dealer.best(TierRelaxation(rates)))
    return fits[0] if len(fits) == 1 else min(fits, key=dealer.communication)


def least_memory(task: Task, tables: Sequence[Table], room: Floats | Ints) -> Ints:
    """`(devices,)` bytes that some tables take with every row held once, dealt to devices with `(devices,)` bytes of room."""
    if not tables:
        return np.zeros(task.topology.devices, dtype=np.int64)
    need = float(sum(table.rows * row_memory(task, table) for table in tables))
    spared = sum((8 + 8 * table.dim) * table.pooling * task.batch_size for table in tables) / task.topology.devices
    levels = cold_levels(np.asarray(room, dtype=np.float64) - spared, need)
    rows, buffers = bytes_of(task, list(deals(task, tables, np.zeros((len(tables), 2), dtype=np.int64), levels)))
    return rows + buffers


_EVEN = 1.15
"""How many even shares of the pooled tables a device may take, if a plan allows it: tiers need room on all devices."""


def tiered_tables(task: Task) -> list[Table]:
    """The sequence tables whose constraints allow tiers on all devices."""
    return [table for table in task.tables if not table.pooled and _may_be_tiered(task, table)]


def why_no_others(task: Task) -> str | None:
    """Why the tables that are not tiered cannot be planned; None if they can."""
    for table in _kept(task, tiered_tables(task)):
        if _kind_for(task, table) is None:
            allowed = ", ".join(task.constraints.of(table.name).sharding_types or ())
            return f"table '{table.name}' allows only {allowed}, and not tiered on all devices; allow that, or row_wise"
    pooled = _pooled_task(task)
    return None if pooled is None else Certified().supports(pooled)


def place_others(
    task: Task, tiered: list[Table], cost_model: CostModel, seed: int, deadline: float | None
) -> list[Shard]:
    """Shards of all tables but the tiered ones.

    Raises:
        InfeasibleTask: they do not fit beside the tiered tables with every row held once.
    """
    kinds = {table.name: _kind_for(task, table) for table in _kept(task, tiered)}
    kept = place_uniformly(task, {name: kind for name, kind in kinds.items() if kind is not None})
    pooled = _pooled_task(task)
    if pooled is None:
        return kept
    memory = np.array(task.topology.memory_bytes, dtype=np.int64)
    even = sum(shard_bytes(pooled, Shard.whole(table, 0)) for table in pooled.tables) // task.topology.devices
    held = memory_account(task, kept).total
    room = memory - held - least_memory(task, tiered, memory - held - even)
    if room.min() < 1:
        raise InfeasibleTask(
            f"rank {int(room.argmin())} has no memory left for pooled tables beside its part of the sequence tables: use more devices or "
            "memory"
        )
    return [*kept, *_placed_pooled(pooled, room, int(_EVEN * even), cost_model, seed, deadline)]


def _placed_pooled(
    pooled: Task, room: Ints, even: int, cost_model: CostModel, seed: int, deadline: float | None
) -> list[Shard]:
    """The shards of `certified`'s plan, spread evenly over the devices if possible, to leave room for tiers on all of them."""
    for most in (np.minimum(room, max(even, 1)), room):
        topology = replace(pooled.topology, memory=most.tolist())
        try:
            placed = Certified().search(replace(pooled, topology=topology), cost_model, seed=seed, deadline=deadline)
        except InfeasibleTask:
            if most is room:
                raise
            continue
        return list(placed.shards)
    raise AssertionError("one of the two attempts returns or raises")


def _pooled_task(task: Task) -> Task | None:
    """The pooled tables as a separate task; None if there are none."""
    tables = [table for table in task.tables if table.pooled]
    if not tables:
        return None
    names, limits = {table.name for table in tables}, task.constraints
    within = [tuple(group for group in groups if set(group) <= names) for groups in (limits.colocate, limits.apart)]
    kept = Constraints({name: limit for name, limit in limits.tables.items() if name in names}, *within)
    return replace(task, tables=tables, constraints=kept)


def _kept(task: Task, tiered: list[Table]) -> list[Table]:
    """Sequence tables that are not tiered."""
    names = {table.name for table in tiered}
    return [table for table in task.tables if not table.pooled and table.name not in names]


def _may_be_tiered(task: Task, table: Table) -> bool:
    limits, topology = task.constraints.of(table.name), task.topology
    blocks = 1 + topology.devices_per_host + topology.devices
    pinned = limits.devices is not None and len(set(limits.devices)) < topology.devices
    few = limits.max_shards is not None and limits.max_shards < blocks
    return limits.allows("tiered") and not pinned and not few and not limits.equal_rows


def _kind_for(task: Task, table: Table) -> str | None:
    return next((kind for kind in KINDS if why_not_uniform(task, table, kind) is None), None)


HOT_AND_COLD: tuple[Tier, ...] = ("cold", "hot")


@dataclass(frozen=True)
class FlexShard:
    """Sequence tables in tiers, chosen together; pooled tables by `certified` in the memory that equal cold rows leave.

    Attributes:
        tiers: tiers to use, "cold" first.
        name: name of the strategy.
    """

    tiers: tuple[Tier, ...] = ALL_TIERS
    name: str = "flexshard"

    def supports(self, task: Task) -> str | None:
        """Tasks with sequence tables that are not tied to other tables."""
        if all(table.pooled for table in task.tables):
            return "it has pooled tables only, and those send partial sums, not rows; use strategy certified"
        tied = {name for group in (*task.constraints.colocate, *task.constraints.apart) for name in group}
        clash = next((table.name for table in task.tables if not table.pooled and table.name in tied), None)
        if clash is not None:
            return f"sequence table '{clash}' is to be colocated with or kept apart from another; drop that, or use strategy auto"
        return why_no_others(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place the tables without tiers, then choose the tiers; only pooled tables need the cost model.

        Raises:
            InfeasibleTask: the tables do not fit the memory.
        """
        others = place_others(task, tiered_tables(task), cost_model, seed, deadline)
        tiered = tier_plan(task, tiers=self.tiers, others=others)
        return Plan(task, tiered.shards, self.name, seed, bound_ms=tiered.plans_bound_ms or None)


@dataclass(frozen=True)
class TwoTiers(FlexShard):
    """Two tiers only: rows replicated on all devices, and rows dealt out to all. A planner that ignores hosts does the same.

    It is not RecShard (ASPLOS 2022), whose program chooses between device and host memory.
    """

    tiers: tuple[Tier, ...] = HOT_AND_COLD
    name: str = "two_tiers"
