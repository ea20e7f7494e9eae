"""What a strategy is, and the checks that several strategies share."""

from __future__ import annotations

from typing import Protocol

from shardwright.cost.model import CostModel
from shardwright.search.units import PLACEABLE
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task
from shardwright.task.topology import AS_TORCHREC


class Strategy(Protocol):
    """Task + cost model → plan. Implementations are small and frozen."""

    @property
    def name(self) -> str:
        """The name in the registry and in plans."""
        ...

    def supports(self, task: Task) -> str | None:
        """None if the strategy can plan this kind of task, else why not."""
        ...

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Find a plan.

        Args:
            task: the task; never changed.
            cost_model: prices of sets of shards.
            seed: the same seed gives the same plan.
            deadline: `time.monotonic()` at which the search has to return its best; None for no limit.

        Raises:
            InfeasibleTask: no plan was found that keeps memory and constraints.
        """
        ...


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
