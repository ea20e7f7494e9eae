"""The interface of strategies, helpers that several strategies share, and the best plan that a search has seen."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Protocol, TypeAlias, runtime_checkable

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.units import PLACEABLE
from shardwright.sharding.costs import SearchEnd
from shardwright.sharding.plan import Plan
from shardwright.task.quantities import real, whole
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
        """Find a plan, starting from another one.

        Args:
            task: the task; never changed.
            cost_model: prices of sets of shards.
            start: a plan for this task, or for one with other tables or devices.
            move_cost: ms of step time that moving a GB counts for; may be infinite.
            seed: the same seed gives the same plan.
            deadline: `time.monotonic()` at which the search has to return its best; None for no limit.

        Raises:
            InfeasibleTask: no plan was found that keeps memory and constraints.
        """
        ...


def check_whole(strategy: Strategy, **least: int) -> None:
    """Check that options of a strategy are whole numbers of at least `least`, or None if that is the default.

    Raises:
        InvalidInput: an option breaks the rule.
    """
    for option, lowest in least.items():
        given = getattr(strategy, option)
        number = lowest if given is None and getattr(type(strategy), option) is None else whole(given)
        if number is None or number < lowest:
            raise InvalidInput(f"{strategy.name}: {option} is {given!r}, must be a whole number of at least {lowest}")


def check_number(strategy: Strategy, option: str, least: float, below: float = math.inf) -> None:
    """Check that an option of a strategy is a number of at least `least` and less than `below`.

    Raises:
        InvalidInput: the option breaks the rule.
    """
    given = getattr(strategy, option)
    number = real(given)
    if number is None or not least <= number < below:
        upper = f" and less than {below:g}" if below < math.inf else ""
        raise InvalidInput(
            f"{strategy.name}: {option} is {given!r}, must be a finite number of at least {least:g}{upper}"
        )


def why_not_counted(task: Task) -> str | None:
    """Why a strategy that counts the bytes of the plain exchange, and places whole tables, cannot plan the task; None if it can."""
    if not task.exchange.as_torchrec and not all(table.pooled for table in task.tables):
        return (
            f"its sequence tables are exchanged with deduplicate '{task.exchange.deduplicate}' and replica_gradients "
            f"'{task.exchange.replica_gradients}', and this strategy counts every lookup and whole gradients; use flexshard or auto"
        )
    return why_not_whole(task)


def why_not_whole(task: Task) -> str | None:
    """Why a strategy that places whole tables cannot plan the task; None if it can."""
    for name, limits in task.constraints.tables.items():
        if not any(limits.allows(kind) for kind in PLACEABLE):
            return (
                f"table '{name}' allows only {', '.join(limits.sharding_types or ())}, which this strategy does not make; allow "
                "table_wise, column_wise or row_wise for it, or use strategy flexshard for tiers"
            )
    return None


Told: TypeAlias = Callable[[float, float | None], None]
"""Takes the step of the best plan so far, and the bound that is proven so far; both in ms."""
_WATCHER: ContextVar[Told | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(told: Told | None) -> Iterator[None]:
    """Report the progress of searches inside; None mutes them."""
    before = _WATCHER.set(told)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def tell(step_ms: float, bound_ms: float | None = None) -> None:
    """Report the best step so far, and the bound, to the watcher of the search."""
    told = _WATCHER.get()
    if told is not None:
        told(step_ms, bound_ms)


ROUNDING = 1e-9  # share of a step: sums of the same floats in other orders


class Interruptible:
    """Notices that Ctrl-C was pressed.

    Attributes:
        interrupted: whether Ctrl-C was pressed, see `until_interrupted`.
    """

    interrupted = False

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Notice Ctrl-C even if a strategy answers it with its own best plan.

        Works on the main thread only, where Python handles signals.
        """
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return

        def notice(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            before(number, frame)

        signal.signal(signal.SIGINT, notice)
        try:
            yield
        except SystemError as error:
            if not is_interrupt(error):
                raise
            raise KeyboardInterrupt from error
        finally:
            signal.signal(signal.SIGINT, before)


class BestPlan(Interruptible):
    """Plans of several strategies for one task, compared by predicted step time.

    Attributes:
        task: the task.
        cost_model: prices the plans.
        seed: the strategies' seed.
        deadline: `time.monotonic()` after which no further strategy runs; None for no limit.
        plan: the best plan so far; None before the first.
        step_ms: the best plan's predicted step time.
        seen: all plans with their step times, in the order in which they came.
        refused: why strategies found no plan, by their names.
        scoring_s: seconds that it took to score the first plan; the final plan will be scored again.
    """

    def __init__(self, task: Task, cost_model: CostModel, seed: int, deadline: float | None) -> None:
        self.task, self.cost_model = task, cost_model
        self.seed, self.deadline = seed, deadline
        self.plan: Plan | None = None
        self.step_ms = math.inf
        self.seen: list[tuple[float, Plan]] = []
        self.refused: dict[str, InfeasibleTask] = {}
        self.scoring_s = 0.0

    @property
    def late(self) -> bool:
        """Whether time is up, or Ctrl-C was pressed."""
        return self.interrupted or (self.deadline is not None and time.monotonic() >= self.deadline)

    @contextmanager
    def collecting(self, last: Strategy) -> Iterator[None]:
        """Collect plans until Ctrl-C, which ends this quietly; if there is no plan by then, run a last strategy.

        Raises:
            KeyboardInterrupt: Ctrl-C, and the last strategy finds no plan either.
        """
        try:
            with self.until_interrupted():
                yield
        except KeyboardInterrupt:
            if self.plan is None:
                self.attempt(last)
            if self.plan is None:
                raise

    def offer(self, plan: Plan) -> None:
        """Keep a plan if it is the best so far."""
        begin = time.monotonic()
        step_ms = score(self.task, plan.shards, self.cost_model).step_ms
        self.scoring_s = self.scoring_s or time.monotonic() - begin
        self.seen.append((step_ms, plan))
        if self.plan is None or step_ms < self.step_ms:
            self.plan, self.step_ms = plan, step_ms
            tell(step_ms)

    def attempt(self, *strategies: Strategy, part: float = 1.0) -> None:
        """Run the strategies that support the task and offer their plans, while there is time, and in any case until there is a plan.

        Args:
            strategies: run one after another.
            part: part of the time left that each of them gets.
        """
        for strategy in strategies:
            if self.plan is not None and self.late:
                return
            if strategy.supports(self.task) is None:
                try:
                    self.offer(strategy.search(self.task, self.cost_model, seed=self.seed, deadline=self.until(part)))
                except InfeasibleTask as error:
                    self.refused[strategy.name] = error

    def until(self, part: float) -> float | None:
        """`time.monotonic()` after a part of the time that is left; None for no limit."""
        now = time.monotonic()
        return None if self.deadline is None else now + part * max(0.0, self.deadline - now)


def search_end(step_ms: float, bound_ms: float | None, tolerance: float, *, interrupted: bool, late: bool) -> SearchEnd:
    """Why a search ended: its gap was proven, Ctrl-C was pressed, time was up, or it found no better plan for a while."""
    if bound_ms is not None and step_ms <= (1 + tolerance) * bound_ms:
        return "proven"
    return "interrupted" if interrupted else "deadline" if late else "settled"


def is_interrupt(error: BaseException) -> bool:
    """Whether an error means Ctrl-C; Ctrl-C while a compiled function returns is a SystemError."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
