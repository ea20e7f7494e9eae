"""Measure works and plans. Sample collection, calibration, tuning and learning all time kernels through this module.

A *visit* builds a device's work and runs it on fresh batches, and reads the state of the machine in between. The time of a work is the
median of its visits, all converted to one state. A visit that a burst of other programs hit does not count, and is repeated. Works are
visited in rounds, each in a new random order, so that a slow minute of the machine affects all works equally. A few fixed works, the
controls, are visited among them again and again. If the controls take longer than before, the machine is slower, and the cost model is
no less accurate.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import exp, log
from operator import attrgetter
from time import monotonic, sleep
from typing import Protocol, Self, TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.hardware import available_memory, check_device, default_backend
from shardwright.measure.backend import check_backend
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes, device_works
from shardwright.measure.timing import TimingPolicy, at_state
from shardwright.measure.worker import Worker, WorkerOptions
from shardwright.sharding.costs import expected_slowest
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from shardwright.task.quantities import format_bytes

Times: TypeAlias = tuple[float, float]

Progress: TypeAlias = Callable[[int, int, str], None]
"""Progress callback: number of measurements made, number wanted, and a few words of detail."""

BETWEEN_CONTROLS = 40
"""Most visits to other works between two visits to a control."""

MOST_VISITS = 3
"""Most visits to a work for each quiet visit that is wanted."""

_CONTROLS = ((2, 20_000, 16, 4.0, 0.0), (8, 40_000, 64, 20.0, 1.05), (20, 30_000, 32, 20.0, 0.8))
"""Tables, rows, dim, pooling factor and skew of each control: small, skewed, and with many lookups."""

_CONTROL_SAMPLES = {"cpu": 1024, "cuda": 16_384}


@dataclass(frozen=True)
class Controls:
    """Times of the controls.

    Attributes:
        times_ms: forward + backward ms of each control; empty if none was measured.
    """

    times_ms: tuple[float, ...] = ()

    def slower_than(self, metadata: Mapping[str, str]) -> float | None:
        """The controls' times over their times when a cost model was learned on this machine; None if unknown.

        Args:
            metadata: metadata of the model; `controls` holds the earlier times.
        """
        try:
            then = [float(part) for part in metadata.get("controls", "").split(",")]
        except ValueError:
            return None
        if not self.times_ms or len(then) != len(self.times_ms) or min(then) <= 0:
            return None
        return exp(sum(log(now / before) for now, before in zip(self.times_ms, then, strict=True)) / len(then))

    def text(self) -> str:
        """The times as text, for a model's metadata."""
        return ",".join(f"{ms:.5g}" for ms in self.times_ms)


def control_works(device_kind: str, optimizer: str) -> tuple[DeviceWork, ...]:
    """The controls of a kind of device, "cpu" or "cuda"."""
    samples = _CONTROL_SAMPLES[device_kind]
    return tuple(
        DeviceWork(
            (ShardWork(rows, dim, samples, pooling * samples, True, AccessProfile.zipf(rows, skew)),) * tables,
            tuple(range(1000 * number, 1000 * number + tables)),
            optimizer,
        )
        for number, (tables, rows, dim, pooling, skew) in enumerate(_CONTROLS, start=1)
    )


_ASSUMED_NOISE, _ASSUMED_VISITS, _LEAST_NOISE = (
    0.02,
    4,
    0.003,
)  # assumed noise of a visit as a share, and the number of visits that the assumption counts as
_MEDIAN = 1.25  # standard error of a median over that of a mean

_MOST_STARTS = 3  # most failed restarts in a row of a process that ended
_START_AGAIN_S = 10.0  # a driver may need a while to free the memory of a killed process
_SLACK_BYTES = 256 * 2**20  # sentinel, buffers of torch, and other memory of the process


def settled(visits: Sequence[Visit], quiet: int = 1) -> bool:
    """Whether a work needs no further visit: it had enough quiet visits, or too many visits."""
    return sum(visit.quiet for visit in visits) >= quiet or len(visits) >= MOST_VISITS * quiet


def time_of(visits: Sequence[Visit], usual_ms: float | None = None) -> Times:
    """Forward and backward ms of a work: the median of its quiet visits, or its quietest visit if none was quiet.

    Args:
        visits: the visits, of one process or several.
        usual_ms: state of the machine to convert times to; by default the usual state of these visits.
    """
    wanted = usual_state([visits]) if usual_ms is None else usual_ms
    counted = [visit for visit in visits if visit.quiet] or [min(visits, key=lambda visit: visit.sentinel)]
    forward, backward = np.median(_times_at(wanted, counted), axis=0).tolist()
    return forward, backward


def _times_at(wanted: float, visits: Sequence[Visit]) -> Floats:
    """`(n, 2)` forward and backward ms of n visits, at one state."""
    times, usual, elasticity = (
        np.array([values(visit) for visit in visits])
        for values in (attrgetter("forward_ms", "backward_ms"), attrgetter("usual_ms"), attrgetter("elasticity"))
    )
    return at_state(times, usual[:, None], wanted, elasticity)


def visit_noise(visits: Iterable[Sequence[Visit]]) -> Floats:
    """`(2,)` standard deviation of a quiet visit as a share of the time, pooled over all works with two or more quiet visits."""
    squares, freedom = np.full(2, _ASSUMED_VISITS * _ASSUMED_NOISE**2), _ASSUMED_VISITS
    for some in visits:
        quiet = [visit for visit in some if visit.quiet]
        if len(quiet) >= 2:
            times = np.log(_times_at(1.0, quiet) + 1e-9)
            squares += ((times - times.mean(axis=0)) ** 2).sum(axis=0)
            freedom += len(times) - 1
    return np.sqrt(squares / freedom).clip(_LEAST_NOISE)


def standard_error(noise: Floats, visits: int) -> Floats:
    """`(2,)` standard error of a work's time as a share of it, after so many visits with this noise."""
    count = max(1, visits)
    found: Floats = noise * (_MEDIAN if count > 2 else 1.0) / math.sqrt(count)
    return found


def usual_state(visits: Iterable[Sequence[Visit]]) -> float:
    """The common state to which times are converted before a comparison: the median usual state over all visits, in ms."""
    return float(np.median([visit.usual_ms for some in visits for visit in some]))


class RoundVisitor(Protocol):
    """A visitor of works: a `Measurer`, or the fleet of a cluster."""

    def visits(self, works: Sequence[DeviceWork]) -> Iterator[tuple[DeviceWork, Visit]]:
        """Visit works once each, in any order."""


class Measurer:
    """A measuring process that starts when it is first needed, and restarts if it has ended; a context manager that ends it.

    Args:
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or your own as "package.module:ClassName"; by default fbgemm if it is installed.
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
        """Ensure this much room for a device's tables; a process with less ends, and another one starts at the next visit."""
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
                        f"the measuring process ended, and {failed} attempts to start another one failed, the last with: {error}. All "
                        "measurements so far are kept: look at the device, then run the same command again to go on"
                    ) from error
                sleep(_START_AGAIN_S)
            self.spent["start"] += monotonic() - began
        assert self._worker is not None
        return self._worker

    def visits(self, works: Iterable[DeviceWork]) -> Iterator[tuple[DeviceWork, Visit]]:
        """Time works once each, in their order."""
        return ((work, self.visit(work)) for work in works)

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


@dataclass(frozen=True)
class Measurements:
    """Measured times of some works on this machine.

    Attributes:
        visits: the visits to each work.
        usual_ms: usual state of the machine in this period; all times are converted to it.
        controls: times of the controls in the same period.
    """

    visits: Mapping[DeviceWork, Sequence[Visit]]
    usual_ms: float = 1.0
    controls: Controls = field(default_factory=Controls)

    def times(self, work: DeviceWork) -> Times:
        """Forward and backward ms of a work; zeros for a work without shards."""
        return time_of(self.visits[work], self.usual_ms) if work.works else (0.0, 0.0)


def measure_works(
    works: Sequence[DeviceWork],
    *,
    rounds: int = 1,
    seconds: float = math.inf,
    seed: int = 0,
    device: str = "cpu",
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    fleet: RoundVisitor | None = None,
) -> Measurements:
    """Visit works and controls in rounds, each in a new random order.

    Args:
        works: the works. Equal works are visited once a round, and works without shards not at all.
        rounds: quiet visits to each work. A disturbed work is visited again at the end of its round.
        seconds: no new round begins after this time.
        seed: seed of the order.
        device: "cpu" or "cuda".
        backend: see `Measurer`.
        policy: see `Measurer`.
        progress: called before each visit and after the last, with the visits done, the visits wanted, and the name of the work.
        fleet: visits the works instead of a process of this machine.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such device or backend.
        MeasurementFailed: a work does not fit this machine's memory, or a kernel cannot run.
    """
    if rounds < 1:
        raise InvalidInput(f"rounds is {rounds}, must be at least 1")
    check_device(device)
    distinct = list(dict.fromkeys(work for work in works if work.works))
    if not distinct:
        return Measurements({})
    controls = control_works(device, distinct[0].optimizer)
    if device == "cpu" and fleet is None:
        check_memory([*distinct, *controls])
    visits: dict[DeviceWork, list[Visit]] = {work: [] for work in (*distinct, *controls)}
    in_round = [*distinct, *controls * math.ceil(len(distinct) / BETWEEN_CONTROLS)]
    stop_at, rng = monotonic() + seconds, np.random.default_rng(seed)
    tell = progress or (lambda *_: None)
    total = rounds * len(in_round)
    tell(0, total, "starting the measuring process")
    with nullcontext(fleet) if fleet else Measurer(device, backend, arena_bytes(visits), policy) as visitor:
        for number in range(rounds):
            if number and monotonic() >= stop_at:
                break
            left, done = in_round, 0
            tell(number * len(in_round), total, f"device 1 of {len(in_round)}, round {number + 1} of {rounds}")
            while left:  # the disturbed works again, until each is settled
                for work, visit in visitor.visits([left[place] for place in rng.permutation(len(left))]):
                    visits[work].append(visit)
                    done += 1
                    if done < len(in_round):
                        what = f"device {done + 1} of {len(in_round)}, round {number + 1} of {rounds}"
                        tell(number * len(in_round) + done, total, what)
                left = [work for work in dict.fromkeys(left) if not settled(visits[work], number + 1)]
    tell(total, total, "")
    usual = usual_state(visits.values())
    of_controls = Controls(tuple(sum(time_of(visits[work], usual)) for work in controls))
    return Measurements({work: visits[work] for work in distinct}, usual, of_controls)


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


@dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """Measured compute times of a plan.

    Attributes:
        plan: the plan.
        forward_ms: `(devices,)` ms of the lookups of each device's shards.
        backward_ms: `(devices,)` ms of their backward pass, optimizer included.
        rounds: how often each device was measured.
        controls: times of the controls in the same period.
        noise: standard errors of a device's forward and backward ms, as shares.
    """

    plan: Plan
    forward_ms: Floats
    backward_ms: Floats
    rounds: int
    controls: Controls = field(default_factory=Controls)
    noise: tuple[float, float] = (0.0, 0.0)

    @property
    def compute_ms(self) -> float:
        """Compute ms of a step: devices wait for each other after forward and after backward."""
        return float(self.forward_ms.max() + self.backward_ms.max())

    @property
    def device_ms(self) -> Floats:
        """`(devices,)` forward + backward ms."""
        return self.forward_ms + self.backward_ms

    @property
    def excess(self) -> float:
        """The share by which `compute_ms` is expected to be too long: the slowest of equal devices is the one with most noise."""
        return sum(map(expected_slowest, (self.forward_ms, self.backward_ms), self.noise)) / self.compute_ms - 1


def measure_plans(
    plans: Sequence[Plan],
    *,
    rounds: int = 5,
    seconds: float = math.inf,
    seed: int = 0,
    device: str = "cpu",
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    fleet: RoundVisitor | None = None,
) -> list[MeasuredPlan]:
    """Measure the fused kernels of each device of each plan on this machine.

    The lookups of a table are the same in all plans. Collectives are not measured, since each device in turn has this machine to itself.

    Args:
        plans: plans to compare; their tasks may differ.
        rounds: how often each device's work is rebuilt and measured while the machine is quiet.
        seconds: no new round begins after this time.
        seed: seed of the lookups and of the order.
        device: "cpu" or "cuda".
        backend: see `Measurer`.
        policy: see `Measurer`.
        progress: see `measure_works`.
        fleet: see `measure_works`.

    Returns:
        One result per plan, in order.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such backend.
        MeasurementFailed: a device's shards do not fit this machine's memory, or a kernel cannot run.
    """
    per_plan = [device_works(plan, seed) for plan in plans]
    found = measure_works(
        [work for works in per_plan for work in works],
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        device=device,
        backend=backend,
        policy=policy,
        progress=progress,
        fleet=fleet,
    )
    noise = standard_error(visit_noise(found.visits.values()), rounds)
    measured = []
    for plan, works in zip(plans, per_plan, strict=True):
        forward, backward = np.array([found.times(work) for work in works]).T
        measured.append(MeasuredPlan(plan, forward, backward, rounds, found.controls, (noise[0], noise[1])))
    return measured


class Printer:
    """Prints progress on standard error, once a second; needs only the measuring packages."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._printed, self._width = 0.0, 0

    def __call__(self, done: int, wanted: int, detail: str = "") -> None:
        """Print the number of measurements made and wanted."""
        now = monotonic()
        if self._first is None:
            self._first = (done, now)
        if done == wanted or now - self._printed >= 1:
            rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
            line = f"{done}/{wanted} measured, {rate:.1f} a second{detail and f'; {detail}'}"
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._printed, self._width = now, len(line)
