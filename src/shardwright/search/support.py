"""Checks that several strategies share."""

from __future__ import annotations

from shardwright.search.units import PLACEABLE
from shardwright.task.task import Task


def why_not_whole(task: Task) -> str | None:
    """Why a strategy that places whole tables cannot plan the task; None if it can."""
    for name, limits in task.constraints.tables.items():
        if not any(limits.allows(kind) for kind in PLACEABLE):
            return f"table '{name}' allows only {', '.join(limits.sharding_types or ())}, which this strategy does not make"
    return None
