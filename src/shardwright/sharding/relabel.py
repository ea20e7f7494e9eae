"""Renumber the devices of a new plan so that they keep the bytes they hold. Equal devices are interchangeable; their bytes are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.errors import InvalidPlan
from shardwright.linear_programs import Program
from shardwright.sharding.diff import Carried, carry, element_bytes, moved_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task


def relabelled(plan: Plan, older: Plan) -> Plan:
    """The plan with its hosts, and the devices of each host, renumbered so that the fewest bytes of an older plan move.

    Args:
        plan: a plan of the older one's task, or of one with other tables or devices.
        older: the plan that runs now.

    Returns:
        A plan that costs the same up to the order of row blocks on ranks; `plan` itself if devices differ, if a constraint names some of
        them, or if renumbering saves no bytes.
    """
    task = plan.task
    fixed = any(task.constraints.of(table.name).devices is not None for table in task.tables)
    if fixed or len(set(task.topology.memory_bytes)) > 1 or plan.shards == older.shards:
        return plan
    carried = carry(older, task)
    rank_of = _best_ranks(_kept(plan, carried), task.topology.devices_per_host)
    if (rank_of == np.arange(rank_of.size)).all():
        return plan
    newer = replace(plan, shards=tuple(_renumbered(task, plan.shards, rank_of)), cost=None)
    try:
        newer.check()
    except InvalidPlan:
        return plan
    return newer if moved_bytes(task, carried, newer.by_table) < moved_bytes(task, carried, plan.by_table) else plan


def _kept(plan: Plan, carried: Carried) -> Floats:
    """`(devices, devices)` bytes of each plan device's blocks that each device already holds."""
    task = plan.task
    kept = np.zeros((task.topology.devices, task.topology.devices))
    for name, before in carried.shards.items():
        size = element_bytes(task, task.table_by_name[name])
        for block in plan.by_table[name]:
            ranks = np.array(block.devices)[:, None]
            for other in before:
                if common := block.common(other):
                    kept[ranks, other.devices] += size * common
    return kept


def _best_ranks(kept: Floats, per_host: int) -> Ints:
    """The new rank of each device: hosts stay together, and as many bytes as possible stay. Devices that save no bytes keep their ranks.

    Hosts are matched first, by the most bytes that each of their devices could keep; then the devices of matched hosts.
    """
    hosts = len(kept) // per_host
    gains = kept.reshape(hosts, per_host, hosts, per_host)
    ranks = np.empty(len(kept), dtype=np.int64)
    for new, old in enumerate(_matched(gains.max(axis=3).sum(axis=1))):
        ranks[new * per_host : (new + 1) * per_host] = old * per_host + _matched(gains[new, :, old])
    return ranks


def _matched(gains: Floats) -> Ints:
    """`(n,)` columns of a best one-to-one match of the rows and columns of `(n, n)` gains; the identity if no match gains more."""
    count, largest = len(gains), float(gains.max())
    if largest <= 0:
        return np.arange(count)
    program = Program()
    pairs = program.variables(np.ones(count * count), cost=-(gains / largest + 1e-6 * np.eye(count)).ravel()).reshape(
        count, count
    )
    for places in (*pairs, *pairs.T):
        program.row(places, 1.0, low=1.0, high=1.0)
    values = program.relaxed().values  # vertices of the assignment polytope are integral
    return np.arange(count) if values is None else values.reshape(count, count).argmax(axis=1)


def _renumbered(task: Task, shards: Sequence[Shard], rank_of: Ints) -> Iterator[Shard]:
    """The shards on new ranks; row blocks that lay on ascending ranks do so again, as TorchRec deals them."""
    groups: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in shards:
        groups.setdefault((shard.table, shard.columns), []).append(shard)
    for blocks in groups.values():
        in_order = sorted(blocks, key=lambda block: block.rows)
        ranks = [block.devices for block in in_order]
        moved = [tuple(sorted(rank_of[list(devices)].tolist())) for devices in ranks]
        if len(ranks) > 1 and ranks == sorted(ranks) and len(set(ranks)) == len(ranks):
            moved.sort()
        yield from (replace(block, devices=devices) for block, devices in zip(in_order, moved, strict=True))
