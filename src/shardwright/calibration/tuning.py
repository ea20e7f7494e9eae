"""Tuning: find the best measured plan of a task in minutes. Plan, measure, correct the model, plan again.

1. Several searches find plans with the uncorrected model. The devices of these plans are measured in turns.
2. All measurements so far correct the model (`shardwright.modelling.correction`).
3. Each round proposes new plans. Most are the best plan after a few moves, chosen by the corrected model or by another correction that
   the measurements allow; every other round also searches with the corrected model. Only new devices are measured.
4. A plan becomes the best only if its measured gain exceeds the noise. The number of moves at once grows while gains
   come as promised, and shrinks otherwise.
5. If the time is too short to measure a whole plan, the devices measured so far still correct the model, and the next run continues.
6. Tuning ends when the best plan is within noise of the floor, when several rounds in a row gain nothing, or when time is up.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import numpy as np

from shardwright.calibration.calibration import model_metadata
from shardwright.calibration.moves import Moves
from shardwright.calibration.sets import fitted_task
from shardwright.calibration.visits import Candidate, Comparison, calibration_lock, machine_for, pace_by, writing_to
from shardwright.cost.choice import cache_folder, keep_model, path_for, resolve_cost_model, samples_folder
from shardwright.cost.correction import CorrectedModel
from shardwright.cost.files import kind_of_table, telling_name
from shardwright.cost.model import CostModel
from shardwright.cost.score import score, scored
from shardwright.errors import InfeasibleTask, InvalidInput, MeasurementFailed, counted
from shardwright.hardware import Fingerprint, available_memory, device_memory
from shardwright.measure.device_work import arena_bytes
from shardwright.measure.measurer import Measurer, Visitor
from shardwright.measure.pace import check_enough, check_minutes, minutes_text
from shardwright.measure.store import SampleStore
from shardwright.measure.visits import control_works
from shardwright.modelling.correction import corrected, held_out_error, with_cut_price
from shardwright.search.solve import plan
from shardwright.search.strategy import Interruptible
from shardwright.sharding.costs import Trial, Tuning
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import RunsOn, task_for
from shardwright.sharding.shard import Shard
from shardwright.task.files import task_to_dict
from shardwright.task.task import Task

Told = Callable[[float, float, str], None]
"""Progress callback: seconds since the start, the time limit in seconds, and the current activity."""

_ROOM_SHARE = 0.5  # most of the free memory that the tables of a device may take

_SEARCHES = (("certified", 0, 0.0), ("neuroshard", 0, 0.0), ("greedy", 0, 0.0), ("dreamshard+", 0, 0.0), ("certified", 0, 0.05),
             ("certified", 1, 0.0), ("certified", 0, 0.15))  # fmt: skip
"""The first searches: strategy, number added to the caller's seed, and price of a cut as a share of the mean table's time."""

_SEARCH_S, _SEARCH_SHARE = 5.0, 0.04  # limit of one search: seconds, and share of the whole time
_AT_FIRST = 0.4  # share of the time for measuring the plans of the first searches
_RESERVE = 0.12  # share of the time kept for the last visits
_SURE = 0.95  # probability of being better at which a plan is accepted
_OPEN = 0.2  # probability above which another visit may pay
_MOST_QUIET = 5  # most quiet visits of a work to tell plans apart
_PATIENCE = 4  # rounds without a gain before tuning ends
_PROPOSALS, _DRAWS = 3, 8  # most plans of a round from moves, and most corrections drawn to find them
_WORTH = 0.001  # least predicted gain, as a share of the step, for which moves are measured
_RETURN, _SHORTFALL = 0.7, 0.25  # shares of the promised gain: above, more moves are made at once; below, fewer


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning.

    Attributes:
        plan: the best measured plan; `plan.tuning` holds the measurements, and `plan.cost` the prediction of the uncorrected model. If no
            plan was measured whole in the time, the plan that planning alone finds, without `tuning`.
        first: the plan that planning alone finds.
        model: the model corrected by the measurements; None if nothing was measured.
        path: the file of this model, whose name planning takes too; None if there is no model, or no file can hold its base.
        bound_ms: lower bound on the step of every plan, proven for the corrected model; None if no search with it gave a bound.
        slower: time of the controls over their time when the model was learned; None if unknown.
        stopped: "floor", "no gain", "time" or "interrupted".
        seconds: how long the tuning took.
        failed: why devices could not be measured.
        notes: further remarks for the user.
    """

    plan: Plan
    first: Plan
    model: CorrectedModel | None
    bound_ms: float | None
    slower: float | None
    stopped: str
    seconds: float
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    path: Path | None = None


def tune(
    task: Task,
    *,
    minutes: float = 5.0,
    device: str | None = None,
    cost_model: CostModel | str | Path | None = None,
    runs_on: RunsOn | None = "auto",
    seed: int = 0,
    progress: Told | None = None,
    visitor: Visitor | None = None,
) -> Tuned:
    """Plan, measure on this machine, correct the model, plan again; return the best measured plan.

    The kernels of the devices are measured one device after another; links are predicted. Measurements are kept in the user's cache
    folder, so the same call resumes where the last one stopped.

    Args:
        task: the task; its devices must be of this machine's type.
        minutes: time limit. If less than the first plan can be measured in it, a warning states how much.
        device: "cpu" or "cuda"; by default the task's device.
        cost_model: a model or the path of one; by default the model that planning uses.
        runs_on: see `shardwright.plan`.
        seed: seed of searches and random draws.
        progress: called before each visit.
        visitor: times kernels; by default a measuring process on this machine.

    Raises:
        InvalidInput: an option is out of range, nothing can be measured in so short a time, the task is for another device, another
            tuning or calibration is running, or the cache folder cannot be written to.
        InfeasibleTask: no strategy finds a plan.
        MissingDependency: torch is not installed.
        MeasurementFailed: this machine has no such device, or the first plan cannot be measured.
        KeyboardInterrupt: Ctrl-C was pressed before the first plan was measured; later, Ctrl-C returns the best plan so far.
    """
    began, tell = monotonic(), progress or (lambda *_: None)
    check_minutes(minutes)
    kind, machine = machine_for(task, device, "tuned")
    if visitor is None:
        check_enough(minutes, kind)
    base = resolve_cost_model(cost_model, task)
    room = int(_ROOM_SHARE * (available_memory() if kind == "cpu" else device_memory()))
    fitted, note = fitted_task(task, room)
    with calibration_lock(cache_folder()):
        kept = _kept_plan(fitted, machine)
        controls = control_works(kind, task.optimizer)
        with (
            SampleStore(samples_folder(), machine) as store,
            Measurer(kind, None, arena_bytes(controls)) if visitor is None else nullcontext(visitor) as measurer,
        ):
            measured = Comparison(
                measurer, controls, store, lambda: tell(monotonic() - began, 60 * minutes, run.doing),
                rng=np.random.default_rng([seed, 1]), until=began + 60 * minutes, pace=pace_by(base, kind),
            )  # fmt: skip
            run = Tuner(
                fitted, runs_on, base, measured,
                seed=seed, seconds=60 * minutes, keep=lambda best: best.save(kept), earlier=_earlier(kept, fitted),
                began=began, room_bytes=max(room, arena_bytes(controls)),
            )  # fmt: skip
            run.run()
            slower = measured.of_controls().slower_than(base.metadata)
    model, path = _kept_model(run, task, machine)
    first = _for_task(run.first.plan, task, base, None)
    best = first if run.best is run.first else _for_task(run.best.plan, task, base, first)
    return Tuned(
        plan=replace(best, tuning=run.result(), search_s=monotonic() - began),
        first=first,
        model=model,
        bound_ms=run.bound_ms,
        slower=slower,
        stopped=run.stopped,
        seconds=monotonic() - began,
        failed=tuple(measured.failed.values()),
        notes=(note,) if note else (),
        path=path,
    )


def _kept_model(run: Tuner, task: Task, machine: Fingerprint) -> tuple[CorrectedModel | None, Path | None]:
    """The corrected model with its metadata, and the file in the cache folder that now holds it."""
    if run.model is None:
        return None, None
    works, times, noise = run.measured.samples()
    error = held_out_error(run.base, run.task, [work.works for work in works], times, noise)
    kinds = {kind_of_table(table.pooled, table.dtype) for table in task.tables}
    controls = run.measured.of_controls()
    metadata = model_metadata(task, machine, task.optimizer, task.batch_size, kinds, len(works), controls)
    metadata["tuned"] = f"from {run.base.name}"
    if error is not None:
        metadata |= {"mean_error": f"{error:.5f}", "test_sets": str(len(works))}
    named = metadata | {"name": telling_name(run.model)}
    model, path = replace(run.model, metadata=named), path_for(metadata, machine)
    try:
        keep_model(model, path)
    except InvalidInput:  # the base is a plug-in
        return run.model, None
    return model, path


def _for_task(measured_plan: Plan, task: Task, base: CostModel, first: Plan | None) -> Plan:
    """Convert a plan of the measured task to the real task: row blocks are stretched if tables were measured with fewer rows.

    Args:
        measured_plan: the plan of the measured task.
        task: the real task.
        base: predicts the cost of the plan.
        first: a plan whose bound, proven for the same model, holds for this plan too.
    """
    rows = {table.name: table.rows for table in measured_plan.task.tables}
    shards = []
    for shard in measured_plan.shards:
        full = task.table_by_name[shard.table].rows
        start, stop = (round(end * full / rows[shard.table]) for end in shard.rows)
        shards.append(
            shard if full == rows[shard.table] else Shard(shard.table, (start, stop), shard.columns, shard.devices)
        )
    result = scored(Plan(task, shards, measured_plan.strategy if first is None else "tuned", measured_plan.seed), base)
    result.check()
    proof = measured_plan if first is None else first
    assert result.cost is not None
    if measured_plan.task is task and proof.bound_ms is not None and proof.bound_ms <= result.cost.step_ms:
        result = replace(result, bound_ms=proof.bound_ms, bound_scope=proof.bound_scope)
    return result


def _kept_plan(task: Task, machine: Fingerprint) -> Path:
    """The file in the cache folder that keeps the best tuned plan of a task on a machine."""
    told = json.dumps([machine, task_to_dict(task)], sort_keys=True)
    folder = cache_folder() / "tuning"
    with writing_to(folder):
        return folder / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.plan.json"


def _earlier(path: Path, task: Task) -> Plan | None:
    """The best plan of an earlier run; None if there is none for this task, or it cannot be read."""
    try:
        earlier = Plan.load(path)
    except InvalidInput:
        return None
    return replace(earlier, task=task) if task_to_dict(earlier.task) == task_to_dict(task) else None


@dataclass
class Tuner(Interruptible):
    """A running tuning.

    Attributes:
        task: the task as it is measured.
        runs_on: the runtime that will execute the plan; "auto" becomes that of the first plan found.
        base: the model to correct.
        measured: measures devices, and holds the measurements so far.
        seed: seed of searches and random draws.
        seconds: time limit.
        keep: called with every plan that becomes the best.
        earlier: the best plan of an earlier run; None if there is none.
        began: `time.monotonic()` at which the time began.
        room_bytes: most bytes that the tables of a device may take.
        best: the best plan so far.
        first: the plan that planning alone finds.
        model: the model corrected by the measurements so far.
        bound_ms: lower bound on the step of every plan, by the corrected model of the last search.
        history: the measured plans, in order.
        stopped: "floor", "no gain", "time" or "interrupted".
        doing: the current activity, for progress messages.
    """

    task: Task
    runs_on: RunsOn | None
    base: CostModel
    measured: Comparison
    seed: int
    seconds: float
    keep: Callable[[Plan], None]
    earlier: Plan | None = None
    began: float = field(default_factory=monotonic)
    room_bytes: int = 1 << 62
    best: Candidate = field(init=False)
    first: Candidate = field(init=False)
    model: CorrectedModel | None = field(default=None, init=False)
    bound_ms: float | None = field(default=None, init=False)
    history: list[Trial] = field(default_factory=list, init=False)
    stopped: str = field(default="time", init=False)
    doing: str = field(default="planning", init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, 2])
        self._limit = min(_SEARCH_S, _SEARCH_SHARE * self.seconds)
        self._moves = max(2, self.task.topology.devices // 2)
        self._planning_s = self._limit  # the longest planning time of a round
        self._seen: set[frozenset[object]] = set()
        self._tried: list[Candidate] = []

    def run(self) -> None:
        """Tune until rounds bring no more gain, time is up, or Ctrl-C is pressed.

        Raises:
            InfeasibleTask: no strategy finds a plan.
            MeasurementFailed: the first plan cannot be measured.
            KeyboardInterrupt: Ctrl-C was pressed before the first plan was measured.
        """
        with self.until_interrupted():
            try:
                self._at_first()
                if self._tried:
                    self._rounds()
                    self._last_visits()
            except KeyboardInterrupt:
                if not self._tried:
                    raise
                self.stopped = "interrupted"
            if self._tried and self.measured.step_ms(self.best) > self.measured.step_ms(self.first):
                self.best = self.first

    def result(self) -> Tuning | None:
        """The measurements of the best and the first plan, and the history; None if no plan was measured whole."""
        if not self._tried:
            return None
        measured, times = self.measured, self.measured.times(self.best)
        return Tuning(
            measured_ms=measured.step_ms(self.best),
            interval_ms=measured.interval(self.best),
            first_ms=measured.step_ms(self.first),
            first_interval_ms=measured.interval(self.first),
            floor_ms=self.floor_ms,
            forward_ms=tuple(times[:, 0].tolist()),
            backward_ms=tuple(times[:, 1].tolist()),
            history=tuple(self.history),
        )

    @property
    def floor_ms(self) -> float:
        """The smallest mean device time of any measured plan: its step if it were perfectly balanced."""
        return min(candidate.total_ms(self.measured.times(candidate)) for candidate in self._tried)

    def _at_first(self) -> None:
        """Measure the plans that searches find; the plan with the shortest predicted step becomes the first plan."""
        candidates = list(self._searched())
        self.doing = "measuring the first plan"
        self.first = self.best = min(candidates, key=lambda candidate: candidate.promised_ms)
        others = [candidate for candidate in candidates if candidate is not self.first]
        self.measured.make_room((work for candidate in candidates for work in candidate.works), self.room_bytes)
        self.measured.visit_controls()
        self._foresee()
        self.measured.visit(self.first.works, 1)
        if not self.measured.can_measure(self.first):
            why = next(self.measured.failed[work] for work in self.first.works if work in self.measured.failed)
            raise MeasurementFailed(f"the first plan cannot be measured: {why}")
        self.model = self._corrected()
        if not self.measured.complete(self.first):
            return
        self._note(0, self.first, accepted=True)
        self.doing = "measuring the plans of searches"
        works = [work for candidate in candidates for work in candidate.works]
        for quiet in (1, 2):
            self.measured.visit(works, quiet, until=self._until(_AT_FIRST))
        self._judge(0, others)

    def _foresee(self) -> None:
        """Warn if the time is too short to measure one plan, and state what it allows."""
        lacking = self.measured.lacking(self.first)
        seconds = self.measured.expected_s(lacking)
        left = self.began + self.seconds - monotonic()
        if seconds.sum() > left:
            count = int(np.searchsorted(np.cumsum(np.sort(seconds)), left, side="right"))
            enough = monotonic() - self.began + 1.2 * float(seconds.sum()) / (1 - _RESERVE)
            warnings.warn(
                f"about {count} of the {counted(len(lacking), 'device')} of the first plan can be measured in {self.seconds:.0f} s: they "
                f"correct the cost model and are kept, and the next run goes on; for the whole plan, give --minutes {minutes_text(enough)}",
                stacklevel=2,
            )

    def _searched(self) -> Sequence[Candidate]:
        """Distinct plans of several searches, and the best plan of an earlier run.

        Raises:
            InfeasibleTask: no search finds a plan.
        """
        candidates: list[Candidate] = []
        why: InfeasibleTask | None = None
        for name, seed, price in _SEARCHES:
            if candidates and monotonic() >= self._until(_AT_FIRST / 2):
                break
            if self.interrupted:
                raise KeyboardInterrupt
            model = with_cut_price(self.base, self.task, price) if price else self.base
            try:
                searched = self._plan(name, model, self.seed + seed)
            except InfeasibleTask as error:
                why = error
                continue
            if self.runs_on == "auto":
                self.runs_on = "torchrec" if "torchrec" in searched.runs_on else "shardwright"
            told = f"{name}, a cut at {price:.0%} of a table" if price else f"{name}, seed {seed}" if seed else name
            candidates += self._new(told, scored(searched, self.base), None)
        if not candidates:
            assert why is not None
            raise why
        if self.earlier is not None:
            candidates += self._new("best of an earlier run", self.earlier, None)
        return candidates

    def _rounds(self) -> None:
        """Repeat rounds: correct the model, propose plans, measure them, judge them."""
        idle = number = 0
        while idle < _PATIENCE:
            number += 1
            if self.interrupted:
                raise KeyboardInterrupt
            if monotonic() + self._planning_s >= self._until(1 - _RESERVE):
                return
            if self.measured.interval(self.best)[0] <= self.floor_ms:
                self.stopped = "floor"
                return
            self.doing, planned = f"round {number}: planning", monotonic()
            self.model = self._corrected()
            proposals = self._proposals(number)
            self._planning_s = max(self._planning_s, monotonic() - planned)
            self.doing = f"round {number}: measuring"
            before = self.measured.step_ms(self.best)
            until = self._until(1 - _RESERVE)
            self.measured.make_room((work for proposal in proposals for work in proposal.works), self.room_bytes)
            self.measured.visit(self.best.works, min(2 + number // 2, _MOST_QUIET), until)
            self.measured.visit([work for proposal in proposals for work in proposal.works], 1, until)
            idle = 0 if self._judge(number, proposals) else idle + 1
            self._trust(before, proposals)
        self.stopped = "no gain"

    def _corrected(self) -> CorrectedModel | None:
        works, times, errors = self.measured.samples()
        if not works:
            return None
        return corrected(self.base, self.task, [work.works for work in works], times, errors)

    def _proposals(self, number: int) -> list[Candidate]:
        """New plans to measure: moves from the best plan and, every other round, the plan of a new search."""
        assert self.model is not None
        kernels = self.measured.times(self.best) + self.best.added
        mean = Moves(self._limited(), self.model, self.best.plan.shards, kernels)
        proposals: list[Candidate] = []
        present = self.measured.step_ms(self.best)
        for attempt in range(_DRAWS):
            model = self.model.drawn(self._rng) if attempt else self.model
            count = max(1, self._moves // (1 + attempt % 2))
            shards = Moves(self._limited(), model, self.best.plan.shards, kernels).best(count)
            promised = math.inf if shards is None else mean.promised_ms(shards)
            if shards is not None and promised < (1 - _WORTH) * present:
                name = "1 move" if count == 1 else f"{count} moves"
                proposals += self._new(name, Plan(self.task, shards, "tuned", self.seed), promised)
            if len(proposals) == _PROPOSALS or monotonic() >= self._until(1 - _RESERVE):
                break
        if number % 2 and not self.interrupted and monotonic() + self._limit < self._until(1 - _RESERVE):
            start = self.best.plan if number % 4 == 1 else None
            again = self._plan("certified", self.model, self.seed + number, start)
            if again.bound_ms is not None:
                self.bound_ms = again.bound_ms
            proposals += self._new("planned again", again, again.cost.step_ms if again.cost else None)
        return proposals

    def _judge(self, number: int, proposals: Sequence[Candidate]) -> bool:
        """Accept each proposal that beats the best plan by more than the noise; return whether any did."""
        seen = [
            proposal
            for proposal in proposals
            if self.measured.can_measure(proposal) and self.measured.complete(proposal)
        ]
        gained = False
        for proposal in sorted(seen, key=self.measured.step_ms):
            quiet = 2
            while _OPEN < self.measured.chance(proposal, self.best) < _SURE and quiet <= _MOST_QUIET:
                different = set(proposal.works) ^ set(self.best.works)
                works = [work for work in (*proposal.works, *self.best.works) if work in different]
                self.measured.visit(works, quiet, self._until(1 - _RESERVE))
                quiet += 1
            shorter = self.measured.step_ms(proposal) < self.measured.step_ms(self.best)
            better = shorter and self.measured.chance(proposal, self.best) >= _SURE
            self._note(number, proposal, accepted=better)
            if better:
                gained, self.best = True, proposal
                self.keep(proposal.plan)
        return gained

    def _trust(self, before: float, proposals: Sequence[Candidate]) -> None:
        """Make more moves at once if gains came as promised, and fewer if they did not."""
        shares = [
            (before - self.measured.step_ms(proposal)) / max(before - proposal.promised_ms, 1e-9 * before)
            for proposal in proposals
            if "move" in proposal.name and proposal in self._tried
        ]
        if shares and max(shares) >= _RETURN:
            self._moves = min(2 * self._moves, 4 * self.task.topology.devices)
        elif not shares or max(shares) < _SHORTFALL:
            self._moves = max(1, self._moves // 2)

    def _last_visits(self) -> None:
        """Visit the first and the best plan again to narrow their intervals."""
        self.doing = "measuring the best plan again"
        self.measured.visit([*self.first.works, *self.best.works], 3)
        if self.measured.fits(self.measured.controls):
            self.measured.visit_controls()

    def _new(self, name: str, plan: Plan, promised_ms: float | None) -> list[Candidate]:
        """A candidate for the plan, in a list; empty if the same plan was seen before."""
        key: frozenset[object] = frozenset(plan.shards)
        if key in self._seen:
            return []
        self._seen.add(key)
        if promised_ms is None:
            promised_ms = score(self.task, plan.shards, self.base).step_ms
        return [Candidate.of(name, plan, promised_ms)]

    def _note(self, number: int, tried: Candidate, *, accepted: bool) -> None:
        self._tried.append(tried)
        self.history.append(Trial(number, tried.name, tried.promised_ms, self.measured.step_ms(tried), accepted))

    def _plan(self, strategy: str, model: CostModel, seed: int, start: Plan | None = None) -> Plan:
        start = replace(start, tuning=None) if start is not None else None
        return plan(
            self.task,
            strategy=strategy,
            cost_model=model,
            seed=seed,
            time_limit=self._limit,
            runs_on=self.runs_on,
            start=start,
        )

    def _limited(self) -> Task:
        assert self.runs_on != "auto"
        return task_for(self.task, self.runs_on)

    def _until(self, share: float) -> float:
        return self.began + share * self.seconds
