"""A search that starts from a plan and keeps the best by step time and the price of what moves."""

from __future__ import annotations

from shardwright.search.engine.session import Session
from shardwright.search.engine.state import State, copy_state
from shardwright.search.engine.warm import everything_ms, moving_ms
from shardwright.sharding.carry import Carried
from shardwright.task.task import Task


class WarmSession(Session):
    """A search under way whose `assembly` has a home; `best_ms` is step time plus `warm.moving_ms`."""

    @property
    def everything_ms(self) -> float:
        """Price of moving all bytes that can be kept or moved."""
        return everything_ms(self.assembly)

    def resume(self, carried: Carried, task: Task, *, improve: bool) -> bool:
        """Take up a plan, and improve it if wanted; whether that was possible.

        Args:
            carried: what is left of the plan on the task's devices.
            task: the task.
            improve: whether to look for something better, or to keep it as it is.
        """
        state = self._adopted(carried, task)
        if state is None:
            return False
        self._keep(copy_state(state))
        if improve:
            self._improve(state)
            self._keep(self._without_copies(state))
        return True

    def _value(self, state: State) -> float:
        return super()._value(state) + moving_ms(self.assembly, state)
