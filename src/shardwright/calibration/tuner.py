"""Plan, measure, correct the model, plan again: the best plan that was measured.

1. Several searches find plans with the model as it is. Their devices are measured in turns.
2. The model is corrected by all that was measured so far (`shardwright.cost.correction`).
3. New plans: the best measured one after a few moves, by the corrected model and by others that the measurements allow as well; and now and
   then a search of the corrected model. Only devices that no plan had before are measured.
4. A plan becomes the best one only where it was measured to be better by more than the noise. How many moves are made at once grows while
   gains come as promised, and shrinks where they do not.
5. It ends when the best plan is within noise of the floor, when some rounds in a row gained nothing, or when time is up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

import numpy as np

from shardwright.calibration.bench import Bench, Candidate
from shardwright.calibration.moves import Moves
from shardwright.cost.correction import CorrectedModel, corrected, with_cut_price
from shardwright.cost.model import CostModel
from shardwright.cost.score import score, scored
from shardwright.errors import InfeasibleTask, MeasurementFailed
from shardwright.search.registry import strategy_named
from shardwright.search.solve import plan
from shardwright.search.strategy import Interruptible
from shardwright.sharding.costs import Trial, Tuning
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Runtime, task_for
from shardwright.task.task import Task

_SEARCHES = (("certified", 0, 0.0), ("neuroshard", 0, 0.0), ("greedy", 0, 0.0), ("dreamshard+", 0, 0.0), ("certified", 0, 0.05),
             ("certified", 1, 0.0), ("certified", 0, 0.15))  # fmt: skip
"""Strategy, seed after the caller's, and price of a cut in times of the mean table."""

_SEARCH_S, _SEARCH_SHARE = 5.0, 0.04  # of one search: seconds at most, and share of all the time
_AT_FIRST = 0.4  # of the time, for the plans that searches found
_RESERVE = 0.12  # of the time, for the last visits
_SURE = 0.95  # chance of being better from which on a plan is taken
_OPEN = 0.2  # chance from which on another visit may pay
_MOST_QUIET = 5  # visits of a work, to tell plans apart
_PATIENCE = 4  # rounds without a gain
_PROPOSALS, _DRAWS = 3, 8  # plans of a round, and corrections that are drawn until there are so many
_WORTH = 0.001  # gain, as a share of the step, for which moves are measured
_RETURN, _SHORTFALL = 0.7, 0.25  # shares of the promised gain from which on more moves are made at once, and fewer


class Tuner(Interruptible):
    """A tuning under way.

    Args:
        task: the task, as it is measured.
        runs_on: what is to run the plan.
        base: the model that is corrected.
        bench: measures.
        seed: of searches and draws.
        seconds: how long it may take.
        keep: is given every plan that becomes the best.
        earlier: the best plan of an earlier run.

    Attributes:
        best: the best plan so far.
        first: the plan that planning alone finds.
        model: the model, corrected by what was measured so far.
        bound_ms: lower bound on the step of every plan, by the corrected model of the last search.
        history: what was measured.
        stopped: "floor", "no gain", "time" or "interrupted".
        doing: what is being done.
    """

    best: Candidate
    first: Candidate

    def __init__(
        self,
        task: Task,
        runs_on: Runtime | None,
        base: CostModel,
        bench: Bench,
        *,
        seed: int,
        seconds: float,
        keep: Callable[[Plan], None],
        earlier: Plan | None = None,
    ) -> None:
        self._task, self._runs_on, self._limited = task, runs_on, task_for(task, runs_on)
        self._base, self._bench, self._keep, self._earlier = base, bench, keep, earlier
        self._seed, self._rng = seed, np.random.default_rng([seed, 2])
        self._began, self._seconds = monotonic(), seconds
        self._limit = min(_SEARCH_S, _SEARCH_SHARE * seconds)
        self._moves = max(2, task.topology.devices // 2)
        self._seen: set[frozenset[object]] = set()
        self._measured: list[Candidate] = []
        self.model: CorrectedModel | None = None
        self.bound_ms: float | None = None
        self.history: list[Trial] = []
        self.stopped = "time"
        self.doing = "planning"

    def run(self) -> None:
        """Tune until nothing is left to gain, time is up or Ctrl-C is pressed.

        Raises:
            InfeasibleTask: no strategy finds a plan.
            MeasurementFailed: the first plan cannot be measured.
            KeyboardInterrupt: Ctrl-C came before the first plan was measured.
        """
        with self.until_interrupted():
            try:
                self._at_first()
                self._rounds()
                self._last_visits()
            except KeyboardInterrupt:
                if not self._measured:
                    raise
                self.stopped = "interrupted"
            if self._bench.step_ms(self.best) > self._bench.step_ms(self.first):
                self.best = self.first

    def result(self) -> Tuning:
        """What was found."""
        bench, times = self._bench, self._bench.times(self.best)
        return Tuning(
            measured_ms=bench.step_ms(self.best),
            interval_ms=bench.interval(self.best),
            first_ms=bench.step_ms(self.first),
            first_interval_ms=bench.interval(self.first),
            floor_ms=self.floor_ms,
            forward_ms=tuple(times[:, 0].tolist()),
            backward_ms=tuple(times[:, 1].tolist()),
            history=tuple(self.history),
        )

    @property
    def floor_ms(self) -> float:
        """The smallest total of any measured plan over the devices."""
        return min(one.total_ms(self._bench.times(one)) for one in self._measured)

    def _at_first(self) -> None:
        """Measure the plans that searches find; the one with the shortest predicted step is the first."""
        found = list(self._searched())
        self.doing = "measuring the first plan"
        self.first = self.best = min(found, key=lambda one: one.promised_ms)
        others = [one for one in found if one is not self.first]
        self._bench.visit_controls()
        self._bench.visit(self.first.works, 1, until=float("inf"))
        if not self._bench.can_measure(self.first):
            why = next(self._bench.failed[work] for work in self.first.works if work in self._bench.failed)
            raise MeasurementFailed(f"the first plan cannot be measured: {why}")
        self._note(0, self.first, accepted=True)
        self.doing = "measuring what searches found"
        works = [work for one in found for work in one.works]
        for quiet in (1, 2):
            self._bench.visit(works, quiet, until=self._until(_AT_FIRST))
        self._judge(0, others)

    def _searched(self) -> Sequence[Candidate]:
        """Distinct plans of several searches.

        Raises:
            InfeasibleTask: there is none.
        """
        found: list[Candidate] = []
        why: InfeasibleTask | None = None
        for name, seed, price in _SEARCHES:
            if found and monotonic() >= self._until(_AT_FIRST / 2):
                break
            if self.interrupted:
                raise KeyboardInterrupt
            if strategy_named(name).supports(self._limited) is not None:
                continue
            model = with_cut_price(self._base, self._task, price) if price else self._base
            try:
                plan_found = self._plan(name, model, self._seed + seed)
            except InfeasibleTask as error:
                why = error
                continue
            told = f"{name}, a cut at {price:.0%} of a table" if price else f"{name}, seed {seed}" if seed else name
            found += self._new(told, scored(plan_found, self._base), None)
        if not found:
            assert why is not None
            raise why
        if self._earlier is not None:
            found += self._new("best of an earlier run", self._earlier, None)
        return found

    def _rounds(self) -> None:
        """Correct, propose, measure, judge."""
        idle = number = 0
        while idle < _PATIENCE:
            number += 1
            if self.interrupted:
                raise KeyboardInterrupt
            if monotonic() >= self._until(1 - _RESERVE):
                return
            if self._bench.interval(self.best)[0] <= self.floor_ms:
                self.stopped = "floor"
                return
            self.doing = f"round {number}: planning"
            self.model = self._corrected()
            proposals = self._proposals(number)
            self.doing = f"round {number}: measuring"
            before = self._bench.step_ms(self.best)
            until = self._until(1 - _RESERVE)
            self._bench.visit(self.best.works, min(2 + number // 2, _MOST_QUIET), until)
            self._bench.visit([work for one in proposals for work in one.works], 1, until)
            idle = 0 if self._judge(number, proposals) else idle + 1
            self._trust(before, proposals)
        self.stopped = "no gain"

    def _corrected(self) -> CorrectedModel:
        works, times, errors = self._bench.samples()
        return corrected(self._base, self._task, [work.works for work in works], times, errors)

    def _proposals(self, number: int) -> list[Candidate]:
        """New plans."""
        assert self.model is not None
        kernels = self._bench.times(self.best) + self.best.added
        mean = Moves(self._limited, self.model, self.best.plan.shards, kernels)
        found: list[Candidate] = []
        present = self._bench.step_ms(self.best)
        for attempt in range(_DRAWS):
            model = self.model.drawn(self._rng) if attempt else self.model
            count = max(1, self._moves // (1 + attempt % 2))
            shards = Moves(self._limited, model, self.best.plan.shards, kernels).best(count)
            promised = math.inf if shards is None else mean.promised_ms(shards)
            if shards is not None and promised < (1 - _WORTH) * present:
                name = "1 move" if count == 1 else f"{count} moves"
                found += self._new(name, Plan(self._task, shards, "tuned", self._seed), promised)
            if len(found) == _PROPOSALS:
                break
        if number % 2 and not self.interrupted:
            start = self.best.plan if number % 4 == 1 else None
            again = self._plan("certified", self.model, self._seed + number, start)
            if again.bound_ms is not None:
                self.bound_ms = again.bound_ms
            found += self._new("planned again", again, again.cost.step_ms if again.cost else None)
        return found

    def _judge(self, number: int, proposals: Sequence[Candidate]) -> bool:
        """Take what is better by more than the noise; whether anything was."""
        seen = [one for one in proposals if self._bench.can_measure(one) and self._bench.measured(one)]
        gained = False
        for one in sorted(seen, key=self._bench.step_ms):
            quiet = 2
            while _OPEN < self._bench.chance(one, self.best) < _SURE and quiet <= _MOST_QUIET:
                different = set(one.works) ^ set(self.best.works)
                works = [work for work in (*one.works, *self.best.works) if work in different]
                self._bench.visit(works, quiet, self._until(1 - _RESERVE))
                quiet += 1
            better = self._bench.chance(one, self.best) >= _SURE and self._bench.step_ms(one) < self._bench.step_ms(
                self.best
            )
            self._note(number, one, accepted=better)
            if better:
                gained, self.best = True, one
                self._keep(one.plan)
        return gained

    def _trust(self, before: float, proposals: Sequence[Candidate]) -> None:
        """More moves at once where gains came as promised, fewer where they did not."""
        shares = [
            (before - self._bench.step_ms(one)) / max(before - one.promised_ms, 1e-9 * before)
            for one in proposals
            if "move" in one.name and one in self._measured
        ]
        if shares and max(shares) >= _RETURN:
            self._moves = min(2 * self._moves, 4 * self._task.topology.devices)
        elif not shares or max(shares) < _SHORTFALL:
            self._moves = max(1, self._moves // 2)

    def _last_visits(self) -> None:
        """The first plan and the best one again, so that their intervals are narrow."""
        self.doing = "measuring the best plan again"
        self._bench.visit([*self.first.works, *self.best.works], 3, self._until(1.0))
        self._bench.visit_controls()

    def _new(self, name: str, found: Plan, promised_ms: float | None) -> list[Candidate]:
        """The plan to be measured; nothing where it was there before."""
        key: frozenset[object] = frozenset(found.shards)
        if key in self._seen:
            return []
        self._seen.add(key)
        if promised_ms is None:
            promised_ms = score(self._task, found.shards, self._base).step_ms
        return [Candidate.of(name, found, promised_ms)]

    def _note(self, number: int, one: Candidate, *, accepted: bool) -> None:
        self._measured.append(one)
        self.history.append(Trial(number, one.name, one.promised_ms, self._bench.step_ms(one), accepted))

    def _plan(self, strategy: str, model: CostModel, seed: int, start: Plan | None = None) -> Plan:
        start = replace(start, tuning=None) if start is not None else None
        return plan(
            self._task,
            strategy=strategy,
            cost_model=model,
            seed=seed,
            time_limit=self._limit,
            runs_on=self._runs_on,
            start=start,
        )

    def _until(self, share: float) -> float:
        return self._began + share * self._seconds
