"""Checks that several strategies share."""

from __future__ import annotations

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.units import PLACEABLE
from shardwright.sharding.memory import optimizer_bytes
from shardwright.task.task import Task
from shardwright.task.units import format_bytes


def why_not_whole(task: Task) -> str | None:
    """Why a strategy that places whole tables cannot plan the task; None if it can."""
    for name, limits in task.constraints.tables.items():
        if not any(limits.allows(kind) for kind in PLACEABLE):
            return f"table '{name}' allows only {', '.join(limits.sharding_types or ())}, which this strategy does not make"
    return None


def check_total_memory(task: Task) -> None:
    """Prove infeasibility where the weights and optimizer state alone exceed all memory together.

    Raises:
        InfeasibleTask: they do.
    """
    need = sum(t.weight_bytes + optimizer_bytes(task.optimizer, t.rows, t.dim) for t in task.tables)
    have = int(np.sum(task.topology.memory_bytes, dtype=np.int64))
    if need > have:
        devices = -(-need // (have // task.topology.devices))
        raise InfeasibleTask(
            f"the tables need {format_bytes(need)} of weights and optimizer state, all {task.topology.devices} devices together have "
            f"{format_bytes(have)}: use at least {devices} such devices, fp16 weights or an optimizer with less state"
        )
