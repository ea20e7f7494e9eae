"""How long a call takes: repeated runs, and when to stop.

On a CPU the minimum is the statistic: noise from other programs only ever adds time. On CUDA it is the median, of device events, as in
the papers.
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

from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    import torch

Statistic: TypeAlias = Literal["minimum", "median"]
Part: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class TimingPolicy:
    """When to stop repeating a measurement.

    Attributes:
        statistic: what of the runs is reported.
        warm_up: runs that are not counted.
        min_runs: fewest counted runs.
        max_runs: most counted runs.
        precision: relative uncertainty of the statistic at which to stop.
        time_limit_s: stop after this time in any case; at least one run is counted.
    """

    statistic: Statistic = "minimum"
    warm_up: int = 2
    min_runs: int = 10
    max_runs: int = 12
    precision: float = 0.01
    time_limit_s: float = 2.0

    def __post_init__(self) -> None:
        if self.warm_up < 0 or not 1 <= self.min_runs <= self.max_runs:
            raise InvalidInput(
                f"timing: warm_up {self.warm_up}, min_runs {self.min_runs}, max_runs {self.max_runs} must be 0 <= warm_up and "
                "1 <= min_runs <= max_runs"
            )
        if self.statistic not in ("minimum", "median"):
            raise InvalidInput(f"timing: statistic {self.statistic!r} must be 'minimum' or 'median'")

    @classmethod
    def of(cls, device_kind: str) -> TimingPolicy:
        """The policy for a kind of device, "cpu" or "cuda"."""
        if device_kind == "cpu":
            return cls()
        return cls("median", warm_up=3, min_runs=10, max_runs=60, precision=0.01, time_limit_s=0.3)

    def value(self, runs: Sequence[float]) -> float:
        """The statistic of `(runs,)` times."""
        return float(min(runs) if self.statistic == "minimum" else np.median(runs))

    def is_known(self, runs: Sequence[float]) -> bool:
        """Whether the statistic of `(runs,)` times is known to `precision`.

        The minimum: when the three shortest runs agree. The median: when its 95% confidence interval is narrow enough; its standard
        error is 1.2533 σ / √n for a normal sample, and σ is taken as 1.4826 times the median absolute deviation, which outliers
        leave alone.
        """
        if len(runs) < self.min_runs:
            return False
        if self.statistic == "minimum":
            return bool(np.sort(runs)[min(2, len(runs) - 1)] <= (1 + self.precision) * min(runs))
        middle = np.median(runs)
        deviation = 1.4826 * np.median(np.abs(np.asarray(runs) - middle))
        return bool(1.96 * 1.2533 * deviation / math.sqrt(len(runs)) <= self.precision * middle)


class Clock(Protocol):
    """Times the parts of a run on one kind of device."""

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Milliseconds that each of the parts takes, called in turn with the number of the run."""


class CpuClock:
    """Wall-clock time; a CPU runs what it is told at once."""

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Milliseconds of each part."""
        marks = [perf_counter()]
        for part in parts:
            part(run)
            marks.append(perf_counter())
        return [1e3 * (stop - start) for start, stop in pairwise(marks)]


class HeadStart:
    """How long the device is kept busy before a part, so that the host has enqueued all of it when the device begins.

    A fused call is a dozen kernels that the host needs some tenths of a millisecond to enqueue. Without a head start, the time of a
    small call would be the host's. It is half as long again as the second longest that the host has lately needed: the parts of a run
    need different times, so the longest of them must be covered; but that the host is stopped once for some milliseconds is no reason
    to let the device idle as long before each of the next parts.
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
        """Take note of how long the host took to enqueue a part."""
        self._needed.append(host_ms)


class CudaClock:
    """Device events around each part, with the L2 cache flushed before.

    Flushing reads a buffer twice the size of the cache: were it written, the timed kernels would have to write its lines back. Then the
    device idles on purpose until the host has enqueued the part (see `HeadStart`), so that the events time the kernels and the gaps
    between them, but not the host.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flushed = torch.zeros(2 * cache // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)  # reading has to have a result
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
        """Clock cycles a millisecond, of a device that is awake."""
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


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the parts of a call, and of how many runs; and seconds that warming up and running took in all."""

    parts_ms: tuple[float, ...]
    runs: int
    warm_up_s: float = 0.0
    runs_s: float = 0.0


def time_parts(parts: Sequence[Part], clock: Clock, policy: TimingPolicy, batches: int = 1) -> Timing:
    """Repeat the parts until each one's time is known.

    The first run that warms up goes past the clock: it allocates, loads code and may wait for the device, so what the host needs for
    it says nothing about the next ones.

    Args:
        parts: functions of the number of the run, called one after another in each run.
        clock: times them.
        policy: when to stop.
        batches: how many batches the runs have in turn. Where there are several, all of them are seen before a run is counted,
            whatever time that takes: what is allocated for one may not fit the next.
    """
    began = perf_counter()
    for run in range(policy.warm_up if batches == 1 else max(policy.warm_up, batches)):
        if not run:
            for part in parts:
                part(run)
        elif run >= batches and perf_counter() > began + policy.time_limit_s:
            break
        else:
            clock.time(parts, run)
    warm = perf_counter()
    columns: list[list[float]] = [[] for _ in parts]
    for run in range(policy.max_runs):
        for column, elapsed in zip(columns, clock.time(parts, run), strict=True):
            column.append(elapsed)
        if perf_counter() > warm + policy.time_limit_s or all(map(policy.is_known, columns)):
            break
    times = tuple(policy.value(column) for column in columns)
    return Timing(times, len(columns[0]), warm - began, perf_counter() - warm)
