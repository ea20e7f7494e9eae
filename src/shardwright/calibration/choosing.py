"""Which sets to measure next: quick ones at first, later those that models trained on halves of the data disagree about, for their cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from shardwright.arrays import Floats
from shardwright.calibration.sets import Set
from shardwright.cost.accuracy import ArrayModel, predict
from shardwright.cost.dataset import samples_of_works
from shardwright.measure.fused import fresh_batches
from shardwright.measure.hardware import cache_bytes
from shardwright.measure.timing import TimingPolicy

_GUESS = (
    0.05,
    2e-3,
    3e-7,
)  # seconds a visit, for each ms of its runs, and for each lookup that is drawn, until visits tell
_RUNS_OF_BATCH = TimingPolicy().passes
_SPREAD = 0.5  # of the logarithm, by which quick sets are drawn in place of always the quickest


class VisitSeconds:
    """How long a visit takes: a non-negative mix of one, the time of its runs, and the lookups of its batches."""

    def __init__(self) -> None:
        self._cache = cache_bytes()[1]
        self._rows: list[tuple[float, float, float]] = []
        self._seconds: list[float] = []

    def saw(self, one: Set, ms: float, seconds: float) -> None:
        """Take note of a visit."""
        self._rows.append(self._row(one, ms))
        self._seconds.append(seconds)

    def expected(self, sets: Sequence[Set], ms: Floats) -> Floats:
        """`(n,)` seconds that visits to sets will take, whose steps take so many ms."""
        rates = np.array(_GUESS)
        if len(self._rows) > 2 * len(rates):
            rows, seconds = np.array(self._rows), np.array(self._seconds)
            unit = np.maximum(rows.max(axis=0), 1e-30)
            rates = nnls(rows / unit / seconds[:, None], np.ones(len(seconds)))[0] / unit
        found: Floats = np.array([self._row(one, time) for one, time in zip(sets, ms.tolist(), strict=True)]) @ rates
        return np.maximum(found, 1e-3)

    def _row(self, one: Set, ms: float) -> tuple[float, float, float]:
        works = one.work.works
        batches = fresh_batches(works, self._cache)
        return (
            1.0,
            ms * max(_RUNS_OF_BATCH * batches, TimingPolicy().runs),
            batches * sum(work.lookups for work in works),
        )


def step_ms(models: Sequence[ArrayModel], sets: Sequence[Set]) -> Floats:
    """`(models, n)` forward and backward ms that models predict for sets."""
    samples = samples_of_works([one.work.works for one in sets], np.ones((len(sets), 2)))
    return np.stack([np.maximum(predict(model, samples).sum(axis=1), 1e-3) for model in models])


def quick_ones(
    sets: Sequence[Set], model: ArrayModel, seconds: VisitSeconds, count: int, rng: np.random.Generator
) -> list[Set]:
    """Sets that take little time, of all numbers of shards."""
    if not sets:
        return []
    expected = seconds.expected(sets, step_ms([model], sets)[0])
    return _best_of_each_size(sets, rng.lognormal(0, _SPREAD, len(sets)) / expected, count)


def disputed_ones(sets: Sequence[Set], models: Sequence[ArrayModel], seconds: VisitSeconds, count: int) -> list[Set]:
    """Sets that models disagree about most for the time that measuring them takes, of all numbers of shards."""
    if not sets:
        return []
    predicted = step_ms(models, sets)
    spread = np.log(predicted).std(axis=0)
    return _best_of_each_size(sets, spread / np.sqrt(seconds.expected(sets, predicted.mean(axis=0))), count)


def _best_of_each_size(sets: Sequence[Set], value: Floats, count: int) -> list[Set]:
    """The sets of the highest value, in turn from those of 1, 2 to 3, 4 to 7, … shards."""
    by_size: defaultdict[int, list[int]] = defaultdict(list)
    for place in np.argsort(value).tolist():
        by_size[len(sets[place].work.works).bit_length()].append(place)
    chosen: list[Set] = []
    while by_size and len(chosen) < count:
        for size in sorted(by_size):
            chosen.append(sets[by_size[size].pop()])
            if not by_size[size]:
                del by_size[size]
    return chosen[:count]
