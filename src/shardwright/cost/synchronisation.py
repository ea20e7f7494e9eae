r"""The time to synchronise the replicas of sharding groups, as a part of kernel time.

With p replicas on each of h hosts, the all-reduce of B bytes takes (see `cost.score`; the slower of the two link classes counts)

    latency + B · max(2 (p - 1) / p / bandwidth inside a host,  2 (h - 1) / h / p / bandwidth between hosts)

and a step pays 1 / `sync_interval` of this time. B counts the weights, and their optimizer state, of the blocks that a device holds alone
in its group; each type of weights has one collective, and the state has one. The all-reduce follows the backward kernels of the same
device, and the next step's lookups wait for the slowest device. So it is part of backward time and linear in the blocks: searches balance
it, and bounds include it. Fully sharded groups scatter after the forward pass and gather before the backward pass, in every step; each is
half an all-reduce of the weights alone.

A table that is replicated inside a group has its gradients reduced over the whole cluster. The reduction inside a group counts as
communication; this module adds the extra time that the whole cluster takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays
from shardwright.cost.flows import GRADIENT_BYTES
from shardwright.cost.model import CostModel, Pricing, TaskModel
from shardwright.sharding.memory import STATE_BYTES
from shardwright.task.sharding_groups import Shape, ShardingGroups
from shardwright.task.task import Task
from shardwright.task.topology import Topology


class NoKernels(CostModel):
    """A cost model whose kernels take no time, so that only the synchronisation of groups is left."""

    name = "none"
    pricing = Pricing(np.zeros((0, 0)), np.zeros(0), np.zeros((2, 0)), np.zeros((2, 0)), np.zeros(2))

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 0)` encodings."""
        return np.zeros((len(works.rows), 0))


@dataclass(frozen=True, eq=False)
class GroupedModel(TaskModel):
    """A cost model that adds the synchronisation of replicas to the kernels of a base model."""

    base: CostModel
    task: Task
    groups: ShardingGroups

    @cached_property
    def pricing(self) -> Pricing:
        """The base model's pricing plus the synchronisation; a device pays the latency of synchronisation once, not once per call."""
        latency = _latency_ms(self.groups.replica_shape, self.task.topology)
        return self.priced(np.ones(2), self._passes * self._collectives * latency)

    @property
    def _passes(self) -> Floats:
        """`(2,)` number of all-reduces in the forward and in the backward pass of a step."""
        return np.array([0.5, 0.5]) if self.groups.fully_sharded else np.array([0.0, 1.0 / self.groups.sync_interval])

    @property
    def _collectives(self) -> int:
        if self.groups.fully_sharded:
            return 2  # a scatter and a gather, each with the latency of an all-reduce
        return len({table.dtype for table in self.task.tables}) + (self.task.optimizer != "sgd")

    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 2)` forward and backward ms to synchronise n shards; `latents` have no effect."""
        topology, groups = self.task.topology, self.groups
        weights = works.rows * works.dim
        by_row, by_weight = STATE_BYTES[self.task.optimizer]
        state = by_row * works.rows + by_weight * weights
        moved = weights * works.weight_size + (0.0 if groups.fully_sharded else state)
        sync = moved * all_reduce_ms_per_byte(groups.replica_shape, topology)
        cluster = all_reduce_ms_per_byte((groups.hosts, groups.devices_per_host), topology)
        within = all_reduce_ms_per_byte((topology.hosts, topology.devices_per_host), topology)
        reduce = GRADIENT_BYTES * weights * max(cluster - within, 0.0)
        alone = np.asarray(works.samples >= self.task.batch_size)[
            :, None
        ]  # not a replica: replicas share out the batch
        added: Floats = np.where(alone, np.outer(sync, self._passes), np.outer(reduce, [0.0, 1.0]))
        return added


def all_reduce_ms_per_byte(shape: Shape, topology: Topology) -> float:
    """Ms per byte of an all-reduce among replicas on `shape` (hosts, devices per host), without latency."""
    hosts, per_host = shape
    intra, inter = topology.bandwidth_of("all_reduce")
    return 1e3 * max(2 * (per_host - 1) / per_host / intra, 2 * (hosts - 1) / hosts / per_host / inter)


def _latency_ms(shape: Shape, topology: Topology) -> float:
    hosts, per_host = shape
    intra, inter = topology.latency_of("all_reduce")
    return max(intra if per_host > 1 else 0.0, inter if hosts > 1 else 0.0)
