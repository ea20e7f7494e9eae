"""Campaigns of calibration and tuning: the sets or devices to visit, and the results read from the visits.

`Observed` collects sets and their times for training a model. `Comparison` visits devices of plans as often as it takes to tell two
plans apart.
"""

from __future__ import annotations

import fcntl
import math
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.files import device_type
from shardwright.cost.model import CostModel
from shardwright.cost.score import beside_kernels_ms, communication_ms, device_ms
from shardwright.errors import InvalidInput
from shardwright.hardware import Fingerprint, check_device, default_backend, fingerprint
from shardwright.measure.campaign import Campaign
from shardwright.measure.device_work import DeviceWork, Job, Visit, device_works
from shardwright.measure.pace import VisitSeconds
from shardwright.measure.samples import read_samples
from shardwright.measure.store import SampleStore, reading, work_id
from shardwright.measure.visits import Times, settled, standard_error, visit_noise
from shardwright.modelling.dataset import Samples, join, samples_of, samples_of_works
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

_DRAWS = 400


def pace_by(model: CostModel | None, device_kind: str) -> VisitSeconds:
    """A forecast of how long visits take on a kind of device, from the predictions of a model if there is one."""
    return VisitSeconds(device_kind, (lambda work: sum(device_ms(model, work.works))) if model is not None else None)


@dataclass
class Observed(Campaign):
    """Visits sets, and holds those of earlier calibrations.

    Attributes:
        batch_size: samples in a batch.
        earlier: the sets of earlier calibrations; None if there are none.
        sets: the sets of this calibration, in the order of their first visit.
    """

    batch_size: int | None = None
    earlier: Samples | None = None
    sets: dict[Job, None] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.sets) + (len(self.earlier) if self.earlier is not None else 0)

    def visit_sets(self, queue: Iterable[Job]) -> None:
        """Visit the sets of a queue; raises as `run` does."""
        self.run(map(self._of_batch_size, queue), saw=self._saw)

    def known_set(self, job: Job) -> bool:
        """Whether the set's work was already visited for another set; if so, take the set without a visit."""
        if job.work in self.visits:
            self.sets[self._of_batch_size(job)] = None
        return job.work in self.visits

    def disturbed(self) -> list[Job]:
        """Sets that need another visit, the most disturbed first."""
        unsettled = {job.work: job for job in self.sets if not settled(self.visits[job.work])}
        return sorted(unsettled.values(), key=lambda job: -min(visit.sentinel for visit in self.visits[job.work]))

    def samples(self) -> Samples:
        """All sets with their times, those of earlier calibrations first."""
        if self.earlier is not None and not self.sets:
            return self.earlier
        times = np.array([self.time(job.work) for job in self.sets]).reshape(-1, 2)
        own = samples_of_works([job.work.works for job in self.sets], times, [job.label for job in self.sets])
        return own if self.earlier is None else join([self.earlier, own])

    def _of_batch_size(self, job: Job) -> Job:
        return replace(job, batch_size=self.batch_size)

    def _saw(self, job: Job, result: Visit | str) -> None:
        if isinstance(result, Visit):
            self.sets[job] = None


def earlier_samples(store: SampleStore, optimizer: str, batch_size: int) -> Samples | None:
    """Sets measured earlier on this machine with this optimizer and batch size; None if there are none."""
    import pyarrow.compute as pc

    with reading(store.folder) as db:
        if not db.execute("SELECT count(*) FROM sets WHERE kind <> 'control'").fetchone()[0]:
            return None
    try:
        table = read_samples(store.folder, hardware=store.hardware, optimizer=optimizer)
    except InvalidInput:  # the samples are from other hardware, or with another optimizer
        return None
    table = table.filter(pc.and_(pc.equal(table["batch_size"], batch_size), pc.equal(table["repeat"], 0)))
    return samples_of(table) if table.num_rows else None


def machine_for(task: Task | None, device: str | None, done: str) -> tuple[str, Fingerprint]:
    """The kind of device to measure on, "cpu" or "cuda", and this machine's facts.

    Args:
        task: the task whose tables are measured; None for any tables.
        device: the kind that the user asks for; by default the task's, or "cpu" without a task.
        done: what the task would be, for the message: "calibrated" or "tuned".

    Raises:
        InvalidInput: there is no such device, or the task is for devices of another type.
        MeasurementFailed: this machine has no such device.
    """
    kind = device or (task.topology.compute_device if task is not None else "cpu")
    check_device(kind)
    machine = fingerprint(kind, default_backend())
    here = device_type(machine)
    if task is not None and task.topology.device != here:
        raise InvalidInput(
            f"the task is for {task.topology.device}, and would be {done} on {here}: use the hardware that will train, a machine with "
            f"{task.topology.device} devices, or plan for {here}"
        )
    return kind, machine


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Make a folder in the cache, and open or make files there in a block.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InvalidInput(
            f"{folder}: cannot be written to ({error.strerror}); name another cache folder with SHARDWRIGHT_CACHE"
        ) from None


@contextmanager
def calibration_lock(folder: Path) -> Iterator[None]:
    """Lock out other calibrations on this machine; the kernel releases the lock when the process ends, even by a crash.

    Raises:
        InvalidInput: another calibration is running, or the cache folder cannot be written to.
    """
    with writing_to(folder):
        lock = (folder / f"calibrating-{platform.node()}.lock").open("wb")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                "another calibration or tuning is running on this machine, and two would disturb each other: wait until it ends"
            ) from None
        yield


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan to measure, or already measured.

    Attributes:
        name: how the plan was found.
        plan: the plan.
        promised_ms: predicted step of the plan.
        works: the work of each device.
        links: `(devices, 2)` predicted ms of forward and backward collectives.
        added: `(devices, 2)` predicted ms of codecs and of synchronising sharding groups.
    """

    name: str
    plan: Plan
    promised_ms: float
    works: tuple[DeviceWork, ...]
    links: Floats
    added: Floats

    @classmethod
    def of(cls, name: str, plan: Plan, promised_ms: float) -> Candidate:
        """The candidate of a plan."""
        links = np.stack(communication_ms(plan.task, plan.shards), axis=1)
        return cls(
            name, plan, promised_ms, tuple(device_works(plan, 0)), links, beside_kernels_ms(plan.task, plan.shards)
        )

    def step_ms(self, times: Floats) -> Floats:
        """`(...)` step ms from `(..., devices, 2)` kernel ms."""
        steps: Floats = (times + self.added).max(axis=-2).sum(axis=-1) + self.links.max(axis=0).sum()
        return steps

    def total_ms(self, times: Floats) -> float:
        """Mean device time: the step ms if the plan were perfectly balanced."""
        return float((times + self.added + self.links).sum()) / len(self.works)


@dataclass
class Comparison(Campaign):
    """Visits devices of plans to find the faster plan.

    Attributes:
        rng: draws the order of the visits.
    """

    rng: np.random.Generator = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normal: dict[DeviceWork, Floats] = {}

    def visit(self, works: Iterable[DeviceWork], quiet: int, until: float = math.inf) -> None:
        """Visit works until each has `quiet` quiet visits, or no further visit would end by `until`; raises as `run` does."""
        self.visit_rounds(works, range(1, quiet + 1), self.rng, until=until)

    def complete(self, candidate: Candidate) -> bool:
        """Whether every device was visited."""
        return not self.lacking(candidate)

    def lacking(self, candidate: Candidate) -> list[DeviceWork]:
        """The works of a plan's devices that were never visited, each once."""
        return [work for work in dict.fromkeys(candidate.works) if work.works and not self.known(work)]

    def can_measure(self, candidate: Candidate) -> bool:
        """Whether no device of the plan has failed so far."""
        return not any(work in self.failed for work in candidate.works)

    def times(self, candidate: Candidate) -> Floats:
        """`(devices, 2)` forward and backward kernel ms."""
        return np.array([self.time(work) for work in candidate.works])

    def step_ms(self, candidate: Candidate) -> float:
        """Step ms of a plan with its measured kernel times."""
        return float(candidate.step_ms(self.times(candidate)))

    def interval(self, candidate: Candidate) -> tuple[float, float]:
        """95% interval of the step ms."""
        low, high = np.quantile(self._steps(candidate), [0.025, 0.975]).tolist()
        step = self.step_ms(candidate)
        return min(low, step), max(high, step)

    def chance(self, candidate: Candidate, other: Candidate) -> float:
        """Probability that a plan is faster than another; the noise of a device that both plans have is the same in both."""
        return float((self._steps(candidate) < self._steps(other)).mean())

    def samples(self) -> tuple[list[DeviceWork], Floats, Floats]:
        """All n works of plans, their `(n, 2)` ms, and the `(n, 2)` standard errors in ms."""
        controls, noise = set(self.controls), visit_noise(self.visits.values())
        works = [work for work, visits in self.visits.items() if visits and work not in controls]
        times = np.array([self.time(work) for work in works]).reshape(-1, 2)
        return works, times, np.array([self._error(work, noise) for work in works]).reshape(-1, 2) * times

    def time(self, work: DeviceWork) -> Times:
        """Time of a work as in `Campaign`; earlier commands give it if this command did not visit the work."""
        self.known(work)
        return super().time(work)

    def _error(self, work: DeviceWork, noise: Floats) -> Floats:
        """`(2,)` standard error of a work's time, as a share of the time; `noise` is that of a visit."""
        return standard_error(noise, sum(visit.quiet for visit in self.known(work)))

    def _steps(self, candidate: Candidate) -> Floats:
        """`(draws,)` random step ms within the noise of the measurements; a work gets the same draws in every plan."""
        drawn, noise = np.zeros((_DRAWS, len(candidate.works), 2)), visit_noise(self.visits.values())
        for device, work in enumerate(candidate.works):
            if work.works:
                if work not in self._normal:
                    self._normal[work] = np.random.default_rng(work_id(work)).standard_normal((_DRAWS, 2))
                drawn[:, device] = np.array(self.time(work)) * (1 + self._error(work, noise) * self._normal[work])
        return candidate.step_ms(drawn)
