"""Visitors time the works of a queue: the measuring process of this machine, or the workers of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Protocol, Self, TypeAlias

from shardwright.errors import MeasurementFailed
from shardwright.hardware import available_memory, check_device, default_backend
from shardwright.measure.backends import check_backend
from shardwright.measure.device_work import DeviceWork, Job, Visit
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.worker import Worker, WorkerOptions
from shardwright.task.quantities import format_bytes

_MOST_STARTS = 3  # most failed restarts in a row of a process that ended
_START_AGAIN_S = 10.0  # a driver may need a while to free the memory of a killed process
_SLACK_BYTES = 256 * 2**20  # sentinel, buffers of torch, and other memory of the process


Visited: TypeAlias = tuple[Job, Visit | str]
"""A job with its visit, or with the reason why its work cannot be measured."""


class Visitor(Protocol):
    """Times the works of a queue: a `Measurer`, or the workers of a cluster."""

    def visits(self, queue: Iterable[Job]) -> Iterator[Visited]:
        """Visit each job's work once, in any order; a job is drawn when it can be measured."""
        ...


class OneByOne(ABC):
    """A visitor that visits works one after another, each by `visit`."""

    def ready(self) -> object:  # noqa: B027  (most visitors need no preparation)
        """Prepare for a visit; a failure here is no fault of a work."""

    @abstractmethod
    def visit(self, work: DeviceWork) -> Visit:
        """Time a work once."""

    def visits(self, queue: Iterable[Job]) -> Iterator[Visited]:
        """Visit each job's work once, in the order of the queue."""
        for job in queue:
            self.ready()
            try:
                result: Visit | str = self.visit(job.work)
            except MeasurementFailed as error:
                result = str(error)
            yield job, result


class Measurer(OneByOne):
    """A measuring process that starts when it is first needed, and restarts if it has ended; a context manager that ends it.

    Args:
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or one's own as "package.module:ClassName"; by default fbgemm if it is installed.
        arena_bytes: room for the weights and optimizer state of one device.
        policy: how often batches are run; by default the policy of the device.

    Attributes:
        spent: seconds by step, over all visits.

    Raises:
        InvalidInput: there is no such device or backend.
    """

    def __init__(self, device: str, backend: str | None, arena_bytes: int, policy: TimingPolicy | None = None) -> None:
        check_device(device)
        backend = backend or default_backend()
        check_backend(backend)
        self.options = WorkerOptions(device, backend, arena_bytes, policy)
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._worker: Worker | None = None

    def visit(self, work: DeviceWork) -> Visit:
        """Time a work once.

        Raises:
            MeasurementFailed: the work does not fit, a kernel cannot run, or no measuring process can be started.
        """
        worker = self.ready()
        began = monotonic()
        visit = worker.visit(work)
        for step, took in visit.spent.items():
            self.spent[step] += took
        self.spent["talking"] += monotonic() - began - sum(visit.spent.values())
        return visit

    def make_room(self, arena_bytes: int) -> None:
        """Have at least so much room for a device's tables; a process with less ends, and another one starts at the next visit."""
        if arena_bytes > self.options.arena_bytes:
            self.close()
            self.options = replace(self.options, arena_bytes=arena_bytes)

    def ready(self) -> Worker:
        """The measuring process; starts it if needed.

        Raises:
            MeasurementFailed: it cannot be started. The first start is tried once, a restart several times.
        """
        again = self._worker is not None
        if self._worker is not None and not self._worker.alive:
            self.close()
        attempts = _MOST_STARTS if again else 1
        for failed in range(1, attempts + 1):
            if self._worker is not None:
                break
            began = monotonic()
            try:
                self._worker = Worker(self.options)
            except MeasurementFailed as error:
                if not again:
                    raise
                if failed == attempts:
                    raise MeasurementFailed(
                        f"the measuring process ended, and {failed} attempts to start another one failed, the last with: {error}. What was "
                        "measured before is kept: look at the device, then give the same command again to go on"
                    ) from error
                sleep(_START_AGAIN_S)
            self.spent["start"] += monotonic() - began
        assert self._worker is not None
        return self._worker

    @property
    def alive(self) -> bool:
        """Whether the measuring process runs."""
        return self._worker is not None and self._worker.alive

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_memory(works: Sequence[DeviceWork]) -> None:
    """Check that the tables and batch of the largest device fit this machine's memory.

    Raises:
        MeasurementFailed: they do not fit.
    """
    needed = max((work.table_bytes + work.buffer_bytes for work in works), default=0) + _SLACK_BYTES
    free = available_memory()
    if needed > free:
        raise MeasurementFailed(
            f"the largest device of the plans needs {format_bytes(needed)} of memory, this machine has {format_bytes(free)} free; "
            "scale the tables down, or measure on a machine with more memory"
        )
