"""Tables, blocks and cells of a plan as columns of plain numbers: what the matrix of tables × devices is drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.report.entry import Entry
from shardwright.report.numbers import SHARE, short, shorts
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task


def task_data(task: Task) -> dict[str, Any]:
    """The task, tables by column, as plain data."""
    topology, tables = task.topology, task.tables
    return {
        "batch": task.batch_size,
        "optimizer": task.optimizer,
        "device": topology.device,
        "hosts": topology.hosts,
        "perHost": topology.devices_per_host,
        "limit": list(topology.memory_bytes) if len(set(topology.memory_bytes)) > 1 else topology.memory_bytes[0],
        "tables": {
            "name": [table.name for table in tables],
            "rows": [table.rows for table in tables],
            "dim": [table.dim for table in tables],
            "pooling": [short(table.pooling) for table in tables],
            "pooled": [int(table.pooled) for table in tables],
            "dtype": [table.dtype for table in tables],
        },
    }


def block_data(plan: Plan) -> dict[str, Any]:
    """The blocks of a plan by column: table, rows, columns, bytes on each holder, and the holders (a number, a list, or "all")."""
    number = {table.name: index for index, table in enumerate(plan.task.tables)}
    devices = plan.task.topology.devices
    shards = sorted(plan.shards, key=lambda shard: (number[shard.table], shard.rows, shard.columns))
    return {
        "table": [number[shard.table] for shard in shards],
        "rows": [list(shard.rows) for shard in shards],
        "columns": [list(shard.columns) for shard in shards],
        "tier": {index: list(shard.tier) for index, shard in enumerate(shards) if shard.tier},
        "bytes": [shard_bytes(plan.task, shard) for shard in shards],
        "devices": [_holders(shard.devices, devices) for shard in shards],
        "byHotness": sorted({number[shard.table] for shard in shards if shard.row_order == "hotness"}),
        "types": [plan.sharding_type(table.name) for table in plan.task.tables],
    }


def cell_data(entry: Entry) -> dict[str, Any] | None:
    """Leave-one-out ms of each table on each of its devices, phase by phase; cells ascend by table, then device."""
    found = entry.marginals
    if found is None:
        return None
    counts = np.bincount(found.cells[:, 0], minlength=len(entry.plan.task.tables))
    return {
        "costModel": found.cost_model,
        "counts": counts.tolist(),
        "devices": found.cells[:, 1].tolist(),
        "ms": [shorts(column, SHARE) for column in found.cell_ms.T],
        "stepMs": shorts(found.phase_ms.sum(axis=1), SHARE),
    }


def _holders(ranks: tuple[int, ...], devices: int) -> Any:
    if len(ranks) == 1:
        return ranks[0]
    return "all" if len(ranks) == devices else list(ranks)
