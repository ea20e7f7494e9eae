"""Checks that several strategies share."""

from __future__ import annotations

from shardwright.search.units import PLACEABLE
from shardwright.task.exchange import AS_TORCHREC
from shardwright.task.task import Task


def why_not_counted(task: Task) -> str | None:
    """Why a strategy that counts the bytes of the plain exchange cannot plan the task; None if those are its bytes, and `why_not_whole`."""
    if task.exchange != AS_TORCHREC and not all(table.pooled for table in task.tables):
        return (
            f"its sequence tables are exchanged with deduplicate '{task.exchange.deduplicate}' and replica_gradients "
            f"'{task.exchange.replica_gradients}', and this strategy counts every lookup and whole gradients; use strategy flexshard"
        )
    return why_not_whole(task)


def why_not_whole(task: Task) -> str | None:
    """Why a strategy that places whole tables cannot plan the task; None if it can."""
    for name, limits in task.constraints.tables.items():
        if not any(limits.allows(kind) for kind in PLACEABLE):
            return f"table '{name}' allows only {', '.join(limits.sharding_types or ())}, which this strategy does not make"
    return None
