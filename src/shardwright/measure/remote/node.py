"""What a worker of the cluster does: says what hardware it is on, checks it, and measures batches of samples."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import MeasurementFailed, ShardwrightError
from shardwright.measure.backend import check_backend, default_backend
from shardwright.measure.checks import CHECKS, check_machine
from shardwright.measure.device_work import Visit
from shardwright.measure.hardware import Fingerprint, device_memory, fingerprint, import_torch
from shardwright.measure.sampling import TableSet
from shardwright.measure.stock import work_of
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.worker import Worker, WorkerOptions


@dataclass(frozen=True)
class NodeOptions:
    """How workers measure.

    Attributes:
        device: "cpu" or "cuda".
        backend: its name; None for fbgemm where the machine has it.
        policy: how often to repeat; None for the device's own.
        fingerprint: says what hardware a worker is on, from device and backend.
    """

    device: str
    backend: str | None
    policy: TimingPolicy | None
    fingerprint: Callable[[str, str], Fingerprint] = fingerprint


@dataclass(frozen=True)
class Facts:
    """What a worker is on.

    Attributes:
        host: name of the machine.
        hardware: its fingerprint.
        memory: bytes of memory of its GPU; 0 where it measures on a CPU.
    """

    host: str
    hardware: Fingerprint
    memory: int


@dataclass(frozen=True)
class Checked:
    """How the checks of a machine went.

    Attributes:
        text: the content of `checks.json`.
        wrong: what is wrong, with its remedy.
    """

    text: str
    wrong: Sequence[str]


@dataclass(frozen=True)
class Batch:
    """Sets to visit.

    Attributes:
        sets: their tables.
        arena_bytes: room for the tables of each.
    """

    sets: Sequence[TableSet]
    arena_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What became of a visit to a set.

    Attributes:
        visit: its times; None where it could not be measured.
        error: why it could not be measured.
        died: whether the measuring process died of it, so that another try may succeed.
    """

    visit: Visit | None
    error: str = ""
    died: bool = False


class MeasuringNode:
    """A worker's state: its measuring process, started with the first batch.

    Args:
        options: how it measures.
    """

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._backend = options.backend or default_backend()
        self._worker: Worker | None = None

    def facts(self, _: object = None) -> Facts:
        """What it is on.

        Raises:
            InvalidInput: there is no such backend here.
            MissingDependency: torch is not installed here.
            MeasurementFailed: there is no such device here.
        """
        host, device = socket.gethostname(), self._options.device
        try:
            check_backend(self._backend)
            import_torch()
            memory = device_memory() if device == "cuda" else 0
            return Facts(host, self._options.fingerprint(device, self._backend), memory)
        except ShardwrightError as error:
            raise type(error)(f"{host}: {error}") from None

    def check(self, known: str | None) -> Checked:
        """Check environment and kernels, unless an earlier check of the same machine says that they pass.

        Args:
            known: the content of an earlier `checks.json`.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / CHECKS
            if known is not None:
                path.write_text(known, encoding="utf-8")
            wrong = check_machine(Path(folder), self._options.device, self._backend, say=_nobody)
            return Checked(path.read_text(encoding="utf-8"), wrong)

    def measure(self, batch: Batch) -> list[Outcome]:
        """Visit sets, one after another; on a CPU up to the first that cannot be measured."""
        outcomes = []
        for tables in batch.sets:
            outcomes.append(self._outcome(tables, batch.arena_bytes))
            if outcomes[-1].visit is None and (outcomes[-1].died or self._options.device == "cpu"):
                break
        return outcomes

    def _outcome(self, tables: TableSet, arena_bytes: int) -> Outcome:
        worker = self._started(arena_bytes)
        try:
            return Outcome(worker.visit(work_of(tables)))
        except MeasurementFailed as error:
            return Outcome(None, str(error), died=not worker.alive)

    def _started(self, arena_bytes: int) -> Worker:
        """The measuring process, started anew where it has ended.

        Raises:
            MeasurementFailed: it cannot start.
        """
        if self._worker is None or not self._worker.alive:
            if self._worker is not None:
                self._worker.close()
            options = self._options
            try:
                self._worker = Worker(WorkerOptions(options.device, self._backend, arena_bytes, options.policy))
            except MeasurementFailed as error:
                raise MeasurementFailed(f"{socket.gethostname()}: {error}") from None
        return self._worker


def _nobody(_: str) -> None:
    """Says a line to nobody; what was found travels back as a whole."""
