"""Goals beside the step: even memory or few moves at nearly the best step, and the best step at few moves.

*Even memory* bisects a limit on the memory of each device. A search under a limit ends once the bound shows its plan within the tolerance.
A limit is proven too low if no plan keeps it, or if the bound under it is above the tolerated step.

*Few moves* bisects the price of a moved byte, without a proof: the bound is on the mean device, and a mean does not depend on which device
holds a block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search.infeasible import prove_infeasible
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Runtime, task_for
from shardwright.task.quantities import format_bytes
from shardwright.task.task import Task

_ROUNDS = 8
_FINE = 0.01  # share of the fullest device's bytes: precision of the bisected limit
_NEAR = 0.1  # a plan that moves this share less than it may is near enough
_APART = 1.05  # ratio of two prices of a moved GB that are not worth another one between them
_PART = 0.3  # share of the time left for the next search at a price

Search = Callable[[Task, float | None, float | None], Plan]
"""A search of a task that may end at a gap to the bound, and ends after some seconds; None for its own gap, or for no limit."""

SearchByPrice = Callable[[float, float | None], Plan]
"""A search at a price in ms per moved GB that ends after some seconds; None for no limit."""


@dataclass(frozen=True)
class Balanced:
    """A plan with even memory beside the best one.

    Attributes:
        plan: the plan whose fullest device is the least full, among plans within the tolerance of the best step.
        best: the plan with the best step.
        least_bytes: a bound: every plan within the tolerance has a device with at least these bytes.
    """

    plan: Plan
    best: Plan
    least_bytes: int

    @property
    def fullest_bytes(self) -> int:
        """Bytes of the plan's fullest device."""
        return fullest(self.plan)

    @property
    def best_ms(self) -> float:
        """The best step that was found."""
        return _step_ms(self.best)

    def sentence(self) -> str:
        """The outcome in one line."""
        before, after = (format_bytes(fullest(plan)) for plan in (self.best, self.plan))
        return (
            f"the fullest device holds {after}, {before} in the plan with the best step ({self.best_ms:.3f} ms); no plan this fast has a "
            f"fullest device below {format_bytes(self.least_bytes)}"
        )


def fullest(plan: Plan) -> int:
    """Bytes of a plan's fullest device."""
    return int(plan.memory.total.max())


def balanced(best: Plan, tolerance: float, search: Search, runtime: Runtime | None, deadline: float | None) -> Balanced:
    """Find the plan with the least full fullest device within a tolerance of the best step.

    Args:
        best: the plan with the best step, scored.
        tolerance: share of that step by which the plan's may be longer.
        search: finds and scores a plan of a task.
        runtime: the runtime of the plans; None for any.
        deadline: `time.monotonic()` after which no search begins; None for no limit.
    """
    task, begin, least_full = best.task, time.monotonic(), best
    most_ms = _step_ms(best) * (1 + tolerance)
    low = proven = sum(table.weight_bytes for table in task.tables) // task.topology.devices
    high = fullest(best)
    for _ in range(_ROUNDS):
        left = None if deadline is None else deadline - time.monotonic()
        if high - low <= _FINE * high or (left is not None and left <= 0):
            break
        limit = (low + high) // 2
        limited = _limited(task, limit)
        try:
            why_not = prove_infeasible(task_for(limited, runtime))
            plan = search(limited, _gap(best, most_ms), left) if why_not is None else None
        except (InfeasibleTask, InvalidPlan):
            plan, why_not = None, None
        if plan is not None and plan.cost is not None and plan.cost.step_ms <= most_ms:
            least_full, high = plan, fullest(plan)
            continue
        low = limit
        if why_not is not None or (plan is not None and plan.bound_ms is not None and plan.bound_ms > most_ms):
            proven = max(proven, limit)
    seconds = (best.search_s or 0.0) + time.monotonic() - begin
    chosen = replace(least_full, task=task, bound_ms=best.bound_ms, bound_scope=best.bound_scope, search_s=seconds)
    return Balanced(chosen, best, proven)


def least_moved(best: Plan, start: Plan, tolerance: float, search: SearchByPrice, deadline: float | None) -> Plan:
    """Find the plan that moves the fewest bytes from a running plan, within a tolerance of the best step.

    A search at a price per GB moves only tables that gain more than their price. The price is raised while the step stays within the
    tolerance, then bisected.

    Args:
        best: the plan with the best step, scored.
        start: the running plan.
        tolerance: share of the best step by which the plan's may be longer.
        search: finds and scores a plan at a price in ms per GB, within a number of seconds; None for no limit.
        deadline: `time.monotonic()` after which no search begins; None for no limit.
    """
    begin, nearest, moved = time.monotonic(), best, start.diff(best).moved_bytes
    most_ms = _step_ms(best) * (1 + tolerance)
    price = most_ms * max(tolerance, _FINE) / max(moved / 1e9, 1e-9)
    plans = _by_price(price, search, start, lambda plan, _: _step_ms(plan) <= most_ms, deadline)
    while moved and (priced := next(plans, None)) is not None:
        plan, bytes_ = priced
        if _step_ms(plan) <= most_ms and bytes_ < moved:
            nearest, moved = plan, bytes_
    seconds = (best.search_s or 0.0) + time.monotonic() - begin
    return replace(nearest, bound_ms=best.bound_ms, bound_scope=best.bound_scope, search_s=seconds)


def most_gained(start: Plan, most_bytes: int, search: SearchByPrice, deadline: float | None) -> Plan:
    """Find the plan with the best step among those that move at most some bytes from a running plan.

    Args:
        start: the running plan.
        most_bytes: bytes that may move, over all devices.
        search: finds and scores a plan at a price in ms per GB, within a number of seconds; None for no limit.
        deadline: `time.monotonic()` after which no search begins; None for no limit.

    Raises:
        InfeasibleTask: more bytes must move, since the running plan does not apply any more.
    """
    begin = time.monotonic()
    fastest = search(math.inf, 0.0)  # the running plan itself, if it still applies
    if start.diff(fastest).moved_bytes > most_bytes:
        fastest = search(math.inf, _share(deadline))
    if (least := start.diff(fastest).moved_bytes) > most_bytes:
        raise InfeasibleTask(
            f"most_moved is {format_bytes(most_bytes)}, but the running plan does not apply any more, and the plan that moves only what "
            f"must move fetches {format_bytes(least)}; allow at least that"
        )
    if not most_bytes:
        return replace(fastest, search_s=time.monotonic() - begin)
    price, aim = _step_ms(fastest) * _FINE / (most_bytes / 1e9), (1 - _NEAR / 2) * most_bytes
    for plan, moved in _by_price(price, search, start, lambda _, moved: moved > most_bytes, deadline, aim):
        if moved <= most_bytes and _step_ms(plan) < _step_ms(fastest):
            fastest = plan
        elif fastest.bound_ms is None:  # the first one takes no time for a bound
            fastest = replace(fastest, bound_ms=plan.bound_ms, bound_scope=plan.bound_scope)
        if (1 - _NEAR) * most_bytes <= moved <= most_bytes:
            break
    return replace(fastest, search_s=time.monotonic() - begin)


def _by_price(
    price: float,
    search: SearchByPrice,
    start: Plan,
    too_cheap: Callable[[Plan, int], bool],
    deadline: float | None,
    aim: float = 0.0,
) -> Iterator[tuple[Plan, int]]:
    """Plans at prices of a moved GB, each with the bytes that it moves; the price is raised while a plan shows it too cheap.

    Prices are bisected. With bytes to `aim` at, the next price below one that is too high assumes half the bytes at twice the price.
    """
    low, high = 0.0, math.inf
    for _ in range(_ROUNDS):
        if high <= _APART * low or (deadline is not None and time.monotonic() >= deadline):
            return
        plan = search(price, _share(deadline))
        moved = start.diff(plan).moved_bytes
        yield plan, moved
        low, high = (price, high) if too_cheap(plan, moved) else (low, price)
        aimed = price * moved / aim if aim and high < math.inf else 0.0
        halfway = 4 * low if high == math.inf else math.sqrt(low * high) if low else high / 16
        price = aimed if low < aimed < high else halfway


def _share(deadline: float | None) -> float | None:
    """Seconds for the next of several searches."""
    return None if deadline is None else max(0.0, deadline - time.monotonic()) * _PART


def _step_ms(plan: Plan) -> float:
    assert plan.cost is not None
    return plan.cost.step_ms


def _gap(best: Plan, most_ms: float) -> float | None:
    """The gap to the bound at which a plan is fast enough; None without a bound."""
    return most_ms / best.bound_ms - 1 if best.bound_ms else None


def _limited(task: Task, limit: int) -> Task:
    """The task on devices with at most this many bytes."""
    memory = [min(each, max(1, limit)) for each in task.topology.memory_bytes]
    return replace(task, topology=replace(task.topology, memory=memory))


def tolerance_of(text: str) -> float:
    """The share that a text states: "1%" or "0.01"; NaN if it states none, for `balanced` to refuse."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan
