"""What a worker of a cluster keeps while a policy learns: a measuring process, started when it is first needed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardwright.measure.hardware import Fingerprint

if TYPE_CHECKING:
    from shardwright.measure.device_work import DeviceWork, Visit
    from shardwright.measure.worker import Worker, WorkerOptions


@dataclass(frozen=True)
class MeasuringJob:
    """Devices to measure once each.

    Attributes:
        works: what each of them has to do.
        largest: of all works that the process is to measure, the one that takes the most memory.
        options: how the measuring process is set up; its arena is the least that is needed.
    """

    works: Sequence[DeviceWork]
    largest: DeviceWork
    options: WorkerOptions


@dataclass(frozen=True)
class MeasuredJob:
    """What was measured.

    Attributes:
        visits: one visit to each work.
        fingerprint: what it was measured on.
    """

    visits: list[Visit]
    fingerprint: Fingerprint


class Bench:
    """A worker's state. Its measuring process ends with it: it reads requests from a pipe, and ends when that closes.

    Args:
        device: "cpu" or "cuda".

    Attributes:
        host: name of the machine.
    """

    def __init__(self, device: str) -> None:
        self.host = socket.gethostname()
        self._device = device
        self._worker: Worker | None = None
        self._options: WorkerOptions | None = None
        self._largest = 0  # bytes that the memory was found to have room for

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The hardware and software that the worker measures with."""
        from shardwright.measure.backend import default_backend
        from shardwright.measure.hardware import fingerprint

        return fingerprint(self._device, default_backend())

    def measure(self, job: MeasuringJob) -> MeasuredJob:
        """Measure the devices one after another.

        Raises:
            MeasurementFailed: one of them does not fit this machine's memory, or a kernel cannot run.
        """
        worker = self._ready(job)
        return MeasuredJob([worker.visit(work) for work in job.works], self.fingerprint)

    def close(self) -> None:
        """End the measuring process."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._options = None

    def _ready(self, job: MeasuringJob) -> Worker:
        """The measuring process; that of earlier jobs, if it is set up like this and has room for these."""
        from shardwright.measure.measuring import check_memory
        from shardwright.measure.worker import Worker

        wanted, worker = job.options, self._worker
        largest = job.largest.table_bytes + job.largest.buffer_bytes
        if worker is not None and self._options is not None and worker.alive and largest <= self._largest:
            kept = self._options.arena_bytes
            if kept >= wanted.arena_bytes and replace(wanted, arena_bytes=kept) == self._options:
                return worker
        self.close()
        if self._device == "cpu":
            check_memory([job.largest])
        self._worker, self._options, self._largest = Worker(wanted), wanted, largest
        return self._worker


def fingerprint_of(bench: Bench, _: None) -> tuple[str, Fingerprint]:
    """A worker's host name and what it measures with, as a job."""
    return bench.host, bench.fingerprint


def measure_on(bench: Bench, job: MeasuringJob) -> MeasuredJob:
    """A measurement, as a job."""
    return bench.measure(job)
