"""A proven bound on the communication of every plan of a task, whatever its blocks.

Any plan holds each row, or each column block of it, in some places: k copies on h hosts. Its bytes are at least linear in h and k
(`cost.sequences`), so it costs at least its cheapest extreme at the prices of `relaxation`, a column block its part of that:
values, gradients and weights are shared among column blocks, ids and row-wise states are not. A pass lasts at least as long as the
mean device's bytes take on either link, after the latency of a link that carries any. Memory is what all devices have together,
less the least that buffers of all tables, and pooled tables themselves, can take. What plans send for pooled tables is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.flows import Floats
from shardwright.cost.model import CostModel
from shardwright.search.flexshard.rates import Ints, Tier, rates_of, row_memory
from shardwright.search.flexshard.relaxation import Limits, Relaxation
from shardwright.sharding.costs import BoundScope
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.table import Table
from shardwright.task.task import Task

_EVERY_WAY: tuple[Tier, ...] = ("cold", "hot", "warm", "host")


def communication_bound(task: Task) -> tuple[float, Relaxation | None]:
    """Ms below which no plan's forward plus backward communication is, and the programme that says so; 0 where nothing need be sent."""
    sequences = [table for table in task.tables if not table.pooled]
    if not sequences or task.topology.devices == 1:
        return 0.0, None
    relaxation = Relaxation(rates_of(task, sequences, _EVERY_WAY))
    memory = float(sum(task.topology.memory_bytes)) - sum(_least_besides(task, table) for table in task.tables)
    rows = sum(_looked_up(table) * row_memory(task, table) for table in sequences)
    found = relaxation.solve(Limits(memory, None, _least_waits(task, rows, memory)))
    return (found.bound_ms, relaxation) if found else (0.0, relaxation)


def plans_bound(task: Task, cost_model: CostModel) -> tuple[float, BoundScope]:
    """Ms below which no plan of a task with sequence tables is, tiers and all blocks included, and what that counts.

    Kernels can be counted where a cost model has a `superadditive` one below it, by which no cutting makes a table cheaper: then
    the busiest device takes at least what all tables whole would, shared out evenly.
    """
    links = communication_bound(task)[0]
    least = getattr(cost_model, "superadditive", None)
    if least is None or least.pricing.hidden.size or (least.pricing.linear < 0).any():
        return links, "links"
    pricing = least.pricing
    whole = least.encode([shard_work(task, Shard.whole(table, 0)) for table in task.tables])
    kernels = float(pricing.price(whole.sum(axis=0) / task.topology.devices).sum())
    return kernels + links, "all"


def tier_bound(task: Task, memory: Ints, relaxation: Relaxation) -> float:
    """Ms below which the communication is in no tiers of some tables.

    Cold rows lie on all devices, each of which then takes the offsets of a whole batch: charged to each cold row in part, which is at most
    what they take. Where memories are unequal, cold rows may be on the roomier devices only, and no more than one block of them is charged.

    Args:
        task: the task.
        memory: `(devices,)` bytes for the tables.
        relaxation: the programme of their tiers.
    """
    if task.topology.devices == 1:
        return 0.0
    rates = relaxation.rates
    if np.ptp(memory) == 0:
        total = np.array([table.rows for table in rates.tables], dtype=np.float64)[rates.table]
        offsets = 8 * task.batch_size * (np.minimum(total, task.topology.devices) - 1) * rates.rows / total
        cold = np.array([way.tier == "cold" for way in rates.ways])
        relaxation = Relaxation(replace(rates, bytes=rates.bytes + np.outer(cold, offsets)), relaxation)
    free = float(memory.sum()) - sum(_least_besides(task, table) for table in rates.tables)
    looked_up = sum(_looked_up(table) * row_memory(task, table) for table in rates.tables)
    found = relaxation.solve(Limits(free, None, _least_waits(task, looked_up, free)))
    return found.bound_ms if found else 0.0


def _looked_up(table: Table) -> float:
    """Rows that samples look up at all."""
    return float(np.diff(table.access.rows)[np.diff(table.access.share) > 0].sum())


def _least_besides(task: Task, table: Table) -> float:
    """Bytes that a table takes at least, besides the rows of a sequence table."""
    lookups = table.pooling * task.batch_size
    if not table.pooled:
        return 8 * (lookups + task.batch_size) + 8 * table.dim * lookups
    values = 8 * table.dim * task.batch_size
    return table.rows * row_memory(task, table) + 8 * (lookups + task.batch_size) + values


def _least_waits(task: Task, rows: float, memory: float) -> Floats:
    """`(4,)` ms of latency that each link class can be charged.

    Gradients always use the links: between hosts where there are several, else inside. Rows are asked for unless all lie on all
    devices, and between hosts unless all lie on all hosts. Of a link that may be idle the other one's latency, if that is less, is
    sure all the same.

    Args:
        task: the task.
        rows: bytes of all rows that samples look up.
        memory: bytes for rows of all devices.
    """
    topology = task.topology
    near, far = topology.intra_latency_ms, topology.inter_latency_ms
    if topology.hosts == 1:
        all_local = rows * topology.devices <= memory
        return np.array([0.0 if all_local else near, 0.0, near, 0.0])
    least = min(near, far) if topology.devices_per_host > 1 else far
    if rows * topology.devices <= memory:
        forward = [0.0, 0.0]
    else:
        forward = [least, far if rows * topology.hosts > memory else least]
    return np.array([*forward, least, far])
