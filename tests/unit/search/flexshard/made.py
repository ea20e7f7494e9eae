"""Small tasks of sequence tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.search.flexshard import tier_plan
from shardwright.sharding import memory_account
from shardwright.task import AccessProfile, Exchange, Table, Task, Topology


def sequences(*skews: float, rows: int = 2000, dim: int = 16, pooling: float = 30.0) -> list[Table]:
    return [
        Table(f"s{index}", rows, dim, pooling, False, AccessProfile.zipf(rows, skew))
        for index, skew in enumerate(skews)
    ]


def task_of(
    *skews: float,
    hosts: int = 2,
    near: int = 4,
    memory: object = "10 GB",
    exchange: Exchange | None = None,
    rows: int = 50_000,
    fast: float = 8.0,
    batch: int = 8192,
) -> Task:
    """Sequence tables; links inside hosts are `fast` times as fast as those between hosts."""
    topology = Topology(hosts, near, "cpu", memory, fast * 1e9, 1e9, 0.0, 0.0)  # type: ignore[arg-type]
    return Task(sequences(*skews, rows=rows), topology, batch, exchange=exchange or Exchange())


def with_room(task: Task, factor: float) -> Task:
    """The task with memory for its buffers, and `factor` times that of its rows."""
    cold = memory_account(task, tier_plan(task, tiers=("cold",)).shards)
    blocks = 8 * (task.batch_size // task.topology.hosts + task.batch_size // task.topology.devices + 20)
    memory = cold.total.max() + (factor - 1) * (cold.weights + cold.optimizer).max() + blocks * len(task.tables)
    return replace(task, topology=replace(task.topology, memory=int(memory)))


def fits(task: Task, shards: object) -> bool:
    used = memory_account(task, shards).total  # type: ignore[arg-type]
    return bool((used <= np.array(task.topology.memory_bytes)).all())
