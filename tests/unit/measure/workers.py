"""A measuring process that takes no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.visits import control_works

Answer = Callable[[DeviceWork, int], Visit]


def by_lookups(work: DeviceWork, before: int) -> Visit:
    """Time in proportion to the lookups; the first visit to a work is disturbed, and finds twice as much."""
    slow = 1 if before else 2
    forward = slow * sum(one.lookups for one in work.works)
    return Visit(forward, 3 * forward, 2, float(slow), 1.0, 0.0)


class FakeWorker:
    """Answers by `answer`, and takes notes; controls are always quiet and noted apart."""

    answer: ClassVar[Answer] = by_lookups
    asked: ClassVar[list[DeviceWork]] = []
    controls: ClassVar[list[DeviceWork]] = []
    started: ClassVar[list[Any]] = []

    def __init__(self, options: Any) -> None:
        FakeWorker.started.append(options)
        self.alive = True

    def visit(self, work: DeviceWork) -> Visit:
        if work in control_works("cpu", work.optimizer):
            self.controls.append(work)
            return Visit(1.0, 2.0, 2, 1.0, 1.0, 0.0)
        before = self.asked.count(work)
        self.asked.append(work)
        return FakeWorker.answer(work, before)

    def close(self) -> None:
        self.alive = False
