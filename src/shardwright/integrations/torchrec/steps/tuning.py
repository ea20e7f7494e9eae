"""Tuning by whole steps: a few plans take turns as trainings of TorchRec, and the fastest measured one is adopted.

1. The candidates are the default plan, which comes first, TorchRec's own plan, and plans under another seed or fewer sharding types.
2. A round measures each candidate once, with fresh batches. Two plans are compared by the ratios of their steps, round by round, so that a
   slow minute of the machine affects both.
3. After each round, plans that are slower than the fastest one beyond the noise are dropped. The first plan stays to the end.
4. The fastest plan is taken if it is faster than the first one beyond the noise; else the first one is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import expm1, inf, log, log1p, sqrt
from pathlib import Path
from statistics import mean, stdev
from time import monotonic

from shardwright.calibration.tuning import Told
from shardwright.calibration.visits import machine_for
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan, MeasurementFailed, counted
from shardwright.integrations.torchrec.requirements import require_torchrec
from shardwright.integrations.torchrec.steps.rank import Rounds
from shardwright.integrations.torchrec.steps.run import STEP, Measure, Steps, ranks
from shardwright.integrations.torchrec.steps.sharded import planned
from shardwright.measure.collectives.group import place_of_this_process
from shardwright.measure.pace import check_minutes, minutes_text
from shardwright.search.solve import plan as find_plan
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import SHARDING_TYPES
from shardwright.task.table import Table
from shardwright.task.task import Task

LEAST_ROUNDS = 3  # before any plan is dropped or taken, with any time limit
_SURE = (
    0.99  # confidence at which a plan counts as faster; high, because several plans are compared after several rounds
)
_ALIKE = 0.005  # share of a step: a difference that is known this well needs no further round
_SMALL_ROWS = 2_000  # rows of tables that lie on every device in one of the candidates
_PLANNING = 0.3  # share of the time after which no further candidate is searched
_LEAST_TIMEOUT_S = 300.0  # of one round


@dataclass(frozen=True)
class Difference:
    """The relative difference between the steps of two plans, over the rounds that measured both.

    Attributes:
        share: the ratio of the steps − 1, by the geometric mean over the rounds: −0.05 is 5% faster.
        noise: margin of error towards 0, as a share: the true difference lies beyond it with a probability of 1%; infinite before
            `LEAST_ROUNDS`.
    """

    share: float
    noise: float

    @classmethod
    def between(cls, steps_ms: Sequence[float], other_ms: Sequence[float]) -> Difference:
        """The difference of a plan from another, from their step ms by round; a plan that was dropped has fewer rounds."""
        from scipy.special import stdtrit

        ratios = [log(own / other) for own, other in zip(steps_ms, other_ms, strict=False)]
        if len(ratios) < LEAST_ROUNDS:
            return cls(expm1(mean(ratios)), inf)
        error = stdev(ratios) / sqrt(len(ratios))
        return cls(expm1(mean(ratios)), float(stdtrit(len(ratios) - 1, _SURE)) * error)

    @property
    def slower(self) -> bool:
        """Whether the plan is slower beyond the noise."""
        return log1p(self.share) > self.noise

    @property
    def faster(self) -> bool:
        """Whether the plan is faster beyond the noise."""
        return log1p(self.share) < -self.noise


def next_round(rounds_ms: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the plans that the next round measures; none if it would change nothing.

    These are the first plan, the fastest one, and those not clearly slower than it. Nothing changes once every plan is clearly slower than
    the fastest one, or known to be as fast.

    Args:
        rounds_ms: step ms of each plan by round; plans with fewer rounds than the first were dropped.
    """
    measured = _measured(rounds_ms)
    fastest = _fastest(rounds_ms, measured)
    behind = {plan: Difference.between(rounds_ms[plan], rounds_ms[fastest]) for plan in measured if plan != fastest}
    if all(plan.slower or plan.noise < _ALIKE for plan in behind.values()):
        return []
    return [plan for plan in measured if plan in (0, fastest) or not behind[plan].slower]


def taken(rounds_ms: Sequence[Sequence[float]]) -> int:
    """Index of the plan to take: the fastest of those that are clearly faster than the first; the first if there are none."""
    faster = [plan for plan in _measured(rounds_ms) if Difference.between(rounds_ms[plan], rounds_ms[0]).faster]
    return _fastest(rounds_ms, faster) if faster else 0


def _measured(rounds_ms: Sequence[Sequence[float]]) -> list[int]:
    """The plans that every round measured."""
    return [plan for plan, times in enumerate(rounds_ms) if len(times) == len(rounds_ms[0])]


def _fastest(rounds_ms: Sequence[Sequence[float]], plans: Sequence[int]) -> int:
    return min(plans, key=lambda plan: mean(map(log, rounds_ms[plan])))


@dataclass(frozen=True)
class TunedSteps:
    """The result of a tuning by whole steps.

    Attributes:
        candidates: the plans with their measurements by name, the first plan first.
        name: the name of the plan that was taken.
        stopped: "settled", "time" or "interrupted".
        seconds: how long the tuning took, planning included.
        notes: why candidates are missing.
    """

    candidates: Mapping[str, Steps]
    name: str
    stopped: str
    seconds: float
    notes: Sequence[str] = ()

    @property
    def plan(self) -> Plan:
        """The plan that was taken."""
        return self.candidates[self.name].plan

    @property
    def first(self) -> Steps:
        """The first plan, the one without tuning."""
        return next(iter(self.candidates.values()))

    def against_first(self, name: str) -> Difference:
        """The relative difference between a candidate's step and the first plan's."""
        return Difference.between(self.candidates[name].rounds(STEP), self.first.rounds(STEP))


def tune_steps(
    task: Task,
    *,
    minutes: float = 5.0,
    device: str | None = None,
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    progress: Told | None = None,
) -> TunedSteps | None:
    """Measure whole training steps of a few plans in turns, and return the fastest one.

    Without torchrun, a process of this machine is started for each device. Under torchrun, every rank must call this; rank 0 plans.

    Args:
        task: the task; its devices must be of this machine's type.
        minutes: time limit; one round is measured in any case. If three rounds of all plans do not fit, those that are the slowest in the
            first round are dropped, with a warning; if two plans do not fit, the default one is taken.
        device: "cpu" (gloo) or "cuda" (NCCL); by default the task's device.
        cost_model: a model or the path of one; by default the model that planning uses.
        seed: seed of the searches; one candidate takes the next seed.
        progress: called before each search and each round.

    Returns:
        The plan and all measurements; None on ranks other than the first.

    Raises:
        InvalidInput: an option is out of range, the task is for another device or has sharding groups, or torchrun started another number
            of ranks.
        InfeasibleTask: there is no plan.
        MeasurementFailed: a rank ended or hung, or this machine lacks memory or GPUs.
        MissingDependency: TorchRec is missing.
        KeyboardInterrupt: Ctrl-C was pressed before the last of the first three rounds had ended; later, it ends the tuning.
    """
    require_torchrec()
    check_minutes(minutes)
    kind, _ = machine_for(task, device, "tuned")
    if task.groups is not None:
        raise InvalidInput(
            "the task is for sharding groups, whose synchronisation these steps do not include; leave sharding_groups out of it"
        )
    place, began, limit_s = place_of_this_process(), monotonic(), 60 * minutes

    def tell(what: str) -> float:
        """Report the next piece of work; return the seconds since the start."""
        if progress is not None:
            progress(monotonic() - began, limit_s, what)
        return monotonic() - began

    leads = place is None or place.rank == 0
    model = resolve_cost_model(cost_model, task)
    candidates, notes = (
        _candidates(task, model, seed, kind, lambda name: tell(f"planning: {name}") < _PLANNING * limit_s)
        if leads
        else ({}, [])
    )
    timeout_s = max(_LEAST_TIMEOUT_S, limit_s)
    while True:
        plans = [steps.plan for steps in candidates.values()]
        try:
            with ranks(plans, task.topology.devices, place, device=kind, timeout_s=timeout_s) as measure:
                if not leads:
                    for number in count():
                        if not measure([], _round(number)):
                            return None
                stopped = _measure(candidates, measure if place is not None else _one_by_one(measure), tell, limit_s)
                if place is not None and stopped != "interrupted":
                    measure([], _round(0))  # lets the other ranks go
            break
        except _CandidateFailed as failed:
            notes.append(_without(candidates, failed))
    name = list(candidates)[taken([steps.rounds(STEP) for steps in candidates.values()])]
    return TunedSteps(candidates, name, stopped, monotonic() - began, notes)


class _CandidateFailed(MeasurementFailed):
    """The ranks ended or hung while they ran this plan."""

    def __init__(self, plan: Plan, reason: str) -> None:
        super().__init__(reason)
        self.plan = plan


def _one_by_one(measure: Measure) -> Measure:
    """Measure plans in separate calls, so that a failure concerns one plan only."""

    def measured(plans: Sequence[Plan], rounds: Rounds) -> list[Steps]:
        steps = []
        for plan in plans:
            try:
                steps += measure([plan], rounds)
            except MeasurementFailed as error:
                raise _CandidateFailed(plan, str(error)) from error
        return steps

    return measured


def _without(candidates: dict[str, Steps], failed: _CandidateFailed) -> str:
    """Drop the candidate that failed, and return a note; the first plan has to run.

    Raises:
        MeasurementFailed: the first plan failed.
    """
    name = next(name for name, steps in candidates.items() if steps.plan is failed.plan)
    if name == next(iter(candidates)):
        raise MeasurementFailed(str(failed)) from failed
    del candidates[name]
    return f"{name}: {failed}"


def _round(number: int) -> Rounds:
    """The measurements of a round; each round has its own batches."""
    return Rounds(rounds=1, profiled=1, seed=number)


def _measure(candidates: dict[str, Steps], measure: Measure, tell: Callable[[str], float], limit_s: float) -> str:
    """Measure the candidates round by round, and add the results; return why it stopped."""
    number, round_s = len(next(iter(candidates.values())).reports), 0.0  # rounds before another candidate failed count
    left = _left(candidates)
    while left:
        begin = tell(f"round {number + 1}, {len(left)} plans")
        if number and begin + round_s > limit_s:
            return "time"
        try:
            measured = measure([candidates[name].plan for name in left], _round(number))
        except KeyboardInterrupt:
            if number < LEAST_ROUNDS:
                raise
            return "interrupted"
        for name, steps in zip(left, measured, strict=True):
            candidates[name] = replace(candidates[name], reports=[*candidates[name].reports, *steps.reports])
        now = tell("comparing")
        number, round_s = number + 1, now - begin
        left = _left(candidates)
        if left and number < LEAST_ROUNDS:
            each = round_s / len(measured)
            left = _affordable(candidates, left, each * (LEAST_ROUNDS - number), limit_s, now)
            round_s = each * len(left)
    if len(next(iter(candidates.values())).reports) < LEAST_ROUNDS and len(candidates) > 1:
        return "time"
    return "settled"


def _affordable(
    candidates: Mapping[str, Steps], left: list[str], each_s: float, limit_s: float, now: float
) -> list[str]:
    """The plans that can be compared in the time that is left: the first one and the fastest so far; none if there is no time for two.

    Args:
        candidates: the candidates, each measured at least once.
        left: names of those that further rounds would measure, the first one first.
        each_s: seconds that the least number of rounds takes for each plan.
        limit_s: the time limit.
        now: seconds since the start.
    """
    count = int((limit_s - now) / each_s)
    if count >= len(left):
        return left
    needed = minutes_text(1.1 * (now + each_s * len(left)))
    kept = sorted(left[1:], key=lambda name: candidates[name].step_ms)[: max(0, count - 1)]
    what = (
        f"{counted(len(kept) + 1, 'plan')} of {len(left)} can be compared" if kept else "no two plans can be compared"
    )
    warnings.warn(
        f"{what} in {limit_s:.0f} s, since each takes {LEAST_ROUNDS} rounds; all of them need about --minutes {needed}",
        stacklevel=2,
    )
    return [left[0], *(name for name in left[1:] if name in kept)] if kept else []


def _left(candidates: Mapping[str, Steps]) -> list[str]:
    """Names of the candidates that the next round measures."""
    names, rounds_ms = list(candidates), [steps.rounds(STEP) for steps in candidates.values()]
    return [names[plan] for plan in next_round(rounds_ms)] if rounds_ms[0] else names


def _candidates(
    task: Task, model: CostModel, seed: int, kind: str, in_time: Callable[[str], bool]
) -> tuple[dict[str, Steps], list[str]]:
    """Distinct plans that TorchRec can run, by all of their names, the default one first; and the reasons for missing ones."""
    every = {*SHARDING_TYPES}
    small = _limited(task, {"data_parallel"}, lambda table: table.pooled and table.rows <= _SMALL_ROWS)
    ways = {
        "default": (task, "auto", seed),
        "torchrec": (task, "torchrec", seed),
        "no column cuts": (_limited(task, every - {"column_wise", "grid"}), "auto", seed),
        "small tables everywhere": (small, "auto", seed),
        "whole tables": (_limited(task, {"table_wise"}), "auto", seed),
        "another seed": (task, "auto", seed + 1),
    }
    named: dict[frozenset[Shard], tuple[list[str], Plan]] = {}
    notes = []
    for name, (limited, strategy, of_seed) in ways.items():
        if not in_time(name) and name not in ("default", "torchrec"):
            notes.append(f"{name}: not planned, to leave time for measuring")
            continue
        try:
            plan = find_plan(limited, strategy=strategy, cost_model=model, seed=of_seed, runs_on="torchrec")
            planned(plan, kind)
        except (InfeasibleTask, InvalidPlan) as error:
            if name == "default":
                raise
            notes.append(f"{name}: {error}")
            continue
        if limited is not task:  # a bound holds for the limits of its search only
            plan = scored(replace(plan, task=task, bound_ms=None), model)
        named.setdefault(frozenset(plan.shards), ([], plan))[0].append(name)
    return {" = ".join(names): Steps(plan, []) for names, plan in named.values()}, notes


def _limited(task: Task, types: set[str], of: Callable[[Table], bool] = lambda _: True) -> Task:
    """The task with only these sharding types for some tables, as far as a table's own constraints allow one of them."""
    limits = dict(task.constraints.tables)
    for table in filter(of, task.tables):
        own = task.constraints.of(table.name)
        allowed = tuple(kind for kind in SHARDING_TYPES if kind in types and own.allows(kind))
        limits[table.name] = replace(own, sharding_types=allowed or own.sharding_types)
    if limits == task.constraints.tables:
        return task
    return replace(task, constraints=replace(task.constraints, tables=limits))
