"""Time one device: run the parts of a step on its batches in turn, each batch several times.

The runs of a measurement go through its batches (see `shardwright.measure.fused`), pass after pass. So a run finds the same rows in
the caches as a step of training: the hot rows, and none that only its own batch looks up. On a CPU the shortest pass of each batch counts,
since noise from other programs only adds time. On CUDA the median pass counts, timed by device events, as in the papers. The reported time
is the mean over the batches.

Other programs (on a virtual machine: other tenants) share caches and memory, and slow kernels down for milliseconds or minutes. A small
fixed kernel, the sentinel, measures the machine's state before, after, and every few runs in between. The time of each run is converted
to the machine's usual state, so that measurements of different minutes can be compared:

    time at the usual state = time · (usual sentinel time / sentinel time now) ^ elasticity

The usual state is the median of the readings of the last minutes: the few readings at the start of a process may all lie in a burst. The
elasticity is learned from the runs themselves, for forward and backward apart (see `Elasticity`). Times of two processes are converted to
one state in the same way before a comparison.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput
from shardwright.measure.backend import Arena
from shardwright.measure.device_work import ASSUMED_ELASTICITY

if TYPE_CHECKING:
    import torch

Statistic: TypeAlias = Literal["minimum", "median"]
Part: TypeAlias = Callable[[int], None]

_STATE_LASTS_S = 0.025


@dataclass(frozen=True)
class TimingPolicy:
    """Numbers of runs of a measurement's batches.

    Attributes:
        statistic: the pass over a batch that counts: "minimum" or "median".
        warm_up: number of runs that are not counted.
        passes: fewest runs of each batch.
        runs: fewest runs of all batches together.
        time_limit_s: time limit of the counted runs; at least one run is counted.
    """

    statistic: Statistic = "minimum"
    warm_up: int = 2
    passes: int = 3
    runs: int = 10
    time_limit_s: float = 6.0

    def __post_init__(self) -> None:
        if self.warm_up < 0 or self.passes < 1 or self.runs < 1:
            raise InvalidInput(
                f"timing: warm_up {self.warm_up}, passes {self.passes}, runs {self.runs} must be at least 0, 1 and 1"
            )
        if self.statistic not in ("minimum", "median"):
            raise InvalidInput(f"timing: statistic {self.statistic!r} must be 'minimum' or 'median'")

    @classmethod
    def of(cls, device_kind: str) -> TimingPolicy:
        """The policy for a kind of device, "cpu" or "cuda"."""
        return cls() if device_kind == "cpu" else cls("median", warm_up=4, passes=5, runs=20, time_limit_s=0.6)

    def passes_over(self, batches: int) -> int:
        """The number of runs of each batch."""
        return max(self.passes, math.ceil(self.runs / batches))


class Clock(Protocol):
    """Times the parts of a run on one kind of device."""

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Call the parts in turn with the number of the run; return the milliseconds of each."""


class CpuClock:
    """Times parts by the wall clock."""

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Milliseconds of each part."""
        marks = [perf_counter()]
        for part in parts:
            part(run)
            marks.append(perf_counter())
        return [1e3 * (stop - start) for start, stop in pairwise(marks)]


class HeadStart:
    """The time that a device idles before a part, so that the host has enqueued the whole part when the device begins.

    A fused call is a dozen kernels, and the host needs some tenths of a millisecond to enqueue them. Without a head start, the time of a
    small call would be the host's. The head start is 1.5 times the second longest of the host's recent times. So it covers the longest
    part of a run, and one long stop of the host does not lengthen it.
    """

    _LEAST_MS, _MOST_MS, _MARGIN, _LATELY = 0.1, 20.0, 1.5, 8

    def __init__(self) -> None:
        self._needed: deque[float] = deque(maxlen=self._LATELY)

    @property
    def milliseconds(self) -> float:
        """The head start of the next part."""
        longest = sorted(self._needed)[-2:]
        return min(max(self._MARGIN * min(longest, default=0.0), self._LEAST_MS), self._MOST_MS)

    def saw(self, host_ms: float) -> None:
        """Record the time that the host took to enqueue a part."""
        self._needed.append(host_ms)


class CudaClock:
    """Times parts by device events, and flushes the L2 cache before each part.

    Flushing reads a buffer twice the size of the cache; it does not write, as the timed kernels would then write the lines back. Then the
    device idles until the host has enqueued the part (see `HeadStart`), so that the events time the kernels and the gaps between them,
    but not the host.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flushed = torch.zeros(2 * cache // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)  # reading needs a result
        self._head_start = HeadStart()
        self._cycles_a_ms = self._measured_cycles()

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Milliseconds of each part."""
        import torch

        events = []
        for part in parts:
            torch.sum(self._flushed, dim=0, out=self._sum)
            self._idle(self._head_start.milliseconds)
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            began = perf_counter()
            part(run)
            self._head_start.saw(1e3 * (perf_counter() - began))
            stop.record()
            events.append((start, stop))
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(stop) for start, stop in events]

    def _idle(self, milliseconds: float) -> None:
        import torch

        torch.cuda._sleep(int(milliseconds * self._cycles_a_ms))

    def _measured_cycles(self) -> float:
        """Clock cycles per millisecond of a device that is awake."""
        import torch

        cycles = 20_000_000
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(5 * cycles)
        start.record()
        torch.cuda._sleep(cycles)
        stop.record()
        torch.cuda.synchronize(self._device)
        return cycles / float(start.elapsed_time(stop))


def clock_of(device: torch.device) -> Clock:
    """The clock for a device."""
    return CpuClock() if device.type == "cpu" else CudaClock(device)


class Machine(Protocol):
    """Reads the state of a machine, as `Sentinel` does."""

    @property
    def usual_ms(self) -> float:
        """The usual state of the last minutes, in ms."""
        ...

    def read(self) -> float:
        """The state now, in ms."""
        ...


@dataclass(frozen=True)
class Steady:
    """A machine of constant state, so that times are not converted."""

    usual_ms: float = 1.0

    def read(self) -> float:
        """The usual state."""
        return self.usual_ms


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the parts of a step at the machine's usual state.

    Attributes:
        parts_ms: time of each part.
        runs: number of counted runs.
        state_ms: mean state of the machine during the runs.
        usual_ms: the usual state.
        warm_up_s: seconds of the warm-up.
        runs_s: seconds of the runs, readings of the state included.
    """

    parts_ms: tuple[float, ...]
    runs: int
    state_ms: float
    usual_ms: float
    warm_up_s: float = 0.0
    runs_s: float = 0.0


class Elasticity:
    """Response of each part of a run to the machine's state; learned from runs of the same batch in different states.

    Kernels that wait for memory follow it more closely than kernels that compute, and processors differ. So the exponents of forward and
    backward are learned apart, on the machine itself; each visit in a sample store keeps the two that it was converted with.
    """

    def __init__(self, parts: int = 2) -> None:
        self._squares, self._products = _ASSUMED_RUNS, np.full(parts, _ASSUMED_RUNS * ASSUMED_ELASTICITY)

    @property
    def of_parts(self) -> Floats:
        """`(parts,)` exponents."""
        return np.clip(self._products / self._squares, 0.0, _MOST_ELASTICITY)

    def saw(self, times: Floats, states: Floats) -> None:
        """Learn from the runs of a measurement; NaN stands for runs that were not made.

        Args:
            times: `(passes, batches, parts)` ms.
            states: `(passes, batches)` states of the machine.
        """
        made = ~np.isnan(states)
        weights = made / np.maximum(made.sum(axis=0), 1)
        state, time = (np.where(np.isnan(values), 0.0, np.log(values)) for values in (states, np.maximum(times, 1e-6)))
        off = (state - (weights * state).sum(axis=0)) * made
        self._squares += float((off**2).sum())
        self._products = self._products + (off[..., None] * time).sum(axis=(0, 1))


def time_parts(
    parts: Sequence[Part],
    clock: Clock,
    policy: TimingPolicy,
    machine: Machine,
    batches: int = 1,
    elasticity: Elasticity | None = None,
) -> Timing:
    """Time the parts of a step on one batch after another, pass after pass.

    The first warm-up run is not timed: it allocates, loads code and may wait for the device, so its host time does not predict that of
    later runs.

    Args:
        parts: functions of the number of the batch, called one after another in each run.
        clock: the clock that times them.
        policy: how often the batches are run.
        machine: reads the state of the machine between runs.
        batches: number of batches.
        elasticity: estimate from earlier measurements of the process, updated by this one; by default a new one.
    """
    elasticity = elasticity or Elasticity(len(parts))
    began = perf_counter()
    for run in range(policy.warm_up):
        if run == 0:
            for part in parts:
                part(0)
        elif perf_counter() < began + policy.time_limit_s:
            clock.time(parts, run % batches)
    warm = perf_counter()
    usual_ms = machine.usual_ms
    times = np.full((policy.passes_over(batches), batches, len(parts)), np.nan)
    runs, state_of_run = times.reshape(-1, len(parts)), np.full(times.shape[:2], np.nan)
    states = [machine.read()]
    first = count = 0
    while count < len(runs):
        stop_at = min(perf_counter() + _STATE_LASTS_S, warm + policy.time_limit_s)
        while count < len(runs) and (count == first or perf_counter() < stop_at):
            runs[count] = clock.time(parts, count % batches)
            count += 1
        states.append(machine.read())
        state_of_run.flat[first:count] = (states[-2] + states[-1]) / 2
        first = count
        if perf_counter() > warm + policy.time_limit_s:
            break
    elasticity.saw(times, state_of_run)
    times = at_state(times, state_of_run[..., None], usual_ms, elasticity.of_parts)
    statistic = np.nanmin if policy.statistic == "minimum" else np.nanmedian
    of_batches = statistic(times[:, : min(count, batches)], axis=0)
    parts_ms = of_batches.mean(axis=0)
    state_ms = float(np.mean(states))
    return Timing(tuple(parts_ms.tolist()), count, state_ms, usual_ms, warm - began, perf_counter() - warm)


SENTINEL_BYTES = 128 * 2**20
"""Bytes of the sentinel's buffer."""

_SENTINEL_DIM = 64
_WINDOWS = {"cpu": 16, "cuda": 1}
_SENTINEL_BAG = 16
_READINGS_KEPT = 5_000  # some minutes of measuring: longer than the bursts of other tenants
_FIRST_READINGS = 20  # number of readings before anything is measured
_SENTINEL_RUNS = 2
_ASSUMED_RUNS = 0.5  # weight of the assumption: the sum of squares of the log states over the runs of a few visits
_MOST_ELASTICITY = 1.5


def at_state(ms: Floats, measured: Floats | float, wanted: float, elasticity: Floats | float) -> Floats:
    """Convert times of kernels from state `measured` to state `wanted`; states are sentinel times."""
    converted: Floats = ms * (wanted / measured) ** elasticity
    return converted


class Sentinel:
    """A small fixed kernel that measures the machine's state: a pooled lookup of all rows of a window in random order, twice.

    On a CPU each run uses the next window, of 8 MiB, of a large buffer. The window has long been untouched, so the first pass reads main
    memory and the second pass the last-level cache, independently of the data that a sample left in the caches.
    """

    def __init__(self, arena: Arena, clock: Clock) -> None:
        import torch

        self._clock = clock
        windows = _WINDOWS[arena.device.type]
        rows = SENTINEL_BYTES // 4 // _SENTINEL_DIM // windows
        self._windows: torch.Tensor = arena.take(windows * rows * _SENTINEL_DIM, torch.float32).view(
            windows, rows, _SENTINEL_DIM
        )
        self._ids = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(arena.device)
        self._offsets = torch.arange(0, rows, _SENTINEL_BAG).to(arena.device)
        self._runs = 0
        self._readings: deque[float] = deque(maxlen=_READINGS_KEPT)
        for _ in range(_FIRST_READINGS):
            self.read()

    @property
    def usual_ms(self) -> float:
        """The median of the last 5,000 readings."""
        return float(np.median(self._readings))

    def run(self, _: int) -> None:
        """Run the kernel once."""
        from torch.nn.functional import embedding_bag

        window = self._windows[self._runs % len(self._windows)]
        self._runs += 1
        for _ in range(2):
            embedding_bag(self._ids, window, self._offsets, mode="sum")

    def read(self) -> float:
        """The state of the machine now: milliseconds of the shorter of two runs."""
        ms = min(self._clock.time([self.run], 0)[0] for _ in range(_SENTINEL_RUNS))
        self._readings.append(ms)
        return ms
