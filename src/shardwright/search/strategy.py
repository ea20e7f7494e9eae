"""What a strategy is."""

from __future__ import annotations

from typing import Protocol

from shardwright.cost.model import CostModel
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task


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
