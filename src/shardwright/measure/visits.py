"""Visits to works: controls among them, the time of a work from its visits, and the noise of measuring.

A *visit* builds a device's work and runs it on fresh batches, and reads the state of the machine in between. The time of a work is the
median of its visits, all converted to one state. A visit that a burst of other programs hit does not count, and is repeated. Controls are
a few fixed works. If they take longer than before, the machine is slower, and the cost model is no less accurate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.timing import at_state
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

Times: TypeAlias = tuple[float, float]

Progress: TypeAlias = Callable[[int, int, str], None]
"""Progress callback: number of measurements made, number wanted, and a few words of detail."""

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


_ASSUMED_NOISE, _LEAST_NOISE = 0.02, 0.003  # noise of a visit as a share
_ASSUMED_VISITS = 4  # number of visits that the assumption counts as
_MEDIAN = 1.25  # standard error of a median over that of a mean


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
    error: Floats = noise * (_MEDIAN if count > 2 else 1.0) / math.sqrt(count)
    return error


def usual_state(visits: Iterable[Sequence[Visit]]) -> float:
    """The state to which times are converted before a comparison: the median usual state over all visits, in ms."""
    return float(np.median([visit.usual_ms for some in visits for visit in some]))
