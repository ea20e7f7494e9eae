"""Measurements of calibration and tuning: works are visited with interleaved controls, and every visit is stored at once.

`Observed` collects sets and their times for training a model. `Comparison` visits devices of plans as often as it takes to tell two
plans apart.
"""

from __future__ import annotations

import fcntl
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Protocol

import numpy as np

from shardwright.arrays import Floats
from shardwright.calibration.pace import VisitSeconds
from shardwright.calibration.sets import Set
from shardwright.cost.model import CostModel
from shardwright.cost.score import beside_kernels_ms, communication_ms, device_ms
from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes, device_works
from shardwright.measure.measuring import (
    BETWEEN_CONTROLS,
    Controls,
    Measurer,
    settled,
    standard_error,
    time_of,
    usual_state,
    visit_noise,
)
from shardwright.measure.samples import read_samples
from shardwright.measure.store import SampleStore, reading, work_id
from shardwright.modelling.dataset import Samples, join, samples_of, samples_of_works
from shardwright.sharding.plan import Plan

_MOST_FAILED = 10  # failures in a row that indicate a fault of the backend, not of a work
_DRAWS = 400
_ROOM_TO_MOVE = 1.25  # room for tables over the need of a plan, so that plans a few moves away fit too


class Visitor(Protocol):
    """Times the work of a device, as `shardwright.measure.measuring.Measurer` does."""

    def visit(self, work: DeviceWork) -> Visit:
        """Time a work once."""
        ...


@dataclass
class Visits:
    """Visits works, and the controls at intervals.

    Attributes:
        visitor: times kernels.
        controls: works that are visited first, last, and every `BETWEEN_CONTROLS` visits.
        store: stores the visits, and holds those of earlier commands; None to store nothing.
        told: called before each visit.
        until: `time.monotonic()` at which visits should have ended.
        model: predicts times of works that were not visited, to foresee how long a visit takes; None if no model is known.
        pace: learns how long visits take.
        failed: the reason for each work that could not be measured.
    """

    visitor: Visitor
    controls: Sequence[DeviceWork]
    store: SampleStore | None
    told: Callable[[], None]
    until: float = field(default=math.inf, kw_only=True)
    model: CostModel | None = field(default=None, kw_only=True)
    pace: VisitSeconds = field(default_factory=VisitSeconds, kw_only=True)
    failed: dict[DeviceWork, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._visits: dict[DeviceWork, list[Visit]] = {}
        self._earlier_usual_ms = self.store.usual_ms() if self.store is not None else None
        self._count = self._failures = 0
        self._ratios: list[float] = []  # measured over predicted times

    def expected_s(self, works: Iterable[DeviceWork]) -> Floats:
        """`(n,)` seconds that a visit to each work takes, as foreseen from the visits so far."""
        wanted = list(works)
        return self.pace.expected(wanted, [self._expected_ms(work) for work in wanted])

    def fits(self, works: Iterable[DeviceWork], until: float = math.inf) -> bool:
        """Whether visits to all these works would end by `until` and within the time limit."""
        return bool(monotonic() + self.expected_s(works).sum() <= min(until, self.until))

    def _expected_ms(self, work: DeviceWork) -> float:
        """Step ms of a work: measured, or the prediction times the usual ratio of measured to predicted."""
        if not work.works:
            return 0.0
        if self._visits.get(work):
            return sum(self.time(work))
        return self._predicted_ms(work) * (float(np.median(self._ratios)) if self._ratios else 1.0)

    def _predicted_ms(self, work: DeviceWork) -> float:
        return max(sum(device_ms(self.model, work.works)), 1e-6) if self.model is not None else 1.0

    def make_room(self, works: Iterable[DeviceWork], most_bytes: int) -> None:
        """Make room in the measuring process for these works and somewhat larger ones, but not for more.

        Touching all of the memory takes long.
        """
        if isinstance(self.visitor, Measurer):
            needed = arena_bytes([*works, *self.controls])
            if needed > self.visitor.options.arena_bytes:
                self.visitor.make_room(
                    max(min(int(_ROOM_TO_MOVE * needed), most_bytes), self.visitor.options.arena_bytes)
                )

    def visit_controls(self) -> None:
        """Visit the controls once.

        Raises:
            MeasurementFailed: a control cannot be measured and nothing was measured before, or too many works failed in a row.
        """
        for work in self.controls:
            self._visit(work, "control")

    def of_controls(self) -> Controls:
        """The times of the controls; empty if any control was not visited."""
        if not all(self._visits.get(work) for work in self.controls):
            return Controls()
        return Controls(tuple(sum(self.time(work)) for work in self.controls))

    def time(self, work: DeviceWork) -> tuple[float, float]:
        """Forward and backward ms of a visited work; zeros for a work without shards."""
        if not work.works:
            return 0.0, 0.0
        # Times of earlier commands stay as they are, so new ones are converted to their state.
        return time_of(self._visits[work], self._earlier_usual_ms or usual_state(self._visits.values()))

    def _visit(self, work: DeviceWork, kind: str, label: str = "", batch_size: int | None = None) -> Visit | None:
        """Visit a work and store the visit; None if the work cannot be measured.

        Raises:
            MeasurementFailed: too many works failed in a row, or a control failed before anything was measured.
        """
        self._count += kind != "control"
        if kind != "control" and self._count % BETWEEN_CONTROLS == 0 and self.fits((*self.controls, work)):
            self.visit_controls()
        self.told()
        began = monotonic()
        try:
            visit = self.visitor.visit(work)
        except MeasurementFailed as error:
            self.failed[work] = str(error)
            self._failures += 1
            if self._failures >= _MOST_FAILED:
                raise MeasurementFailed(
                    f"{self._failures} sets in a row could not be measured, the last: {error}; check the backend with "
                    "'python -m shardwright.measure.checks -o FOLDER'"
                ) from error
            if kind == "control" and not self._visits:
                raise
            return None
        self._failures = 0
        # The steps of the visit alone: the time around them may have started a measuring process.
        self.pace.saw(work, sum(visit.times_ms), sum(visit.spent.values()) or monotonic() - began)
        self._ratios.append(sum(visit.times_ms) / self._predicted_ms(work))
        self._visits.setdefault(work, []).append(visit)
        if self.store is not None:
            self.store.add(work, visit, kind=kind, label=label, batch_size=batch_size)
        return visit


@dataclass
class Observed(Visits):
    """Visits sets, and holds those of earlier calibrations.

    Attributes:
        batch_size: samples in a batch.
        earlier: the sets of earlier calibrations; None if there are none.
        sets: the sets of this calibration, in the order of their first visit.
    """

    batch_size: int | None = None
    earlier: Samples | None = None
    sets: dict[Set, None] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.sets) + (len(self.earlier) if self.earlier is not None else 0)

    def visit(self, one: Set) -> Visit | None:
        """Visit a set; None if it cannot be measured."""
        found = self._visit(one.work, one.kind, one.label, self.batch_size)
        if found is not None:
            self.sets[one] = None
        return found

    def known(self, one: Set) -> bool:
        """Whether the set's work was already visited for another set; if so, take the set without a visit."""
        if one.work in self._visits:
            self.sets[one] = None
        return one.work in self._visits

    def disturbed(self) -> list[Set]:
        """Sets that need another visit, the most disturbed first."""
        found = {one.work: one for one in self.sets if not settled(self._visits[one.work])}
        return sorted(found.values(), key=lambda one: -min(visit.sentinel for visit in self._visits[one.work]))

    def samples(self) -> Samples:
        """All sets with their times, those of earlier calibrations first."""
        if self.earlier is not None and not self.sets:
            return self.earlier
        times = np.array([self.time(one.work) for one in self.sets]).reshape(-1, 2)
        own = samples_of_works([one.work.works for one in self.sets], times, [one.label for one in self.sets])
        return own if self.earlier is None else join([self.earlier, own])


def earlier_samples(store: SampleStore, optimizer: str, batch_size: int) -> Samples | None:
    """Sets measured earlier on this machine with this optimizer and batch size; None if there are none."""
    import pyarrow.compute as pc

    with reading(store.folder) as db:
        if not db.execute("SELECT count(*) FROM sets WHERE kind <> 'control'").fetchone()[0]:
            return None
    try:
        table = read_samples(store.folder, hardware=store.hardware, optimizer=optimizer)
    except InvalidInput:  # the samples are from other hardware, or with another optimizer
        return None
    table = table.filter(pc.and_(pc.equal(table["batch_size"], batch_size), pc.equal(table["repeat"], 0)))
    return samples_of(table) if table.num_rows else None


@contextmanager
def calibration_lock(folder: Path) -> Iterator[None]:
    """Lock out other calibrations on this machine; the kernel releases the lock when the process ends, even by a crash.

    Raises:
        InvalidInput: another calibration is running, or the cache folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"calibrating-{platform.node()}.lock").open("wb")
    except OSError as error:
        raise InvalidInput(
            f"{folder}: the cache folder cannot be written to ({error.strerror}); name another one with SHARDWRIGHT_CACHE"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                "another calibration or tuning is running on this machine, and two would disturb each other: wait until it ends"
            ) from None
        yield


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan to measure, or already measured.

    Attributes:
        name: how the plan was found.
        plan: the plan.
        promised_ms: predicted step of the plan.
        works: the work of each device.
        links: `(devices, 2)` predicted ms of forward and backward collectives.
        added: `(devices, 2)` predicted ms of codecs and of synchronising sharding groups.
    """

    name: str
    plan: Plan
    promised_ms: float
    works: tuple[DeviceWork, ...]
    links: Floats
    added: Floats

    @classmethod
    def of(cls, name: str, plan: Plan, promised_ms: float) -> Candidate:
        """The candidate of a plan."""
        links = np.stack(communication_ms(plan.task, plan.shards), axis=1)
        return cls(
            name, plan, promised_ms, tuple(device_works(plan, 0)), links, beside_kernels_ms(plan.task, plan.shards)
        )

    def step_ms(self, times: Floats) -> Floats:
        """`(...)` step ms from `(..., devices, 2)` kernel ms."""
        steps: Floats = (times + self.added).max(axis=-2).sum(axis=-1) + self.links.max(axis=0).sum()
        return steps

    def total_ms(self, times: Floats) -> float:
        """Mean device time: the step ms if the plan were perfectly balanced."""
        return float((times + self.added + self.links).sum()) / len(self.works)


@dataclass
class Comparison(Visits):
    """Visits devices of plans to find the faster plan.

    Attributes:
        rng: draws the order of the visits.
    """

    rng: np.random.Generator

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normal: dict[DeviceWork, Floats] = {}

    def visit(self, works: Iterable[DeviceWork], quiet: int, until: float = math.inf) -> None:
        """Visit works in rounds, in random order, until each work has `quiet` quiet visits or no further visit would end by `until`.

        Raises:
            MeasurementFailed: too many works failed in a row.
        """
        wanted = [work for work in dict.fromkeys(works) if work.works]
        for number in range(1, quiet + 1):
            while waiting := [work for work in wanted if self._lacks(work, number) and self.fits([work], until)]:
                for place in self.rng.permutation(len(waiting)):
                    if self.fits([waiting[place]], until):
                        self._visit(waiting[place], "tune")

    def complete(self, candidate: Candidate) -> bool:
        """Whether every device was visited."""
        return not self.lacking(candidate)

    def lacking(self, candidate: Candidate) -> list[DeviceWork]:
        """The works of a plan's devices that were never visited, each once."""
        return [work for work in dict.fromkeys(candidate.works) if work.works and not self._known(work)]

    def can_measure(self, candidate: Candidate) -> bool:
        """Whether no device of the plan has failed so far."""
        return not any(work in self.failed for work in candidate.works)

    def times(self, candidate: Candidate) -> Floats:
        """`(devices, 2)` forward and backward kernel ms."""
        return np.array([self.time(work) for work in candidate.works])

    def step_ms(self, candidate: Candidate) -> float:
        """Step ms of a plan with its measured kernel times."""
        return float(candidate.step_ms(self.times(candidate)))

    def interval(self, candidate: Candidate) -> tuple[float, float]:
        """95% interval of the step ms."""
        low, high = np.quantile(self._steps(candidate), [0.025, 0.975]).tolist()
        step = self.step_ms(candidate)
        return min(low, step), max(high, step)

    def chance(self, candidate: Candidate, other: Candidate) -> float:
        """Probability that a plan is faster than another; the noise of a device that both plans have is the same in both."""
        return float((self._steps(candidate) < self._steps(other)).mean())

    def samples(self) -> tuple[list[DeviceWork], Floats, Floats]:
        """All n works of plans, their `(n, 2)` ms, and the `(n, 2)` standard errors in ms."""
        controls, noise = set(self.controls), visit_noise(self._visits.values())
        works = [work for work, visits in self._visits.items() if visits and work not in controls]
        times = np.array([self.time(work) for work in works]).reshape(-1, 2)
        return works, times, np.array([self._error(work, noise) for work in works]).reshape(-1, 2) * times

    def time(self, work: DeviceWork) -> tuple[float, float]:
        """As in `Visits`, but for a work that this command did not visit, the time comes from earlier commands."""
        self._known(work)
        return super().time(work)

    def _known(self, work: DeviceWork) -> list[Visit]:
        """The visits to a work, by this command and by earlier ones."""
        if work not in self._visits:
            self._visits[work] = self.store.visits(work) if self.store is not None else []
        return self._visits[work]

    def _lacks(self, work: DeviceWork, quiet: int) -> bool:
        return work not in self.failed and not settled(self._known(work), quiet)

    def _error(self, work: DeviceWork, noise: Floats) -> Floats:
        """`(2,)` standard error of a work's time, as a share of the time; `noise` is that of a visit."""
        return standard_error(noise, sum(visit.quiet for visit in self._known(work)))

    def _steps(self, candidate: Candidate) -> Floats:
        """`(draws,)` random step ms within the noise of the measurements; a work gets the same draws in all plans."""
        drawn, noise = np.zeros((_DRAWS, len(candidate.works), 2)), visit_noise(self._visits.values())
        for device, work in enumerate(candidate.works):
            if work.works:
                if work not in self._normal:
                    self._normal[work] = np.random.default_rng(work_id(work)).standard_normal((_DRAWS, 2))
                drawn[:, device] = np.array(self.time(work)) * (1 + self._error(work, noise) * self._normal[work])
        return candidate.step_ms(drawn)
