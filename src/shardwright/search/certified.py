"""`certified`: cut by price, place, improve, and prove how far the plan is from the best possible one.

1. The lower bound (`search.bound`) gives a price to every hidden unit of the cost model and to every byte on the links.
2. Every table takes its cheapest way at these prices in which no piece costs more than a share of the bound: whole, in column or row
   blocks, spread over all devices in row blocks, or replicated. Several shares are tried.
3. Pieces are placed greedily by fused cost, then improved by moves, swaps, cuts, joins and changes of way (`native/descent.hpp`). Where a
   call gets dearer with its widest table, some starts keep wide pieces together. If all tables must stay whole, a learned policy's
   placement is improved first.
4. Plans of other strategies, uniform ones, `greedy`'s and `neuroshard`'s, are improved too if they are not far behind. If row blocks may
   lie anywhere, busy tables are cut into equal column blocks, which a search plans as tables (`search.parts`). If its plan is the best,
   the search goes on from there.
5. Kicks: take pieces off slow devices, or their widest ones; cut a few tables in other ways, place them anew and improve; keep the plan if
   it is better. Starts and kicks run on two threads; the result does not depend on the number of threads. Traffic that dense layers hide
   has no price. So some starts take the prices of a step without such layers, and a search for that step gives a plan to begin with.
6. A table that is cut or replicated for a gain below a thousandth, or below the cost model's error on cuts (`cut_error`), is made whole.
7. The best plan tightens the bound, and so does the number of devices that can hold a hot table.

The search stops when the gap to the bound is at most `tolerance`, when kicks have long found nothing better, or at the deadline. It returns
the best plan that it has seen, its own or another strategy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.plugins import load_plugin, own_plugins
from shardwright.search.baselines import UNIFORM, FusedGreedy
from shardwright.search.engine.plans import WarmStart
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.parts import InParts
from shardwright.search.statistics import count_changes, timed
from shardwright.search.strategy import (
    ROUNDING,
    BestPlan,
    check_number,
    check_whole,
    is_interrupt,
    search_end,
    tell,
    watched,
    why_not_counted,
)
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import task_for
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task
from shardwright.task.topology import DenseTime

if TYPE_CHECKING:
    from shardwright.search.engine.session import Prepared, SearchSession, Start

_STARTS = (
    (0.5, 1.0, 1.0),
    (0.5, np.inf, 0.5),
    (0.25, 1.0, 1.0),
    (np.inf, 1.0, 1.0),
    (0.75, np.inf, 0.25),
    (0.12, 1.0, 1.0),
    (0.25, np.inf, 1.0),
    (1.0, 1.0, 0.5),
)
"""For each start: share of the mean device's time in a phase that a piece may take; factor on prices of spreads; share of the memory."""
_MEMORY = ((0.0, 1.0), (1.0, 0.5), (10.0, 0.25), (100.0, 0.1))
"""How much memory counts in the order of the pieces, in bounds per memory of a device; and a factor on a piece's share of memory."""
_LANES = 4  # kicks a round
_PATIENT = 1_000_000  # changes that kicks price without a better plan: unlike seconds, the same on every machine
_ROUNDS = 64  # rounds of kicks without a better plan: in small tasks, a round prices few changes
_DOUBLING = 0.001  # share of the step time: with a time limit, kicks go on while the last half of all work gained more
SIMPLER = 0.001  # share of the step time by which a plan with fewer blocks may be longer
_CASES, _SHARE = 8, 0.5  # selections of sharding types that are tried, and `limit` of their starts
_OTHERS = 0.25  # share of the time left for the searches of other strategies
_GRIDS = 0.6  # share of the time left for a further search among grids, if they are the best so far
_PROOF = 0.1  # share of the time for the proof: the last kicks gain less than a tighter bound
_PROOF_OF_GATES = 0.25  # the same, if the cost model has gates, whose bounds take longer
_ALONE = 0.4  # share of the time left for a search without the dense layers that hide traffic


@dataclass(frozen=True)
class Certified:
    """Search for a plan, and prove a bound on how far it is from the best one.

    Attributes:
        tolerance: stop when the gap to the bound is at most this.
        patience: stop after this many rounds of kicks in a row without a better plan; by default once kicks have priced a million changes,
            or 64 rounds have passed, without one. With a time limit, kicks go on until the last half of all work gains less than 0.1%.
        threads: how many starts or kicks run at the same time.
        name: name of the strategy.

    Raises:
        InvalidInput: an option breaks a rule.
    """

    tolerance: float = 0.005
    patience: int | None = None
    threads: int = 2
    name: str = field(default="certified")

    def __post_init__(self) -> None:
        check_number(self, "tolerance", 0)
        check_whole(self, patience=0, threads=1)

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search until the gap is small enough; without a convex cost model there is no bound."""
        return self._search(task, cost_model, None, seed, deadline)

    def search_from(
        self, task: Task, cost_model: CostModel, *, start: Plan, move_cost: float, seed: int, deadline: float | None
    ) -> Plan:
        """Search from a plan; another plan counts as better only if its gain exceeds the price of its moves."""
        return self._search(task, cost_model, WarmStart(task, cost_model, start, move_cost), seed, deadline)

    def _search(
        self, task: Task, cost_model: CostModel, warm: WarmStart | None, seed: int, deadline: float | None
    ) -> Plan:
        seen = BestPlan(task, cost_model, seed, deadline)
        with seen.collecting(last=FusedGreedy()):
            # Before the first start, the best so far is greedy's or the start plan.
            if warm is not None and warm.kept is not None:
                seen.offer(Plan(task, warm.kept, self.name, seed))
            if warm is None:
                with timed("other strategies"):
                    seen.attempt(FusedGreedy())
                    seen.attempt(Restated(self, _alone), part=_ALONE)
            if seen.plan is None or not seen.late:
                return self._searched(seen, warm)
        assert seen.plan is not None
        return replace(seen.plan, strategy=self.name)

    def _searched(self, seen: BestPlan, warm: WarmStart | None) -> Plan:
        from shardwright.search.engine.session import SearchSession, prepare

        deadline = None if seen.deadline is None else seen.deadline - seen.scoring_s
        try:
            with timed("ways and bound"):
                prepared = prepare(seen.task, seen.cost_model, deadline)
        except InfeasibleTask as error:
            return self._of_others(seen, str(error), None)
        if warm:
            warm.settle(prepared)
        began, stopped = monotonic(), False
        share = _PROOF_OF_GATES if prepared.gates else _PROOF
        improving = None if deadline is None else deadline - share * max(0.0, deadline - began)
        with ThreadPoolExecutor(self.threads) as pool:
            session = SearchSession(prepared, pool, improving)
            try:
                stuck = self._improved(session, seen, warm)
            except (KeyboardInterrupt, SystemError) as error:  # anytime: the best so far is a plan
                session.stop()
                if session.best is None or not is_interrupt(error):
                    raise
                stuck, stopped = -1, True
            finally:
                count_changes(session.changes)
        if stuck >= 0:
            return self._of_others(seen, _no_room(prepared, stuck), prepared.bound_ms)
        shards: Sequence[Shard] = prepared.shards(session.best)
        step_ms = session.best_ms
        if warm:
            shards, step_ms = warm.chosen(shards)
        elif seen.plan is not None and seen.step_ms < step_ms * (1 - ROUNDING):
            shards, step_ms = seen.plan.shards, seen.step_ms
        with timed("proof"):
            bound_ms = self._proven(
                prepared,
                step_ms,
                lambda: stopped or seen.interrupted or (deadline is not None and monotonic() >= deadline),
            )
        end = search_end(step_ms, bound_ms, self.tolerance, interrupted=seen.interrupted, late=session.late)
        return Plan(seen.task, shards, self.name, seen.seed, bound_ms=bound_ms, search_end=end)

    def _improved(self, session: SearchSession, seen: BestPlan, warm: WarmStart | None) -> int:
        """Start, improve and kick; return an item that never found a device, or -1."""
        if warm is None:
            self._policy_first(session, seen)
        if warm is None or warm.resume(session):
            with timed("starts"):
                stuck = self._starts(session)
            if session.best is not None:
                tell(session.best_ms, session.prepared.bound_ms)
            if stuck >= 0:
                return stuck
            if warm is None and not self._done(session) and not session.late:
                with timed("other strategies"):
                    self._others(session, seen)
        with timed("kicks"):
            self._kicks(session, seen.seed)
        if warm is None:
            with timed("simplify"):
                session.simplify(SIMPLER, seen.cost_model.cut_error)
        return -1

    def _policy_first(self, session: SearchSession, seen: BestPlan) -> None:
        """Begin at a learned policy's placement if every table stays whole: the other starts differ mostly in cuts."""
        task = seen.task
        if all(task.constraints.of(table.name).sharding_types == ("table_wise",) for table in task.tables):
            with suppress(InfeasibleTask):
                policy = load_plugin(own_plugins("strategies")["dreamshard"], ("search",))
                session.adopt([policy.search(task, seen.cost_model, seed=seen.seed, deadline=seen.until(_OTHERS))])

    def _others(self, session: SearchSession, seen: BestPlan) -> None:
        """Try plans of few sharding types, of `neuroshard` and `greedy`, and of grids.

        The session's pieces express no grids of any row blocks. If such a plan is the best, the search among them goes on.
        """
        from shardwright.search.engine.session import Start

        cases = session.prepared.cases(session.best_ms, lambda: session.late)
        session.survey([Start(_SHARE, case=case) for case in cases[:_CASES]])
        seen.attempt(NeuroShard(score="step"), part=_OTHERS)
        if (seen.task.topology.hosts > 1 or session.prepared.gates) and not session.late:
            seen.attempt(Restated(self, _for_torchrec), part=_OTHERS)
        parts = InParts.of_busy_tables(seen.task, session.prepared.busy_devices)
        grids, before = Restated(self, parts.cut, parts.joined), seen.plan
        improving = seen.until(_OTHERS * (1 - _PROOF))
        if not session.late:
            seen.attempt(grids, part=_OTHERS)
        unfinished = seen.plan is not before and improving is not None and monotonic() >= improving  # not settled
        if seen.interrupted:
            session.stop()
        if not session.late:
            session.adopt([plan for _, plan in seen.seen])
        if unfinished and seen.step_ms < session.best_ms and not session.late:
            seen.attempt(grids, part=_GRIDS)

    def _of_others(self, seen: BestPlan, why_none: str, bound_ms: float | None) -> Plan:
        """The best plan of other strategies, if this search has no ways for the constraints or cannot fill the memory.

        Raises:
            InfeasibleTask: the other strategies find no plan either.
        """
        seen.attempt(FusedGreedy(), NeuroShard(score="step"), *UNIFORM)
        if seen.plan is None:
            raise InfeasibleTask(why_none)
        valid = bound_ms is not None and 0 < bound_ms <= seen.step_ms
        return replace(seen.plan, strategy=self.name, bound_ms=bound_ms if valid else None)

    def _starts(self, session: SearchSession) -> int:
        """Run the starts, most promising first. If memory is tight, place large pieces first, and at last fill the devices up.

        Returns:
            An item that never found a device, or -1.
        """
        from shardwright.search.engine.session import Start

        stuck, prepared = -1, session.prepared
        alone = prepared.alone(session.deadline)
        cases = [None] if alone is None else [None, alone]
        memory_bytes = float(np.median(prepared.task.topology.memory_bytes))
        for weight, part in _MEMORY:
            by_memory = weight * prepared.price_ms / memory_bytes
            starts = [
                Start(share, by_memory, spreading, memory * part, case)
                for share, spreading, memory in _STARTS
                for case in cases
            ]
            if prepared.gates and not weight:  # the first two starts in both kinds, one of each at a time
                gated = [replace(how, together=True) for how in starts[:2]]
                starts[:2] = [starts[0], gated[1], starts[1], gated[0]]
            failed, stuck = session.failed, self._some(session, starts)
            # If some starts fail, memory is tight, and starts that place by memory do better.
            if session.best is not None and (session.failed == failed or session.late or self._done(session)):
                return -1
        return -1 if session.best is not None or session.fill() < 0 else stuck

    def _some(self, session: SearchSession, starts: list[Start]) -> int:
        """Run the starts in pairs until the plan is good enough or time is up; return an item that never found a device, or -1."""
        stuck = -1
        for first in range(0, len(starts), 2):
            stuck = session.start(starts[first : first + 2])
            if session.best is not None and (self._done(session) or session.late):
                break
        return -1 if session.best is not None else stuck

    def _kicks(self, session: SearchSession, seed: int) -> None:
        """Kick until many changes bring no better plan."""
        if not session.late and not self._done(session):
            session.prepared.tighten(session.best_ms)  # if one table dominates, this may end the search
        failed, priced, proven = 0, session.priced, False
        half, half_ms = session.priced, session.best_ms
        for rounds in count():
            if session.best_ms < half_ms * (1 - _DOUBLING):
                half, half_ms = session.priced, session.best_ms
            stale = failed >= _ROUNDS or session.priced - priced >= _PATIENT
            settled = stale and (session.deadline is None or session.priced >= 2 * half)
            if session.late or self._done(session) or (settled if self.patience is None else failed >= self.patience):
                break
            if stale and not proven:  # the whole proof may end a search that has time left
                session.prepared.refined(session.best_ms, lambda: session.late)
                proven = True
                continue
            if session.kick((seed, rounds), _LANES):
                failed, priced, proven = 0, session.priced, False
            else:
                failed += 1
            tell(session.best_ms, session.prepared.bound_ms)

    def _proven(self, prepared: Prepared, step_ms: float, late: Callable[[], bool]) -> float | None:
        """The bound, tightened by a plan of this step time; None if there is no bound."""
        bound_ms = prepared.tighten(step_ms, late=late())
        if bound_ms is not None and step_ms > (1 + self.tolerance) * bound_ms:
            bound_ms = prepared.refined(step_ms, late)
        # There is no bound after too little time, or for another strategy's plan in ways that the bound does not cover.
        valid = bound_ms is not None and bound_ms >= 0 and step_ms >= bound_ms * (1 - ROUNDING)
        return bound_ms if valid else None

    def _done(self, session: SearchSession) -> bool:
        return session.best_ms <= (1 + self.tolerance) * session.prepared.bound_ms


@dataclass(frozen=True)
class Restated:
    """A search of the same tables under another statement of the task; `joined` are its plan's shards as shards of the task.

    Its bound and its progress belong to that statement, and are dropped.
    """

    search_with: Certified
    restated: Callable[[Task], Task]
    joined: Callable[[Plan], Sequence[Shard]] = attrgetter("shards")
    name: str = "certified"

    def supports(self, task: Task) -> str | None:
        """Tasks whose other statement differs and that `search_with` supports."""
        try:
            restated = self.restated(task)
        except InfeasibleTask as error:
            return str(error)
        return "it is stated so" if restated == task else self.search_with.supports(restated)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """As `Certified.search`."""
        with watched(None):
            plan = self.search_with.search(self.restated(task), cost_model, seed=seed, deadline=deadline)
        return Plan(task, self.joined(plan), self.name, seed)


def _for_torchrec(task: Task) -> Task:
    """Equal blocks only: on several hosts, and where wide blocks slow a call down, a search among any blocks gets stuck sooner."""
    return task_for(task, "torchrec")


def _alone(task: Task) -> Task:
    """No dense layers: if they hide nearly all traffic, descents end early, since small changes of hidden traffic gain nothing."""
    return task if task.exchange.hidden == DenseTime() else replace(task, exchange=replace(task.exchange, dense_ms=0.0))


def _no_room(prepared: Prepared, stuck: int) -> str:
    return (
        f"no device has room for table '{prepared.name_of(stuck)}' in any placement order tried: memory or constraints are too tight; "
        f"{prepared.remedy_of(stuck)}"
    )
