"""The task of one sharding group, and the memory of its devices.

With fully sharded groups, TorchRec's `ShardedBatchedFusedEmbeddingBag` averages the weights after the forward pass: a reduce-scatter
writes each device's part to a buffer. It frees the whole weights and gathers them before the backward pass. With n groups a device holds

    during the exchange          all weights and 1 / n of them; plus one padded copy of all weights if n does not divide them
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
from shardwright.task.sharding_groups import ShardingGroups
from shardwright.task.task import Task


@dataclass(frozen=True)
class GroupMemory:
    """Bytes on each device of a group, `(devices,)`.

    Attributes:
        peak: the most that a step takes; it must fit.
        between: held between forward and backward pass, while the dense layers work.
    """

    peak: Ints
    between: Ints


def group_task(task: Task, groups: ShardingGroups) -> Task:
    """Return the task of one sharding group: its devices, and its share of the batch.

    The memory of a device in the group is the smallest among its replicas.

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
    """Turn a task with the devices of a group into the task of that group; returns the same task if there is only one group.

    Fully sharded groups get less memory in the task, so that the peak of allocation fits.
    """
    if groups.count == 1:
        return task
    topology = task.topology
    if groups.fully_sharded:
        pads = math.gcd(COLUMN_UNIT, *(table.dim for table in task.tables)) % groups.count  # does not divide all blocks
        whole = 2 if pads else 1
        room = [size * groups.count // (whole * groups.count + 1) for size in topology.memory_bytes]
        topology = replace(topology, memory=[max(size, 1) for size in room])
    return replace(task, topology=topology, groups=groups)


def group_memory(plan: Plan) -> GroupMemory:
    """Bytes on the devices of a plan: the memory account, with the buffers of fully sharded groups."""
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
