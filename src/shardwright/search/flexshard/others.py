"""What a plan of tiers holds besides: pooled tables, and sequence tables that their constraints keep from being tiered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.search.certified import Certified
from shardwright.search.flexshard.planning import least_memory
from shardwright.search.flexshard.rates import Ints
from shardwright.search.uniform import KINDS, place_uniformly, why_not_uniform
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import Constraints
from shardwright.task.table import Table
from shardwright.task.task import Task

_EVEN = 1.15
"""Even shares of the pooled tables that a device may take, if there is a plan with that: tiers need room on all devices."""


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
    even = _even_share(pooled)
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
    """The plan of `certified`, about as much on every device if that can be, so that room for tiers is left on all."""
    for most in (np.minimum(room, max(even, 1)), room):
        topology = replace(pooled.topology, memory=most.tolist())
        try:
            found = Certified().search(replace(pooled, topology=topology), cost_model, seed=seed, deadline=deadline)
        except InfeasibleTask:
            if most is room:
                raise
            continue
        return list(found.shards)
    raise AssertionError("one of the two attempts returns or raises")


def _even_share(pooled: Task) -> int:
    """Bytes a device takes if pooled tables, none of them cut, were shared out evenly."""
    return sum(shard_bytes(pooled, Shard.whole(table, 0)) for table in pooled.tables) // pooled.topology.devices


def _pooled_task(task: Task) -> Task | None:
    """The pooled tables as a task of their own; None where there are none."""
    tables = [table for table in task.tables if table.pooled]
    if not tables:
        return None
    names, limits = {table.name for table in tables}, task.constraints
    within = [tuple(group for group in groups if set(group) <= names) for groups in (limits.colocate, limits.apart)]
    kept = Constraints({name: one for name, one in limits.tables.items() if name in names}, *within)
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
