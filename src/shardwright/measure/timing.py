"""How long a call takes: repeated runs, and when to stop.

On a CPU the minimum is the statistic: noise from other programs only ever adds time. On CUDA it is the median, of device events, as in
the papers.
"""

from __future__ import annotations

import math
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
        return cls("median", warm_up=5, min_runs=10, max_runs=100, precision=0.02)

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


class CudaClock:
    """Device events around each part, with the L2 cache flushed before.

    Flushing writes a buffer twice the size of the cache. While the device is busy with it, the host enqueues the part, so that launch
    overheads hide behind it and the events time the kernels alone.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flushed = torch.empty(2 * cache, dtype=torch.int8, device=device)

    def time(self, parts: Sequence[Part], run: int) -> list[float]:
        """Milliseconds of each part."""
        import torch

        events = []
        for part in parts:
            self._flushed.zero_()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            part(run)
            stop.record()
            events.append((start, stop))
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(stop) for start, stop in events]


def clock_of(device: torch.device) -> Clock:
    """The clock for a device."""
    return CpuClock() if device.type == "cpu" else CudaClock(device)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the parts of a call, and of how many runs."""

    parts_ms: tuple[float, ...]
    runs: int


def time_parts(parts: Sequence[Part], clock: Clock, policy: TimingPolicy) -> Timing:
    """Repeat the parts until each one's time is known.

    Args:
        parts: functions of the number of the run, called one after another in each run.
        clock: times them.
        policy: when to stop.
    """
    stop = perf_counter() + policy.time_limit_s
    for run in range(policy.warm_up):
        if run and perf_counter() > stop:
            break
        clock.time(parts, run)
    stop = perf_counter() + policy.time_limit_s
    columns: list[list[float]] = [[] for _ in parts]
    for run in range(policy.max_runs):
        for column, elapsed in zip(columns, clock.time(parts, run), strict=True):
            column.append(elapsed)
        if perf_counter() > stop or all(map(policy.is_known, columns)):
            break
    return Timing(tuple(policy.value(column) for column in columns), len(columns[0]))
