"""The machines of a Ray cluster as one measuring process: all are of one kind, so a time does not depend on the machine.

A worker measures with the same process, on a reserved core in the same way, as a machine that measures alone.
"""

from __future__ import annotations

import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from shardwright.cluster import Cluster, Pool
from shardwright.errors import MeasurementFailed, ShardwrightError
from shardwright.files import write_atomically
from shardwright.hardware import DECISIVE, Fingerprint, default_backend, device_memory, fingerprint, import_torch
from shardwright.measure.backends import check_backend, is_own
from shardwright.measure.checks import CHECKS, check_machine
from shardwright.measure.device_work import DeviceWork, Job, Visit
from shardwright.measure.measurer import Measurer, Visited, check_memory
from shardwright.measure.timing import TimingPolicy


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
    _checked: int = 0  # bytes for which the memory has room

    def facts(self, known: str | None) -> Facts:
        """The facts about this machine.

        Args:
            known: the content of an earlier `checks.json`; "" without one; None for no checks. On a GPU, and for a user's own backend, a
                machine that has not passed is checked first.

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
                path.write_text(known, encoding="utf-8")
                wrong = check_machine(path.parent, self.device, backend, say=lambda _: None)
                checks = path.read_text(encoding="utf-8")
            return replace(facts, checks=checks, wrong=f"{self.host}: {wrong[0]}" if wrong else "")

    def measure(self, job: Job, *, arena_bytes: int, largest: DeviceWork | None = None) -> Visit | str:
        """Visit the work of a job, once more if the measuring process was killed at it.

        Args:
            job: the job.
            arena_bytes: room for the tables of each work to come; a process with more room serves too.
            largest: the work that takes the most memory of all works to come, to check the machine's memory with; None for no check.

        Returns:
            The visit, or the reason why the work cannot be measured.

        Raises:
            MeasurementFailed: the machine has too little memory, or the measuring process cannot start.
        """
        with self._named():
            if self._measurer is None:
                self._measurer = Measurer(self.device, self.backend, arena_bytes, self.policy)
            self._measurer.make_room(arena_bytes)
            needed = largest.table_bytes + largest.buffer_bytes if largest and self.device == "cpu" else 0
            if largest and self._checked < needed:
                self._measurer.close()  # which frees the memory that it holds
                check_memory([largest])
                self._checked = needed
            for _ in range(2):
                self._measurer.ready()  # a failed start is not the work's fault, so it is not caught below
                try:
                    return self._measurer.visit(job.work)
                except MeasurementFailed as error:
                    why = f"{self.host}: {error}"
                    if self._measurer.alive:
                        break
            return why

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the name of the machine to an error."""
        try:
            yield
        except ShardwrightError as error:
            raise type(error)(f"{self.host}: {error}") from None


@dataclass(frozen=True)
class Fleet:
    """Workers on machines of one kind.

    Attributes:
        cluster: the cluster that lends them.
        pool: the workers.
        facts: the machine of one of them; the others are of its kind.
        left_out: host and processor of each machine of another kind.
    """

    cluster: Cluster
    pool: Pool[MeasuringNode]
    facts: Facts
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Notes for the user: which machines are left out, and why."""
        others = ", ".join(self.left_out)
        text = f"machines of the cluster differ: working on those with {self.facts} alone, without {others}"
        return [*([text] if others else []), *(f"warning: {line}" for line in self.pool.given_up)]

    def visitor(self, arena_bytes: int, largest: DeviceWork | None = None) -> FleetVisitor:
        """A visitor that times works on these machines; see `MeasuringNode.measure`."""
        return FleetVisitor(self.pool, partial(MeasuringNode.measure, arena_bytes=arena_bytes, largest=largest))


@dataclass(frozen=True)
class FleetVisitor:
    """Visits works on the workers of a fleet.

    Attributes:
        pool: the workers.
        measure: visits the work of a job on a worker.
    """

    pool: Pool[MeasuringNode]
    measure: Callable[[MeasuringNode, Job], Visit | str]

    def visits(self, queue: Iterable[Job]) -> Iterator[Visited]:
        """Visit each job's work once, drawn when a worker is free; yields jobs in order of completion.

        Raises:
            MeasurementFailed: a machine has too little memory, or its measuring process cannot start.
            ClusterFailed: no worker is left.
        """
        return self.pool.map(self.measure, queue)


@contextmanager
def open_fleet(
    cluster: Cluster,
    device: str = "cpu",
    *,
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    checked_in: Path | None = None,
) -> Iterator[Fleet]:
    """Start workers on the machines of the most common kind.

    Machines are of one kind if they agree in everything that decides how long kernels take (`hardware.DECISIVE`). If two kinds
    have equally many workers, the kind of the machine named first is chosen.

    Args:
        cluster: the machines; `Cluster.places` has the number of workers of each.
        device: device type to measure on, "cpu" or "cuda".
        backend: backend; None for fbgemm on the machines that have it.
        policy: how often to repeat each measurement; None for the policy of the device.
        checked_in: folder of `checks.json`: a GPU and a user's own backend are checked first; None for no checks.

    Raises:
        ClusterFailed: no machine lends a core (on cuda, a GPU), or none answers.
        InvalidInput: there is no such backend.
        MeasurementFailed: a machine lends a GPU that torch does not see, or did not pass its checks.
    """
    if backend is not None and not is_own(backend):  # this machine may lack a user's own backend
        check_backend(backend)
    known = None
    if checked_in is not None:
        path = checked_in / CHECKS
        known = path.read_text(encoding="utf-8") if path.exists() else ""
    state = partial(MeasuringNode, device, backend, policy)
    with cluster.pool(state, cluster.places(device), gpus=float(device == "cuda")) as pool:
        facts = pool.each(MeasuringNode.facts, known)
        chosen = Counter(node.kind for node in facts).most_common(1)[0][0]
        own = [number for number, node in enumerate(facts) if node.kind == chosen]
        pool.keep(own)
        for node in (facts[number] for number in own):
            if node.checks is not None and checked_in is not None:
                checked_in.mkdir(parents=True, exist_ok=True)
                write_atomically(checked_in / CHECKS, node.checks)
            if node.wrong:
                raise MeasurementFailed(node.wrong)
        others = dict.fromkeys(f"{node.host} ({node})" for node in facts if node.kind != chosen)
        yield Fleet(cluster, pool, facts[own[0]], tuple(others))
