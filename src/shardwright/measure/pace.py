"""Predict the duration of measurements on this machine from the first ones, in order to keep a time limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput
from shardwright.measure.device_work import DeviceWork
from shardwright.measure.fused import batches_on
from shardwright.measure.timing import TimingPolicy

LEAST_S = {"cpu": 12.0, "cuda": 45.0}
"""Least seconds for any measurement: to start the measuring process, run the controls, and measure a few works."""

_GUESS = 0.05, 2e-3, 3e-7  # first guess: seconds per visit, per ms of its runs, and per lookup drawn


class VisitSeconds:
    """Predicts how long a visit takes: a non-negative mix of a constant, the time of its runs, and the lookups of its batches.

    Args:
        device_kind: kind of the device that measures, "cpu" or "cuda".
        predicted_ms: predicts the step ms of a work that was not visited; None if no model is known.
    """

    def __init__(self, device_kind: str = "cpu", predicted_ms: Callable[[DeviceWork], float] | None = None) -> None:
        self.predicted_ms: Callable[[DeviceWork], float] = predicted_ms or (lambda _: 1.0)
        self._kind, self._policy = device_kind, TimingPolicy.of(device_kind)
        self._ratios: list[float] = []  # measured over predicted times
        self._rows: list[tuple[float, float, float]] = []
        self._seconds: list[float] = []

    def saw(self, work: DeviceWork, ms: float, seconds: float) -> None:
        """Learn from a visit: a step of `ms` took `seconds` to measure."""
        self._rows.append(self._row(work, ms))
        self._seconds.append(seconds)
        self._ratios.append(ms / max(self.predicted_ms(work), 1e-6))

    def of_works(self, works: Sequence[DeviceWork], measured_ms: Sequence[float | None]) -> Floats:
        """`(n,)` predicted seconds of visits; a step that was not measured counts as predicted, times the usual measured / predicted."""
        ratio = float(np.median(self._ratios)) if self._ratios else 1.0
        pairs = zip(works, measured_ms, strict=True)
        steps = [
            (ratio * max(self.predicted_ms(work), 1e-6) if ms is None else ms) if work.works else 0.0
            for work, ms in pairs
        ]
        return self.expected(works, steps)

    def expected(self, works: Iterable[DeviceWork], ms: Sequence[float] | Floats) -> Floats:
        """`(n,)` predicted seconds of visits to works whose steps take `ms`, `(n,)`."""
        rows = [self._row(work, float(time)) for work, time in zip(works, ms, strict=True)]
        return np.maximum(np.array(rows).reshape(-1, 3) @ self._rates(), 1e-3)

    def _rates(self) -> Floats:
        """`(3,)` seconds for each unit of a row; the guess, scaled to the visits so far, until there are enough visits to fit them."""
        rates = np.array(_GUESS)
        if not self._rows:
            return rates
        rows, seconds = np.array(self._rows), np.array(self._seconds)
        if len(rows) <= 2 * len(rates):
            scaled: Floats = rates * (seconds.sum() / (rows @ rates).sum())
            return scaled
        from scipy.optimize import nnls  # collecting does without scipy

        unit = np.maximum(rows.max(axis=0), 1e-30)
        fitted: Floats = nnls(rows / unit / seconds[:, None], np.ones(len(seconds)))[0] / unit
        return fitted

    def _row(self, work: DeviceWork, ms: float) -> tuple[float, float, float]:
        batches = batches_on(self._kind, work.works)
        runs = batches * self._policy.passes_over(batches)
        return 1.0, ms * runs, batches * sum(shard.lookups for shard in work.works)


def check_minutes(minutes: float) -> None:
    """Check a time limit; raises InvalidInput unless it is a finite number above 0."""
    if isinstance(minutes, bool) or not 0 < minutes < math.inf:
        shown = str(minutes) if isinstance(minutes, bool) else f"{minutes:g}"
        raise InvalidInput(f"minutes is {shown}, must be a finite number greater than 0")


def check_enough(minutes: float, kind: str) -> None:
    """Check that a time limit allows any measurement on a device, "cpu" or "cuda"; raises InvalidInput if not."""
    if 60 * minutes < LEAST_S[kind]:
        raise InvalidInput(
            f"minutes is {minutes:g}: to start the measuring process and measure a few sets takes {LEAST_S[kind]:.0f} s on {kind}; "
            f"give at least --minutes {minutes_text(LEAST_S[kind])}"
        )


def minutes_text(seconds: float) -> str:
    """Seconds as minutes, rounded up to tenths."""
    return f"{math.ceil(seconds / 6 - 1e-9) / 10:g}"
