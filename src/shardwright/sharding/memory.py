"""The memory account of a plan: the bytes that each device must hold.

Per shard and device, with R rows, C columns, b bytes a weight, S bags and L lookups (see `shard_work`). A table has a bag for each sample
and each of its features:

    weights     R · C · b
    optimizer   sgd 0 · rowwise_adagrad 4 R · adagrad 4 R C · adam 8 R C
    input       8 L (ids) + 8 (S + 1) (offsets)
    output      4 C S pooled, 4 C L not pooled; once for the activations and once for their gradient
    gradient    4 R C on each replica that reduces the whole gradient of its block; 2 R C for pooled fp16 weights

Optimizer state is fp32 for every weight type, as in FBGEMM. int8 weights add 8 bytes of scale and bias a row.

Replicas of pooled tables reduce whole gradients, in the type of the weights (DistributedDataParallel's buckets). Replicas of sequence
tables do so, in fp32, if `Exchange.replica_gradients` is "whole". With "cheaper" they reduce a whole block only if a step looks up nearly
all of its rows. The gradient is then about as large as those of the lookups, which are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Ints
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import WEIGHT_BYTES, ShardWork, ShardWorks, shard_work
from shardwright.task.table import DTYPE_BYTES
from shardwright.task.task import Task

_INDEX_BYTES = 8
_ACTIVATION_BYTES = 4
STATE_BYTES = {"sgd": (0, 0), "rowwise_adagrad": (4, 0), "adagrad": (0, 4), "adam": (0, 8)}
"""Bytes of optimizer state for each row, and for each weight."""


@dataclass(frozen=True)
class MemoryAccount:
    """Bytes of each device, `(devices,)`.

    Attributes:
        weights: embedding weights.
        optimizer: optimizer state.
        buffers: ids and offsets of the batches in the pipeline, activations and their gradients of one; for replicas also the block's
            gradient.
    """

    weights: Ints
    optimizer: Ints
    buffers: Ints

    @property
    def total(self) -> Ints:
        """`(devices,)` bytes of all parts together."""
        return self.weights + self.optimizer + self.buffers


def optimizer_bytes(optimizer: str, rows: int, dim: int) -> int:
    """Bytes of optimizer state of a block of `rows` × `dim` weights."""
    by_row, by_weight = STATE_BYTES[optimizer]
    return (by_row + by_weight * dim) * rows


def buffer_bytes(work: ShardWork, batches: int = 1) -> int:
    """Bytes of a shard's buffers on one device: inputs of as many batches as a pipeline holds, outputs and their gradients of one."""
    lookups = math.ceil(work.lookups)
    inputs = _INDEX_BYTES * (lookups + work.bags + 1) + WEIGHT_BYTES * work.weighted * lookups
    outputs = _ACTIVATION_BYTES * work.dim * math.ceil(work.outputs)
    return batches * inputs + 2 * outputs


def gradient_size(task: Task, pooled: bool, dtype: str) -> int:
    """Bytes per weight of the gradient that each replica of a table holds; 0 if replicas send only the looked-up rows."""
    if not pooled and task.exchange.replica_gradients != "whole":
        return 0
    return DTYPE_BYTES["fp16"] if pooled and dtype == "fp16" else DTYPE_BYTES["fp32"]


def gradient_bytes(task: Task, work: ShardWork, replicas: int) -> int:
    """Bytes of the whole block's gradient on each of its replicas; 0 for a block on one device."""
    return gradient_size(task, work.pooled, work.dtype) * work.rows * work.dim if replicas > 1 else 0


def block_bytes(task: Task, work: ShardWork, replicas: int = 1) -> int:
    """Bytes that a shard with this work takes on each of its devices."""
    return sum(block_parts(task, work, replicas))


def shard_bytes(task: Task, shard: Shard) -> int:
    """Bytes that `shard` takes on each of its devices."""
    return block_bytes(task, shard_work(task, shard), len(shard.devices))


def memory_account(task: Task, shards: Iterable[Shard]) -> MemoryAccount:
    """Return the bytes that `shards` take on every device of the task's topology."""
    parts = np.zeros((3, task.topology.devices), dtype=np.int64)
    works = ShardWorks(task)
    known: dict[int, Ints] = {}
    for shard in shards:
        work = works.of(shard)
        if id(work) not in known:
            known[id(work)] = np.array(block_parts(task, work, len(shard.devices)), dtype=np.int64)
        parts[:, list(shard.devices)] += known[id(work)][:, None]
    return MemoryAccount(*parts)


def block_parts(task: Task, work: ShardWork, replicas: int) -> tuple[int, int, int]:
    """Bytes of weights, optimizer state and buffers that a shard with this work takes on each of its devices."""
    state = optimizer_bytes(task.optimizer, work.rows, work.dim)
    buffers = buffer_bytes(work, task.exchange.batches)
    return work.weight_bytes, state, buffers + gradient_bytes(task, work, replicas)
