"""The loop of a collection: what becomes of a sample that fails, when samples go into a part, and when to stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep, time
from typing import Any, cast

from shardwright.errors import MeasurementFailed
from shardwright.measure.agenda import Agenda, to_revisit
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.drawing import Drawer, DrawnSet
from shardwright.measure.failures import Failures
from shardwright.measure.journal import Key
from shardwright.measure.printer import Progress
from shardwright.measure.store import SampleStore
from shardwright.measure.worker_client import Worker

_FLUSH_S = 30.0
_AHEAD = 3  # samples that are drawn before they are needed
_MOST_STARTS = 3  # that fail in a row, where a process was measuring before
_START_AGAIN_S = 10.0  # a driver may need a while to free what a process held that was killed


@dataclass
class Visitor:
    """Visits samples until all are settled or time is up. On a GPU a sample that fails is noted and skipped.

    Attributes:
        drawer: draws the samples.
        store: where their times go.
        failures: where those go that cannot be measured; None if the first one ends the collection.
        start: starts a measuring process.
        stop_at: `time.monotonic` at which to stop.
        measured: visits made.
        spent: seconds by step.
    """

    drawer: Drawer
    store: SampleStore
    failures: Failures | None
    start: Callable[[], Worker]
    stop_at: float
    measured: int = 0
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def visit(self, wanted: Sequence[Key], progress: Progress | None) -> None:
        """Measure what is wanted and not settled yet.

        Raises:
            MeasurementFailed: a sample cannot be measured, or where failures are noted, too many in a row; or no measuring process
                can be started.
        """
        agenda = Agenda(wanted, self.store.visits, self.failures)
        if len(agenda) and monotonic() < self.stop_at:
            for _ in self._visits(agenda):
                if progress:
                    progress(len(wanted) - agenda.unseen, len(wanted), to_revisit(len(agenda) - agenda.unseen))

    def _visits(self, agenda: Agenda) -> Iterator[None]:
        """Visit after visit; yields after each."""
        flushed = monotonic()
        with _Measuring(self.start, self.spent) as measuring:
            while len(agenda) and monotonic() < self.stop_at:
                key = agenda.take()
                self.drawer.expect([key[0], *(sample for sample, _ in agenda.coming(_AHEAD))])
                self._measure(key, measuring)
                agenda.visited(key)
                if monotonic() - flushed > _FLUSH_S:
                    self.store.flush()
                    flushed = monotonic()
                yield

    def _measure(self, key: Key, measuring: _Measuring) -> None:
        """Visit a sample."""
        began = monotonic()
        drawn = self.drawer.get(key[0])
        self.spent["waiting for a draw"] += monotonic() - began
        measuring.make_ready()  # where it cannot be, that is no fault of the sample
        self.measured += 1
        try:
            measurement = measuring.measure(drawn)
        except MeasurementFailed as error:
            if self.failures is None or self.failures.add(key, error):
                raise
            return
        if self.failures is not None:
            self.failures.succeeded()
        self.store.append(row_of(drawn, key[1], self.store.hardware["device_kind"], measurement, time()))


class _Measuring:
    """A measuring process that is started anew where it has ended; a context manager that ends it."""

    def __init__(self, start: Callable[[], Worker], spent: defaultdict[str, float]) -> None:
        self._start, self._spent = start, spent
        self._worker: Worker | None = self._started()

    def make_ready(self) -> None:
        """Start a process where the last one has ended.

        Raises:
            MeasurementFailed: none can be started.
        """
        if self._worker is not None and not self._worker.alive:
            self._worker.close()
            self._worker = None
        for failed in range(1, _MOST_STARTS + 1):
            try:
                self._worker = self._worker or self._started()
                return
            except MeasurementFailed as error:
                if failed == _MOST_STARTS:
                    raise MeasurementFailed(
                        f"the measuring process ended, and {failed} attempts to start another one failed, the last with: {error}. What was "
                        "measured before is kept: look at the device, then collect again to go on"
                    ) from error
                sleep(_START_AGAIN_S)

    def measure(self, drawn: DrawnSet) -> Visit:
        """Measure a sample by the process that is ready, and count where the time goes."""
        worker = cast(Worker, self._worker)
        began = monotonic()
        tables = drawn.tables
        measurement = worker.visit(DeviceWork(tables.works, tables.seeds, tables.optimizer))
        for step, took in measurement.spent.items():
            self._spent[step] += took
        self._spent["talking"] += monotonic() - began - sum(measurement.spent.values())
        return measurement

    def __enter__(self) -> _Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()

    def _started(self) -> Worker:
        began = monotonic()
        worker = self._start()
        self._spent["start"] += monotonic() - began
        return worker


def row_of(drawn: DrawnSet, repeat: int, device_kind: str, measurement: Visit, measured_at: float) -> dict[str, Any]:
    """The store's row of a visit, which ended `measured_at` seconds after 1970."""
    return {
        "sample": drawn.tables.sample,
        "repeat": repeat,
        "batch_size": drawn.tables.batch_size,
        "optimizer": drawn.tables.optimizer,
        "device_kind": device_kind,
        "forward_ms": measurement.forward_ms,
        "backward_ms": measurement.backward_ms,
        "runs": measurement.batches,
        "sentinel": measurement.sentinel,
        "measured_at": int(measured_at * 1000),
        "shards": drawn.shards,
    }
