"""What the plan of one table needs at the least, in any allowed way to shard it.

Every number is a lower bound over all plans that the checker accepts, whoever made them: column blocks of a single column, row blocks of a
single row, several blocks of a table on one device. So what is called impossible here is impossible for every strategy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.search.infeasible.where import Where
from shardwright.sharding.memory import buffer_bytes, gradient_bytes, gradient_size, optimizer_bytes
from shardwright.sharding.work import ShardWork
from shardwright.task.constraints import SHARDING_TYPES, TableConstraint
from shardwright.task.table import DTYPE_BYTES, Table
from shardwright.task.task import Task

_ROUNDING = 1e-9  # of the lookups: blocks' shares of them add up to the whole only so far


@dataclass(frozen=True)
class Need:
    """What a table needs when it is sharded in one way.

    Attributes:
        kind: the sharding type.
        block_bytes: memory of its largest block, at the least, on one device.
        total_bytes: memory of all its blocks on all devices, at the least.
        fewest: devices it lies on, at the least.
        most: devices it lies on, at the most.
        holders: devices that must each be able to take `block_bytes`.
    """

    kind: str
    block_bytes: int
    total_bytes: int
    fewest: int = 1
    most: int = 1
    holders: int = 1


@dataclass(frozen=True)
class Impossible:
    """Why a sharding type cannot be used at all.

    Attributes:
        kind: the sharding type.
        reason: what is missing.
    """

    kind: str
    reason: str


def needs_of(task: Task, table: Table, where: Where) -> list[Need | Impossible]:
    """What each sharding type that the constraints allow needs on the devices `where`; memory is not looked at."""
    limits = task.constraints.of(table.name)
    return [_need(task, table, limits, where, kind) for kind in SHARDING_TYPES if limits.allows(kind)]


def _need(task: Task, table: Table, limits: TableConstraint, where: Where, kind: str) -> Need | Impossible:
    most_blocks = limits.max_shards or table.rows * table.dim
    if kind == "table_wise":
        size = block_bytes(task, table, table.rows, table.dim)
        return Need(kind, size, size)
    if kind == "data_parallel":
        return _replicated(task, table, where)
    if kind == "column_wise":
        return _columns(task, table, where, min(most_blocks, table.dim))
    if kind in ("row_wise", "table_row_wise"):
        return _rows(task, table, where, min(most_blocks, table.rows), kind)
    if kind == "grid" and (min(table.rows, table.dim) < 2 or most_blocks < 3):
        return Impossible(kind, "needs at least 3 shards, 2 rows and 2 columns")
    # Blocks of any shape: at the least, the weights of an equal part of the table.
    part = -(-table.rows * table.dim // most_blocks) * DTYPE_BYTES[table.dtype]
    return Need(kind, part, _whole_total(task, table), most=where.count)


def _replicated(task: Task, table: Table, where: Where) -> Need | Impossible:
    if where.count < 2:
        return Impossible("data_parallel", "needs at least 2 devices")
    # More replicas take more together, and each of them less: its part of the batch.
    state = table.weight_bytes + optimizer_bytes(task.optimizer, table.rows, table.dim)
    size = block_bytes(task, table, table.rows, table.dim, replicas=where.count)
    gradients = 2 * gradient_size(task, table.pooled, table.dtype) * table.rows * table.dim
    total = _whole_total(task, table) + state + gradients
    return Need("data_parallel", size, total, fewest=2, most=where.count, holders=2)


def _columns(task: Task, table: Table, where: Where, blocks: int) -> Need | Impossible:
    if blocks < 2:
        return Impossible("column_wise", "needs at least 2 shards and 2 columns")
    size = block_bytes(task, table, table.rows, -(-table.dim // blocks))
    twice = _input_bytes(task, table) + (4 * table.rows if task.optimizer == "rowwise_adagrad" else 0)
    return Need("column_wise", size, _whole_total(task, table) + twice, most=min(where.count, blocks))


def _rows(task: Task, table: Table, where: Where, blocks: int, kind: str) -> Need | Impossible:
    topology = task.topology
    if blocks < 2:
        return Impossible(kind, "needs at least 2 shards and 2 rows")
    if kind == "table_row_wise" and topology.hosts == 1:
        return Impossible(kind, "needs at least 2 hosts: on one host the same blocks are row_wise")
    if kind == "row_wise" and topology.hosts > 1 and where.hosts < 2:
        return Impossible(
            kind, "needs devices on at least 2 hosts: on one of several the same blocks are table_row_wise"
        )
    size = block_bytes(task, table, -(-table.rows // blocks), table.dim)
    twice = 8 * (task.batch_size + 1) + (8 * table.dim * task.batch_size if table.pooled else 0)
    near = topology.devices_per_host if kind == "table_row_wise" else where.count
    fewest = 2 if kind == "row_wise" and topology.hosts > 1 else 1
    total = _whole_total(task, table) + twice
    return Need(kind, size, total, fewest=fewest, most=min(near, where.count, blocks))


def block_bytes(task: Task, table: Table, rows: int, dim: int, replicas: int = 1) -> int:
    """Bytes of a block of `rows` rows, counted by id, on each of its devices; as `sharding.memory` counts them."""
    samples = max(1, -(-task.batch_size // replicas))
    lookups = table.pooling * (rows / table.rows) * task.batch_size / replicas
    work = ShardWork(rows, dim, samples, lookups, table.pooled, table.access, table.dtype)
    state = optimizer_bytes(task.optimizer, rows, dim)
    return work.weight_bytes + state + buffer_bytes(work) + gradient_bytes(task, work, replicas)


def _lookups(task: Task, table: Table) -> int:
    return math.ceil(table.pooling * task.batch_size * (1 - _ROUNDING))


def _input_bytes(task: Task, table: Table) -> int:
    """Ids and offsets of all samples and lookups."""
    return 8 * (_lookups(task, table) + task.batch_size + 1)


def _whole_total(task: Task, table: Table) -> int:
    """What all blocks take together, at the least: cutting and copying never saves any of what the whole table takes on one device.

    Weights and optimizer state of every element, the ids of every lookup once, and for every column the output of every
    sample (or lookup, where they are not pooled) with its gradient.
    """
    state = table.weight_bytes + optimizer_bytes(task.optimizer, table.rows, table.dim)
    outputs = table.dim * task.batch_size
    if not table.pooled:
        outputs = math.ceil(table.dim * table.pooling * task.batch_size * (1 - _ROUNDING))
    return state + _input_bytes(task, table) + 8 * outputs
