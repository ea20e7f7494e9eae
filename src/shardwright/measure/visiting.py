"""The loop of a collection: which sample is measured next, what becomes of one that fails, and when to stop."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic, time
from typing import Any

from shardwright.errors import MeasurementFailed
from shardwright.measure.drawing import Drawer, DrawnSet
from shardwright.measure.failures import Failures
from shardwright.measure.journal import Key
from shardwright.measure.session import Measurement
from shardwright.measure.store import SampleStore
from shardwright.measure.worker_client import Worker

_FLUSH_S = 30.0
_AGAIN_AFTER_S = 60.0
_AHEAD = 3  # samples that are drawn before they are needed

Progress = Callable[[int, int], None]
"""Called after each visit with the measurements settled and wanted, in all."""


@dataclass
class Visitor:
    """Visits samples until all are settled or time is up.

    On a CPU noise is other programs', which come and go: a disturbed sample is visited again when a minute has passed, or nothing else is
    left. On a GPU it is visited again when nothing else is left, and a sample that fails is noted and skipped.

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
            MeasurementFailed: a sample cannot be measured, or where failures are noted, too many in a row.
        """
        todo = [key for key in wanted if not self._settled(key)]
        if todo and monotonic() < self.stop_at:
            for left in self._visits(todo):
                if progress:
                    progress(len(wanted) - left, len(wanted))

    def _visits(self, todo: Sequence[Key]) -> Iterator[int]:
        """Visit after visit; yields after each how many samples are not settled."""
        new = deque(key for key in todo if not self.store.visits.seen(key))
        again = deque((0.0, key) for key in todo if self.store.visits.seen(key))
        flushed = monotonic()
        with _Measuring(self.start, self.spent) as measuring:
            while (new or again) and monotonic() < self.stop_at:
                waited = self.failures is None and again and again[0][0] <= monotonic()
                key = again.popleft()[1] if waited or not new else new.popleft()
                self.drawer.expect([key[0], *(sample for sample, _ in islice(new, _AHEAD))])
                self._measure(key, measuring)
                if not self._settled(key):
                    again.append((monotonic() + _AGAIN_AFTER_S, key))
                if monotonic() - flushed > _FLUSH_S:
                    self.store.flush()
                    flushed = monotonic()
                yield len(new) + len(again)

    def _measure(self, key: Key, measuring: _Measuring) -> None:
        """Visit a sample."""
        began = monotonic()
        drawn = self.drawer.get(key[0])
        self.spent["waiting for a draw"] += monotonic() - began
        self.measured += 1
        try:
            measurement = measuring.measure(drawn)
        except MeasurementFailed as error:
            if self.failures is None or self.failures.add(key, error):
                raise
            return
        if self.failures is not None:
            self.failures.succeeded()
        self.store.append(_row(drawn, key[1], self.store.hardware["device_kind"], measurement))

    def _settled(self, key: Key) -> bool:
        return self.store.visits.settled(key) or (self.failures is not None and key in self.failures)


class _Measuring:
    """A measuring process that is started anew where it has ended; a context manager that ends it."""

    def __init__(self, start: Callable[[], Worker], spent: defaultdict[str, float]) -> None:
        self._start, self._spent = start, spent
        self._worker = self._started()

    def measure(self, drawn: DrawnSet) -> Measurement:
        """Measure a sample, and count where the time goes."""
        if not self._worker.alive:
            self._worker.close()
            self._worker = self._started()
        began = monotonic()
        tables = drawn.tables
        measurement = self._worker.measure(tables.works, tables.seeds, tables.optimizer)
        for step, took in measurement.spent.items():
            self._spent[step] += took
        self._spent["talking"] += monotonic() - began - sum(measurement.spent.values())
        return measurement

    def __enter__(self) -> _Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def _started(self) -> Worker:
        began = monotonic()
        worker = self._start()
        self._spent["start"] += monotonic() - began
        return worker


def _row(drawn: DrawnSet, repeat: int, device_kind: str, measurement: Measurement) -> dict[str, Any]:
    """The store's row of a measured sample."""
    return {
        "sample": drawn.tables.sample,
        "repeat": repeat,
        "batch_size": drawn.tables.batch_size,
        "optimizer": drawn.tables.optimizer,
        "device_kind": device_kind,
        "forward_ms": measurement.forward_ms,
        "backward_ms": measurement.backward_ms,
        "runs": measurement.runs,
        "sentinel": measurement.sentinel,
        "measured_at": int(time() * 1000),
        "shards": drawn.shards,
    }
