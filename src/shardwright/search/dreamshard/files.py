"""Which policy file serves a task."""

from __future__ import annotations

from pathlib import Path

from shardwright.search.dreamshard.weights import NAME
from shardwright.search.learned.policy_files import bundled_policy
from shardwright.search.strategy import why_not_counted
from shardwright.task.task import Task


def why_not_placed(task: Task, path: Path | None) -> str | None:
    """Why a policy cannot place a task; None if it can.

    Args:
        task: the task.
        path: the policy's file; None for the bundled one.
    """
    device = task.topology.device
    if path is None and bundled_policy(NAME, device) is None:
        return f"no policy for device '{device}' is bundled; learn one with 'shardwright learn {NAME}' and name it with --policy"
    return why_not_counted(task)
