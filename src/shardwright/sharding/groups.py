"""The task of one sharding group, and what its devices hold.

Where groups are fully sharded, TorchRec's `ShardedBatchedFusedEmbeddingBag` averages the weights after the forward pass by a reduce-scatter
into a buffer of a part of them, lets go of the whole, and gathers them again before the backward pass. With n groups a device holds

    during the exchange          all weights, and 1 / n of them; once more all, where n does not divide them and a copy is padded
    between the two exchanges    1 / n of the weights

besides optimizer state and buffers. Replicated tables stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Ints
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT
from shardwright.sharding.work import ShardWorks
from shardwright.task.groups import ShardingGroups
from shardwright.task.task import Task


@dataclass(frozen=True)
class GroupMemory:
    """Bytes on the devices of a group, `(devices,)` each.

    Attributes:
        peak: the most that a step takes, which must fit.
        between: what is held between forward and backward pass, while the dense layers work.
    """

    peak: Ints
    between: Ints


def group_task(task: Task, groups: ShardingGroups) -> Task:
    """The task of one of the sharding groups of a task's cluster: its devices, and its share of the batch.

    A device of the group may hold what the smallest of its replicas can.

    Raises:
        InvalidInput: a constraint names a rank that the group does not have.
    """
    hosts, per_host = groups.group_shape
    memory = task.topology.memory_bytes
    least = [min(memory[replica] for replica in groups.replicas(rank)) for rank in range(groups.size)]
    topology = replace(task.topology, hosts=hosts, devices_per_host=per_host, memory=least)
    batch = -(-task.batch_size * groups.size // groups.devices)
    return in_group(replace(task, topology=topology, batch_size=batch), groups)


def in_group(task: Task, groups: ShardingGroups) -> Task:
    """The task of one of the groups, made from a task with a group's devices; the same task where there is one group only.

    The memory of fully sharded groups is lowered, so that what is allocated at the peak fits.
    """
    if groups.count == 1:
        return task
    topology = task.topology
    if groups.fully_sharded:
        whole = 2 if _may_pad(task, groups.count) else 1
        room = [size * groups.count // (whole * groups.count + 1) for size in topology.memory_bytes]
        topology = replace(topology, memory=[max(size, 1) for size in room])
    return replace(task, topology=topology, groups=groups)


def group_memory(plan: Plan) -> GroupMemory:
    """What the devices of a plan hold: the memory account, and for fully sharded groups what their exchange adds and frees."""
    total, groups = plan.memory.total, plan.task.groups
    if groups is None or not groups.fully_sharded:
        return GroupMemory(total, total)
    works, count = ShardWorks(plan.task), groups.count
    sharded, padded = np.zeros_like(total), np.zeros_like(total)
    for shard in plan.shards:
        if len(shard.devices) == 1:
            sharded[shard.devices[0]] += works.of(shard).weight_bytes
            padded[shard.devices[0]] |= shard.row_count * shard.dim % count
    part = -(-sharded // count)
    return GroupMemory(total + part + np.where(padded > 0, sharded, 0), total - sharded + part)


def _may_pad(task: Task, count: int) -> bool:
    """Whether a block may have a number of weights that `count` does not divide."""
    return math.gcd(COLUMN_UNIT, *(table.dim for table in task.tables)) % count != 0
