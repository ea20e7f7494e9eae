"""The one loop that visits works; collecting, calibrating, tuning, verifying and learning by measuring give it queues.

A queue is any iterable of jobs, drawn one by one as they are measured, so that it may depend on what was measured before. Its end, and the
time limit of the campaign, are the stop rule. Controls are visited among the jobs, and each visit is stored at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Job, Visit, arena_bytes
from shardwright.measure.measurer import Measurer, Visitor
from shardwright.measure.pace import VisitSeconds
from shardwright.measure.store import SampleStore
from shardwright.measure.visits import Controls, Times, settled, time_of, usual_state

BETWEEN_CONTROLS = 40
"""Most visits to other works between two visits to a control."""

MOST_FAILED = 10
"""This many failures in a row are the fault of the machine or the backend, not of a work."""

_ROOM_TO_MOVE = 1.25  # room for tables over a plan's need, so that plans some moves away find room too


@dataclass
class Campaign:
    """Visits the works of queues, and holds the visits.

    Attributes:
        visitor: times kernels.
        controls: works that are visited every `BETWEEN_CONTROLS` visits.
        store: stores the visits, and holds those of earlier commands; None to store nothing.
        told: called before each visit.
        until: `time.monotonic()` at which visits should have ended.
        pace: foresees how long visits take; None to visit whatever is queued.
        most_failed: this many failures in a row end the campaign.
        visits: the visits to each work.
        failed: the reason for each work that could not be measured.
    """

    visitor: Visitor
    controls: Sequence[DeviceWork] = ()
    store: SampleStore | None = None
    told: Callable[[], None] = lambda: None
    until: float = field(default=math.inf, kw_only=True)
    pace: VisitSeconds | None = field(default=None, kw_only=True)
    most_failed: int = field(default=MOST_FAILED, kw_only=True)
    visits: dict[DeviceWork, list[Visit]] = field(default_factory=dict, init=False)
    failed: dict[DeviceWork, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._earlier_usual_ms = self.store.usual_ms() if self.store is not None else None
        self._since_controls = self._failures = 0
        self._asked_at = monotonic()

    def run(
        self, queue: Iterable[Job], *, until: float = math.inf, saw: Callable[[Job, Visit | str], None] | None = None
    ) -> None:
        """Visit the jobs of a queue; a job whose visit would not end in time is left out.

        Args:
            queue: the jobs.
            until: `time.monotonic()` at which these visits should have ended.
            saw: called with each job of the queue and its visit, or the reason why it cannot be measured.

        Raises:
            MeasurementFailed: too many works failed in a row, a control failed before anything was measured, or no measuring process can
                be started.
        """
        for job, result in self.visitor.visits(self._with_controls(queue, until)):
            if isinstance(result, Visit):
                self._keep(job, result)
            else:
                self.failed[job.work] = result
                self._failures += 1
            if saw is not None and job.kind != "control":
                saw(job, result)
            if not isinstance(result, Visit):
                self._check_failures(job, result)

    def visit_controls(self) -> None:
        """Visit the controls once; raises as `run` does."""
        self.run(self._of_controls())

    def visit_rounds(
        self, works: Iterable[DeviceWork], rounds: Iterable[int], rng: np.random.Generator, *, until: float = math.inf
    ) -> None:
        """Visit works in rounds, each in a new random order; disturbed works come again at the end of their round.

        Args:
            works: the works; those without shards are left out.
            rounds: quiet visits that each work has after each round.
            rng: draws the orders.
            until: see `run`.

        Raises:
            MeasurementFailed: see `run`.
        """
        wanted = [work for work in dict.fromkeys(works) if work.works]
        for quiet in rounds:
            while waiting := [work for work in wanted if self._lacks(work, quiet) and self.fits([work], until)]:
                self.run((Job(waiting[place], "tune") for place in rng.permutation(len(waiting))), until=until)

    def expected_s(self, works: Iterable[DeviceWork]) -> Floats:
        """`(n,)` seconds that a visit to each work takes, as foreseen from the visits so far; zeros without `pace`."""
        wanted = list(works)
        if self.pace is None:
            return np.zeros(len(wanted))
        measured = [sum(self.time(work)) if self.visits.get(work) else None for work in wanted]
        return self.pace.of_works(wanted, measured)

    def fits(self, works: Iterable[DeviceWork], until: float = math.inf) -> bool:
        """Whether visits to all these works would end by `until`, and by the end of the time."""
        return bool(monotonic() + self.expected_s(works).sum() <= min(until, self.until))

    def make_room(self, works: Iterable[DeviceWork], most_bytes: int) -> None:
        """Give the measuring process room for the tables of these works and somewhat larger ones; filling all memory takes long."""
        if isinstance(self.visitor, Measurer):
            held, needed = self.visitor.options.arena_bytes, arena_bytes([*works, *self.controls])
            if needed > held:
                self.visitor.make_room(max(min(int(_ROOM_TO_MOVE * needed), most_bytes), held))

    def of_controls(self) -> Controls:
        """The times of the controls; empty if any control was not visited."""
        if not all(self.visits.get(work) for work in self.controls):
            return Controls()
        return Controls(tuple(sum(self.time(work)) for work in self.controls))

    @property
    def usual_ms(self) -> float:
        """The state that times are converted to: that of the store, whose times stay as they are, else of these visits."""
        return self._earlier_usual_ms or usual_state(self.visits.values())

    def time(self, work: DeviceWork) -> Times:
        """Forward and backward ms of a visited work; zeros for a work without shards."""
        return time_of(self.visits[work], self.usual_ms) if work.works else (0.0, 0.0)

    def known(self, work: DeviceWork) -> Sequence[Visit]:
        """The visits to a work, by this command and by earlier ones."""
        if work not in self.visits:
            self.visits[work] = self.store.visits(work) if self.store is not None else []
        return self.visits[work]

    def _lacks(self, work: DeviceWork, quiet: int) -> bool:
        return work not in self.failed and not settled(self.known(work), quiet)

    def _of_controls(self) -> Iterator[Job]:
        self._since_controls = 0
        return (Job(work, "control") for work in self.controls)

    def _with_controls(self, queue: Iterable[Job], until: float) -> Iterator[Job]:
        for job in queue:
            if job.kind == "control":
                yield self._asked(job)
                continue
            if not self.fits([job.work], until):
                continue
            if self._since_controls >= BETWEEN_CONTROLS and self.fits((*self.controls, job.work)):
                yield from map(self._asked, self._of_controls())
            self._since_controls += 1
            yield self._asked(job)

    def _asked(self, job: Job) -> Job:
        self.told()
        self._asked_at = monotonic()
        return job

    def _keep(self, job: Job, visit: Visit) -> None:
        self._failures = 0
        if self.pace is not None:
            # The steps of the visit alone: the time around them may have started a measuring process.
            self.pace.saw(job.work, sum(visit.times_ms), sum(visit.spent.values()) or monotonic() - self._asked_at)
        self.visits.setdefault(job.work, []).append(visit)
        if self.store is not None:
            self.store.add(job, visit)

    def _check_failures(self, job: Job, why: str) -> None:
        if self._failures >= self.most_failed > 1:
            raise MeasurementFailed(
                f"{self._failures} sets in a row could not be measured, the last: {why}; check the backend with "
                "'python -m shardwright.measure.checks -o FOLDER'"
            )
        if self.most_failed == 1 or (job.kind == "control" and not self.visits):
            raise MeasurementFailed(why)
