"""Measured costs from the workers of a cluster. All workers run on machines of one kind, so that costs do not depend on the worker."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from shardwright.cluster import Cluster, Lost, Pool
from shardwright.errors import ClusterFailed, MeasurementFailed
from shardwright.measure.backend import default_backend
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes, device_works
from shardwright.measure.hardware import DECISIVE, Fingerprint, differences, fingerprint
from shardwright.measure.measuring import Times, check_memory, settled, time_of, usual_state
from shardwright.measure.worker import Worker, WorkerOptions
from shardwright.search.learned.arrays import Floats
from shardwright.search.learned.worlds import Placed, measured_phases, measured_world_name

_MOST_DEATHS = 3  # per worker, while it is asked for its hardware
_MOST_AT_ONCE = 16  # devices of a job: a killed worker loses only these, a few seconds of work


@dataclass(frozen=True)
class MeasuringJob:
    """Devices to measure once each.

    Attributes:
        works: the work of each device.
        largest: the work that takes the most memory, of all works that the process will measure.
        options: settings of the measuring process; its arena may be larger, but not smaller.
    """

    works: Sequence[DeviceWork]
    largest: DeviceWork
    options: WorkerOptions


@dataclass(frozen=True)
class MeasuredJob:
    """The result of a measuring job.

    Attributes:
        visits: one visit to each work.
        fingerprint: hardware and software that measured.
    """

    visits: list[Visit]
    fingerprint: Fingerprint


class LearningNode:
    """The state of a worker: a measuring process that starts on first use. It ends with the worker, because its pipe closes.

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
        self._largest = 0  # bytes for which memory was found to have room

    def asked(self, _: None) -> tuple[str, Fingerprint]:
        """The name of the machine, and the hardware and software that it measures with."""
        return self.host, self.fingerprint

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The hardware and software that the worker measures with."""
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
        """The measuring process: the existing one if its settings match and its memory suffices, else a new one."""
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


@dataclass(frozen=True)
class Fleet:
    """Workers on machines of one kind.

    Attributes:
        pool: the workers; the state of each is a `LearningNode`.
        device: device type that they measure on, "cpu" or "cuda".
        fingerprint: hardware and software that each of them measures with.
        left_out: host and processor of each machine of another kind.
    """

    pool: Pool[LearningNode]
    device: str
    fingerprint: Fingerprint
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Notes for the user: which machines are left out, and why."""
        if not self.left_out:
            return []
        return [
            f"machines of the cluster differ: working on those with {_said(self.fingerprint)} alone, without "
            f"{', '.join(self.left_out)}"
        ]


@contextmanager
def open_fleet(cluster: Cluster, device: str = "cpu") -> Iterator[Fleet]:
    """Start workers on the machines of the most common kind.

    Machines are of one kind if they agree in everything that decides how long kernels take (`measure.hardware.DECISIVE`). If two kinds
    have equally many workers, the kind of the machine named first is chosen.

    Args:
        cluster: the machines; `Cluster.places` says how many workers each has.
        device: device type to measure on, "cpu" or "cuda".

    Raises:
        ClusterFailed: no machine lends a core (on cuda, a GPU), or none answers.
        MeasurementFailed: a machine lends a GPU that torch does not see.
    """
    with cluster.pool(partial(LearningNode, device), cluster.places(device), gpus=float(device == "cuda")) as pool:
        hosts = _asked(pool)
        kinds = {worker: tuple(hardware.get(name, "") for name in DECISIVE) for worker, (_, hardware) in hosts.items()}
        chosen = Counter(kinds.values()).most_common(1)[0][0]
        own = [worker for worker, kind in kinds.items() if kind == chosen]
        pool.keep(own)
        others = dict.fromkeys(f"{host} ({_said(what)})" for worker, (host, what) in hosts.items() if worker not in own)
        yield Fleet(pool, device, hosts[own[0]][1], tuple(others))


def _asked(pool: Pool[LearningNode]) -> dict[int, tuple[str, Fingerprint]]:
    """Host name and fingerprint of each worker, once every worker has started or been given up. A worker that dies is asked again."""
    answers: dict[int, tuple[str, Fingerprint]] = {}
    while pool.starting or pool.busy or set(pool.idle) - answers.keys():
        for worker in set(pool.idle) - answers.keys():
            pool.give(worker, LearningNode.asked, None, worker=worker)
        for worker, answer in pool.wait():
            if not isinstance(answer, Lost):
                answers[worker] = answer
            elif pool.redone > _MOST_DEATHS * len(pool.places):
                raise ClusterFailed(
                    f"workers die when they are asked what hardware they are on, the last one: {answer.text}; give the nodes more memory"
                )
    return {worker: answers[worker] for worker in sorted(pool.idle)}


def _said(fingerprint: Mapping[str, str]) -> str:
    """A short text for a fingerprint."""
    return f"{fingerprint['processor']}, {fingerprint['cores']} cores, torch {fingerprint['torch']}"


@dataclass(frozen=True)
class FleetWorld:
    """A world like `MeasuredWorld`, but measured by a fleet of workers of one kind.

    Every round measures each device of each placement, in a new random order. A machine or neighbour that is slow for a minute thus affects
    all placements alike, and the median of the quiet rounds counts. If a worker is killed, other workers measure its current devices anew.
    The name equals that of a `MeasuredWorld` on such a machine. A training may therefore start with a cluster and resume without one, or
    the reverse, on machines of the same kind only.

    Attributes:
        fleet: the workers.
        rounds: how often each device of each placement is visited.
        seed: seed of the lookups.
    """

    fleet: Fleet
    rounds: int = 2
    seed: int = 0

    @property
    def name(self) -> str:
        """For example "measured: fbgemm on AMD EPYC"."""
        return measured_world_name(self.fleet.fingerprint)

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        """Phases of each placement, with measured kernels and analytic communication.

        Raises:
            MeasurementFailed: a device's shards do not fit a worker's memory, a kernel cannot run, or a worker has other hardware than
                the fleet.
            ClusterFailed: no worker is left.
        """
        plans = [arrays.plan(assignment, "learning", self.seed) for arrays, assignment in placed]
        works = [device_works(plan, self.seed) for plan in plans]
        times = self._measured(list(dict.fromkeys(work for one in works for work in one if work.works)))
        none = np.zeros(2)
        found = [np.array([times[work] if work.works else none for work in one]) for one in works]
        return [measured_phases(plan, one[:, 0], one[:, 1]) for plan, one in zip(plans, found, strict=True)]

    def _measured(self, distinct: list[DeviceWork]) -> dict[DeviceWork, Times]:
        """Forward and backward ms of each work over the rounds."""
        visits: dict[DeviceWork, list[Visit]] = {work: [] for work in distinct}
        rng = np.random.default_rng(self.seed)
        for quiet in range(1, self.rounds + 1):
            todo = distinct
            while todo:
                jobs = list(self._jobs([todo[place] for place in rng.permutation(len(todo))]))
                for number, found in self.fleet.pool.map(LearningNode.measure, jobs):
                    self._check(found)
                    for work, visit in zip(jobs[number].works, found.visits, strict=True):
                        visits[work].append(visit)
                todo = [work for work in todo if not settled(visits[work], quiet)]
        usual = usual_state(visits.values()) if visits else None
        return {work: time_of(some, usual) for work, some in visits.items()}

    def _jobs(self, works: list[DeviceWork]) -> Iterator[MeasuringJob]:
        """Jobs that cover the works in order, a few works each."""
        largest = max(works, key=lambda work: work.table_bytes + work.buffer_bytes)
        options = WorkerOptions(self.fleet.device, self.fleet.fingerprint["backend"], arena_bytes(works))
        at_once = min(_MOST_AT_ONCE, -(-len(works) // (2 * max(self.fleet.pool.size, 1))))
        for begin in range(0, len(works), at_once):
            yield MeasuringJob(works[begin : begin + at_once], largest, options)

    def _check(self, found: MeasuredJob) -> None:
        differing = differences(found.fingerprint, self.fleet.fingerprint)
        if differing:
            raise MeasurementFailed(
                f"a worker measured on other hardware than the rest of its fleet ({'; '.join(differing)}); give each node GPUs of one "
                "model, and the same software on all"
            )
