"""Starting a search from a plan: what it takes over, when starting anew as well may pay, and whether the search was worth it at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.search.strategy import Strategy
from shardwright.sharding.diff import carry, moved_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.preparation import Prepared
    from shardwright.search.engine.session import SearchSession

GB = 1e9
_FORBIDDING = 1e9
"""Ms per GB from which on a price is as good as infinite: 1 ms a byte, which no step can gain."""


@runtime_checkable
class WarmStrategy(Strategy, Protocol):
    """A strategy that can start from a plan."""

    def search_from(
        self,
        task: Task,
        cost_model: CostModel,
        *,
        start: Plan,
        move_cost: float,
        seed: int,
        deadline: float | None,
    ) -> Plan:
        """Find a plan from another one.

        Args:
            task: the task; never changed.
            cost_model: prices of sets of shards.
            start: a plan for this task, or for one with other tables or devices.
            move_cost: ms of step time that a GB to be moved counts for; may be infinite.
            seed: the same seed gives the same plan.
            deadline: `time.monotonic()` at which the search has to return its best; None for no limit.

        Raises:
            InfeasibleTask: no plan was found that keeps memory and constraints.
        """
        ...


class WarmStart:
    """A plan to start from.

    Args:
        task: the task.
        cost_model: scores plans.
        start: the plan; its task may have other tables and devices.
        move_cost: ms of step time that a GB to be moved counts for.

    Attributes:
        kept: the plan's own shards, where they are a plan of the task; None where something must change.
    """

    def __init__(self, task: Task, cost_model: CostModel, start: Plan, move_cost: float) -> None:
        self._task, self._model = task, cost_model
        self._carried = carry(start, task)
        self._ms_per_byte = min(move_cost, _FORBIDDING) / GB
        self.kept = self._carried.all_shards() if self._carried.why_no_plan(task) is None else None

    def settle(self, prepared: Prepared) -> None:
        """Let a search know what devices hold."""
        from shardwright.search.engine.warm import home_of, with_home

        home = home_of(self._carried, self._task, prepared.assembly, self._ms_per_byte)
        prepared.assembly = with_home(prepared.assembly, home)

    def resume(self, session: SearchSession, prepared: Prepared, *, late: bool) -> bool:
        """Take up the plan, and improve it unless it is late; whether starting anew as well may pay."""
        if not session.resume(self._carried, self._task, improve=not late):
            return True
        # A plan made anew holds few tables where they were: it pays only if it gains more than moving half of everything costs.
        return not late and session.best_ms - prepared.bound_ms > 0.5 * session.everything_ms

    def chosen(self, shards: Sequence[Shard]) -> tuple[Sequence[Shard], float]:
        """The shards that a search has found, or those of the plan to start from if they cost no more; and their step time."""
        found, moved = self._scored(shards)
        if self.kept is None:
            return shards, found
        kept, _ = self._scored(self.kept)
        worth = kept - found - self._ms_per_byte * moved > 1e-7 * kept
        return (shards, found) if worth else (self.kept, kept)

    def _scored(self, shards: Sequence[Shard]) -> tuple[float, int]:
        by_table = Plan(self._task, shards).by_table
        return score(self._task, shards, self._model).step_ms, moved_bytes(self._task, self._carried, by_table)
