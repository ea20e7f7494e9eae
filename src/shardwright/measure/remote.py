"""The machines of a Ray cluster as one measuring process: all are of one kind, so that a time does not depend on who measured it.

A worker measures with the same process, on a reserved core in the same way, as a machine that measures alone.
"""

from __future__ import annotations

import math
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from shardwright.cluster import Cluster, Pool
from shardwright.errors import MeasurementFailed, ShardwrightError
from shardwright.files import write_atomically
from shardwright.measure.backend import check_backend, default_backend, is_own
from shardwright.measure.checks import CHECKS, check_machine
from shardwright.measure.collect import visit_all
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes
from shardwright.measure.hardware import DECISIVE, Fingerprint, device_memory, fingerprint, import_torch
from shardwright.measure.measuring import Measurer, Progress, check_memory
from shardwright.measure.sampling import TableSet
from shardwright.measure.stock import Collection, CollectSummary, Stock, summarise, work_of
from shardwright.measure.timing import TimingPolicy

_MOST_AT_ONCE = 16  # works of a job: a killed worker loses only these, a few seconds of work


@dataclass(frozen=True)
class Facts:
    """A worker's machine.

    Attributes:
        host: its name.
        hardware: fingerprint of hardware and software.
        memory: bytes of GPU memory; 0 on a CPU.
        checks: content of `checks.json` after its checks; None if it was not checked.
        wrong: the first check that failed; empty if none did.
    """

    host: str
    hardware: Fingerprint
    memory: int = 0
    checks: str | None = None
    wrong: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        """Everything that decides how long kernels take."""
        return tuple(self.hardware.get(name, "") for name in DECISIVE)

    def __str__(self) -> str:
        return f"{self.hardware['processor']}, {self.hardware['cores']} cores, torch {self.hardware['torch']}"


@dataclass(frozen=True)
class Job:
    """Works to visit once each.

    Attributes:
        works: the works.
        arena_bytes: room for the tables of each; a process with more room serves too.
        largest: the work that takes the most memory of all works to come, to check the machine's memory with; None for no check.
    """

    works: Sequence[DeviceWork]
    arena_bytes: int
    largest: DeviceWork | None = None


@dataclass
class MeasuringNode:
    """A worker's state: its measuring process, started with the first job. It ends with the worker, because its pipe closes.

    Attributes:
        device: "cpu" or "cuda".
        backend: name of the backend; None for fbgemm if the machine has it.
        policy: how often to repeat each measurement; None for the policy of the device.
        of_machine: returns the fingerprint of the worker's machine, from device and backend.
    """

    device: str
    backend: str | None = None
    policy: TimingPolicy | None = None
    of_machine: Callable[[str, str], Fingerprint] = fingerprint
    host: str = field(default_factory=socket.gethostname)
    _measurer: Measurer | None = None
    _room: int = 0
    _checked: int = 0  # bytes for which the memory has room

    def facts(self, known: str | None) -> Facts:
        """The facts about this machine.

        Args:
            known: the content of an earlier `checks.json`, "" without one: on a GPU, and for a user's own backend, a machine that has not
                passed is checked first. None for no checks.

        Raises:
            ShardwrightError: backend, torch or device is missing here.
        """
        with self._named():
            backend, on_gpu = self.backend or default_backend(), self.device == "cuda"
            check_backend(backend)
            import_torch()
            facts = Facts(self.host, self.of_machine(self.device, backend), device_memory() if on_gpu else 0)
            if known is None or not (on_gpu or is_own(backend)):
                return facts
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / CHECKS
                if known:
                    path.write_text(known, encoding="utf-8")
                wrong = check_machine(path.parent, self.device, backend, say=lambda _: None)
                checks = path.read_text(encoding="utf-8")
            return replace(facts, checks=checks, wrong=f"{self.host}: {wrong[0]}" if wrong else "")

    def measure(self, job: Job) -> list[Visit | str]:
        """Visit the works of a job one after another; in place of a visit, why the work cannot be measured.

        Raises:
            MeasurementFailed: the machine has too little memory, or the measuring process cannot start.
        """
        with self._named():
            needed = job.largest.table_bytes + job.largest.buffer_bytes if job.largest else 0
            if self._measurer is None or self._room < job.arena_bytes or self._checked < needed:
                self.close()
                if job.largest and self.device == "cpu":
                    check_memory([job.largest])
                self._measurer = Measurer(self.device, self.backend, job.arena_bytes, self.policy)
                self._room, self._checked = job.arena_bytes, needed
            return [self._visit(self._measurer, work) for work in job.works]

    def close(self) -> None:
        """End the measuring process."""
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None

    def _visit(self, measurer: Measurer, work: DeviceWork) -> Visit | str:
        """Visit a work; once more if the measuring process was killed at it."""
        why = ""
        for _ in range(2):
            measurer.ready()  # a failed start is not the work's fault, so it is not caught below
            try:
                return measurer.visit(work)
            except MeasurementFailed as error:
                why = f"{self.host}: {error}"
                if measurer.alive:
                    break
        return why

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let an error say on which machine it arose."""
        try:
            yield
        except ShardwrightError as error:
            raise type(error)(f"{self.host}: {error}") from None


@dataclass(frozen=True)
class Fleet:
    """Workers on machines of one kind; visits works as a `Measurer` does.

    Attributes:
        pool: the workers.
        facts: the machine of one of them; the others are of its kind.
        left_out: host and processor of each machine of another kind.
    """

    pool: Pool[MeasuringNode]
    facts: Facts
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Notes for the user: which machines are left out, and why."""
        others = ", ".join(self.left_out)
        text = f"machines of the cluster differ: working on those with {self.facts} alone, without {others}"
        return [*([text] if others else []), *(f"warning: {line}" for line in self.pool.given_up)]

    def visits(self, works: Sequence[DeviceWork]) -> Iterator[tuple[DeviceWork, Visit]]:
        """Visit works once each; yields them in order of completion.

        Raises:
            MeasurementFailed: a work does not fit a machine's memory, or a kernel cannot run.
            ClusterFailed: no worker is left.
        """
        largest = max(works, key=lambda work: work.table_bytes + work.buffer_bytes)
        at_once = min(_MOST_AT_ONCE, -(-len(works) // (2 * self.pool.size)))
        parts = [works[begin : begin + at_once] for begin in range(0, len(works), at_once)]
        jobs = [Job(part, arena_bytes(works), largest) for part in parts]
        for number, found in self.pool.map(MeasuringNode.measure, jobs):
            for work, visit in zip(parts[number], found, strict=True):
                if isinstance(visit, str):
                    raise MeasurementFailed(visit)
                yield work, visit

    def visits_to_sets(self, arena_bytes: int, sets: Iterator[TableSet]) -> Iterator[tuple[TableSet, Visit | str]]:
        """Visit sets of tables once each, each drawn when a worker is free; in place of a visit, why a set cannot be measured."""
        given: dict[int, TableSet] = {}

        def jobs() -> Iterator[Job]:
            for number, drawn in enumerate(sets):
                given[number] = drawn
                yield Job((work_of(drawn),), arena_bytes)

        for number, (visit,) in self.pool.map(MeasuringNode.measure, jobs()):
            yield given.pop(number), visit


@contextmanager
def open_fleet(
    cluster: Cluster,
    device: str = "cpu",
    *,
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    checked_in: Path | None = None,
    of_machine: Callable[[str, str], Fingerprint] = fingerprint,
) -> Iterator[Fleet]:
    """Start workers on the machines of the most common kind.

    Machines are of one kind if they agree in everything that decides how long kernels take (`measure.hardware.DECISIVE`). If two kinds
    have equally many workers, the kind of the machine named first is chosen.

    Args:
        cluster: the machines; `Cluster.places` says how many workers each has.
        device: device type to measure on, "cpu" or "cuda".
        backend: backend; None for fbgemm on the machines that have it.
        policy: how often to repeat each measurement; None for the policy of the device.
        checked_in: folder of `checks.json`: a GPU and a user's own backend are checked first; None for no checks.
        of_machine: returns the fingerprint of a worker's machine, from device and backend; runs on the worker.

    Raises:
        ClusterFailed: no machine lends a core (on cuda, a GPU), or none answers.
        MeasurementFailed: a machine lends a GPU that torch does not see, or did not pass its checks.
    """
    known = None
    if checked_in is not None:
        path = checked_in / CHECKS
        known = path.read_text(encoding="utf-8") if path.exists() else ""
    state = partial(MeasuringNode, device, backend, policy, of_machine)
    with cluster.pool(state, cluster.places(device), gpus=float(device == "cuda")) as pool:
        facts = pool.each(MeasuringNode.facts, known)
        chosen = Counter(one.kind for one in facts).most_common(1)[0][0]
        own = [number for number, one in enumerate(facts) if one.kind == chosen]
        pool.keep(own)
        for one in (facts[number] for number in own):
            if one.checks is not None and checked_in is not None:
                write_atomically(checked_in / CHECKS, one.checks)
            if one.wrong:
                raise MeasurementFailed(one.wrong)
        others = dict.fromkeys(f"{one.host} ({one})" for one in facts if one.kind != chosen)
        yield Fleet(pool, facts[own[0]], tuple(others))


def collect_on_cluster(
    cluster: Cluster,
    folder: str | Path,
    collection: Collection,
    *,
    backend: str | None = None,
    seconds: float | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    of_machine: Callable[[str, str], Fingerprint] = fingerprint,
) -> CollectSummary:
    """Measure random sets of tables on the machines of a cluster; call it again, with or without a cluster, to resume.

    This process draws the same sets as without a cluster, and it alone writes samples. It stores a visit as soon as the answer comes.

    Args:
        cluster: the cluster; `Cluster.places` defines the number of workers.
        folder: the store.
        collection: what to measure.
        backend: as for `open_fleet`.
        seconds: stop after this time; by default when all samples are measured.
        policy: as for `open_fleet`.
        progress: as for `shardwright.measure.collect.collect`.
        say: called with one line for machines that are left out, and for each worker that is given up.
        of_machine: as for `open_fleet`.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: a machine cannot measure, or a sample cannot be measured; what was measured before is kept.
        ClusterFailed: no worker is left.
    """
    started, path = monotonic(), Path(folder)
    if backend is not None and not is_own(backend):
        check_backend(backend)
    collection.sets(collection.arena(lambda: 10**9 * 4))  # rejects wrong options before anything starts
    path.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"backend": backend, "policy": policy, "checked_in": path, "of_machine": of_machine}
    with open_fleet(cluster, collection.device, **options) as fleet:
        for line in fleet.notes:
            say(line)
        arena = collection.arena(lambda: fleet.facts.memory)
        with Stock(path, fleet.facts.hardware, collection, arena, ahead=not cluster.local) as stock:
            stop_at = started + (math.inf if seconds is None else seconds)
            visit_all(stock, partial(fleet.visits_to_sets, arena), stop_at, progress, ahead=fleet.pool.size)
            return summarise(stock, monotonic() - started)
