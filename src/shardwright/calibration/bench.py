"""Devices of many plans, measured in turns and as often as it takes to tell two plans apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from shardwright.arrays import Floats
from shardwright.calibration.observed import Visitor
from shardwright.cost.score import communication_ms, synchronisation_ms
from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit, device_works
from shardwright.measure.measuring import Controls, settled, time_of
from shardwright.measure.store import SampleStore, work_id
from shardwright.sharding.plan import Plan

_DRAWS = 400
_LEAST_NOISE, _FIRST_NOISE = 0.003, 0.02  # of a time: between visits at least, and as long as no work was visited twice
_MEDIAN = 1.25  # standard error of a median over that of a mean
_BETWEEN_CONTROLS = 40  # visits
_MOST_FAILED = 10  # in a row: then the backend is at fault, not a work


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that is measured, or is to be.

    Attributes:
        name: where it came from.
        plan: the plan.
        promised_ms: its predicted step.
        works: what each device does.
        links: `(devices, 2)` predicted forward and backward collectives.
        added: `(devices, 2)` predicted synchronisation of sharding groups.
    """

    name: str
    plan: Plan
    promised_ms: float
    works: tuple[DeviceWork, ...]
    links: Floats
    added: Floats

    @classmethod
    def of(cls, name: str, plan: Plan, promised_ms: float) -> Candidate:
        """A plan made ready to be measured."""
        links = np.stack(communication_ms(plan.task, plan.shards), axis=1)
        return cls(
            name, plan, promised_ms, tuple(device_works(plan, 0)), links, synchronisation_ms(plan.task, plan.shards)
        )

    def step_ms(self, times: Floats) -> Floats:
        """`(...)` step from `(..., devices, 2)` kernel times."""
        steps: Floats = (times + self.added).max(axis=-2).sum(axis=-1) + self.links.max(axis=0).sum()
        return steps

    def total_ms(self, times: Floats) -> float:
        """What the mean device takes: the step in perfect balance."""
        return float((times + self.added + self.links).sum()) / len(self.works)


@dataclass
class Bench:
    """What was measured so far, and what can be concluded from it.

    Attributes:
        visitor: times kernels.
        controls: works that are visited first, last, and now and then.
        store: keeps visits, and has those of earlier commands; None where nothing is kept.
        rng: order of the visits.
        until: `time.monotonic()` from which on nothing is visited.
        told: called before each visit.
        failed: works that could not be measured, and why.
    """

    visitor: Visitor
    controls: Sequence[DeviceWork]
    store: SampleStore | None
    rng: np.random.Generator
    until: float
    told: Callable[[], None]
    failed: dict[DeviceWork, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._visits: dict[DeviceWork, list[Visit]] = {}
        self._usual_ms = self.store.usual_ms() if self.store is not None else None
        self._normal: dict[DeviceWork, Floats] = {}
        self._count = self._failures = 0

    def visit(self, works: Iterable[DeviceWork], quiet: int, until: float | None = None) -> None:
        """Visit works in rounds, each in a new random order, until each had so many quiet visits or time is up.

        Raises:
            MeasurementFailed: too many works in a row could not be measured.
        """
        wanted = [work for work in dict.fromkeys(works) if work.works]
        for number in range(1, quiet + 1):
            waiting = [work for work in wanted if self._lacks(work, number)]
            while waiting:
                for place in self.rng.permutation(len(waiting)):
                    if monotonic() >= (self.until if until is None else until):
                        return
                    self._visit(waiting[place])
                waiting = [work for work in waiting if self._lacks(work, number)]

    def visit_controls(self) -> None:
        """Visit the controls once."""
        for work in self.controls:
            self._visit(work)

    def measured(self, candidate: Candidate) -> bool:
        """Whether every device was visited."""
        return all(self._known(work) for work in candidate.works if work.works)

    def can_measure(self, candidate: Candidate) -> bool:
        """Whether no device is known to fail."""
        return not any(work in self.failed for work in candidate.works)

    def times(self, candidate: Candidate) -> Floats:
        """`(devices, 2)` forward and backward kernel ms."""
        return np.array([self._time(work) for work in candidate.works])

    def step_ms(self, candidate: Candidate) -> float:
        """Step of a plan, its kernels as measured."""
        return float(candidate.step_ms(self.times(candidate)))

    def interval(self, candidate: Candidate) -> tuple[float, float]:
        """95% interval of the step."""
        low, high = np.quantile(self._steps(candidate), [0.025, 0.975]).tolist()
        step = self.step_ms(candidate)
        return min(low, step), max(high, step)

    def chance(self, candidate: Candidate, other: Candidate) -> float:
        """How likely it is that a plan is better than another; devices that both have count for both alike."""
        return float((self._steps(candidate) < self._steps(other)).mean())

    def samples(self) -> tuple[list[DeviceWork], Floats, Floats]:
        """All works of plans, with `(n, 2)` times and their standard errors."""
        works = [work for work, visits in self._visits.items() if visits and work not in set(self.controls)]
        times = np.array([self._time(work) for work in works]).reshape(-1, 2)
        return works, times, np.array([self._error(work) for work in works]).reshape(-1, 2) * times

    def of_controls(self) -> Controls:
        """What the controls took; nothing where one was not visited."""
        if not all(self._visits.get(work) for work in self.controls):
            return Controls()
        return Controls(tuple(sum(self._time(work)) for work in self.controls))

    def _known(self, work: DeviceWork) -> list[Visit]:
        """Visits of this command and of earlier ones."""
        if work not in self._visits:
            self._visits[work] = self.store.visits(work) if self.store is not None else []
        return self._visits[work]

    def _lacks(self, work: DeviceWork, quiet: int) -> bool:
        return work not in self.failed and not settled(self._known(work), quiet)

    def _visit(self, work: DeviceWork) -> None:
        if self._count % _BETWEEN_CONTROLS == _BETWEEN_CONTROLS - 1:
            self._count += 1
            self.visit_controls()
        self._count += 1
        self.told()
        try:
            visit = self.visitor.visit(work)
        except MeasurementFailed as error:
            self.failed[work] = str(error)
            self._failures += 1
            if self._failures >= _MOST_FAILED or work in self.controls:
                raise
            return
        self._failures = 0
        self._known(work).append(visit)
        if self.store is not None:
            self.store.add(work, visit, kind="control" if work in self.controls else "tune")

    def _time(self, work: DeviceWork) -> tuple[float, float]:
        return time_of(self._known(work), self._usual_ms) if work.works else (0.0, 0.0)

    def _noise(self) -> Floats:
        """`(2,)` standard deviation of a quiet visit, as a share of the time, over all works that were visited twice or more."""
        squares, freedom = np.zeros(2), 0
        for visits in self._visits.values():
            times = np.log([(v.forward_ms + 1e-9, v.backward_ms + 1e-9) for v in visits if v.quiet] or np.zeros((0, 2)))
            if len(times) >= 2:
                squares += ((times - times.mean(axis=0)) ** 2).sum(axis=0)
                freedom += len(times) - 1
        if not freedom:
            return np.full(2, _FIRST_NOISE)
        prior = 4  # as if so many visits had the noise that is assumed at first
        return np.maximum(np.sqrt((squares + prior * _FIRST_NOISE**2) / (freedom + prior)), _LEAST_NOISE)

    def _error(self, work: DeviceWork) -> Floats:
        """`(2,)` standard error of a work's time, as a share of it."""
        count = max(1, sum(visit.quiet for visit in self._known(work)))
        found: Floats = self._noise() * (_MEDIAN if count > 2 else 1.0) / math.sqrt(count)
        return found

    def _steps(self, candidate: Candidate) -> Floats:
        """`(draws,)` steps that the measurements allow; the same draws of a work in every plan that has it."""
        drawn = np.zeros((_DRAWS, len(candidate.works), 2))
        for device, work in enumerate(candidate.works):
            if work.works:
                if work not in self._normal:
                    self._normal[work] = np.random.default_rng(work_id(work)).standard_normal((_DRAWS, 2))
                drawn[:, device] = np.array(self._time(work)) * (1 + self._error(work) * self._normal[work])
        return candidate.step_ms(drawn)
