"""Access counts of one table in bounded memory: a hash sample for the many, heavy hitters for the few.

Ids come as 64-bit hashes ("keys"). A sketch has two halves, split by the value of the key:

- *sample*: exact counts of all keys below 2 ** (64 - level). When more than `limit` of them are held, the level rises by one
  and about half leave. The level, and so the sample, depends only on the SET of keys seen: any order and any
  split over files and workers gives the same sample. A level of 0 means that every id is counted exactly.
- *heavy*: at most limit / 2 of the keys above, those with the largest counts. What leaves the sample enters here with
  its exact count, so that hot ids are mostly counted exactly. Cutting back to the limit is that of Misra and Gries (1982)
  in the mergeable form of Agarwal et al., "Mergeable Summaries" (PODS 2012): every id that is not held occurred at
  most `error` times, and error <= events / (limit / 2 + 1).

There is one operation, `merged`: a chunk of keys is a sketch too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Keys: TypeAlias = npt.NDArray[np.uint64]
Counts: TypeAlias = npt.NDArray[np.int64]

BYTES_PER_ID = 28
"""Memory of a full sketch by id of its limit: 16 bytes in the sample, and half as often 24 among the heavy hitters."""


def _no_keys() -> Keys:
    return np.zeros(0, dtype=np.uint64)


def _no_counts() -> Counts:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AccessSketch:
    """How often each id of a table occurred, exactly or within `error`; never changed, so safe to share.

    Attributes:
        limit: most ids in the sample, at least 2; half as many heavy hitters.
        events: occurrences seen.
        level: the sample holds the keys below 2 ** (64 - level).
        sample_keys: `(n,)` keys of the sample, increasing.
        sample_counts: `(n,)` their exact counts.
        heavy_keys: `(m,)` keys of the heavy hitters, increasing, all above the sample's.
        heavy_counts: `(m,)` occurrences counted; the true count lies in [count, count + missed].
        heavy_missed: `(m,)` most occurrences that may have been missed.
        error: most occurrences of an id that is in neither half.
    """

    limit: int
    events: int = 0
    level: int = 0
    sample_keys: Keys = field(default_factory=_no_keys)
    sample_counts: Counts = field(default_factory=_no_counts)
    heavy_keys: Keys = field(default_factory=_no_keys)
    heavy_counts: Counts = field(default_factory=_no_counts)
    heavy_missed: Counts = field(default_factory=_no_counts)
    error: int = 0

    @classmethod
    def of(cls, keys: Keys, limit: int) -> AccessSketch:
        """Sketch of `(n,)` keys in any order."""
        ordered = np.sort(keys)
        starts = _run_starts(ordered)
        counts = np.diff(starts, append=ordered.size).astype(np.int64)
        return cls(limit, events=ordered.size, sample_keys=ordered[starts], sample_counts=counts)._within_limit()

    @property
    def exact(self) -> bool:
        """Whether every id is counted exactly."""
        return self.level == 0

    @property
    def distinct(self) -> int:
        """Estimated number of distinct ids, at least those held; its relative standard error is `distinct_error`."""
        held = self.sample_keys.size + self.heavy_keys.size
        return max(self.sample_keys.size << self.level, held, min(self.events, 1))

    @property
    def distinct_error(self) -> float:
        """Relative standard error of `distinct`: each id is in the sample with probability 2 ** -level."""
        return 0.0 if self.exact else float(np.sqrt((1 - 0.5**self.level) / max(self.sample_keys.size, 1)))

    def merged(self, other: AccessSketch) -> AccessSketch:
        """Sketch of the events of both, with the smaller limit of the two."""
        level = max(self.level, other.level)
        left, right = self._at_level(level), other._at_level(level)
        keys, (counts,) = _sum_by_key(left.sample_keys, right.sample_keys, [(left.sample_counts, right.sample_counts)])
        both = replace(
            left,
            limit=min(self.limit, other.limit),
            events=self.events + other.events,
            sample_keys=keys,
            sample_counts=counts,
        )
        return both._with_heavy(left, right)._within_limit()

    def _with_heavy(self, left: AccessSketch, right: AccessSketch) -> AccessSketch:
        """This sketch with the heavy hitters of two at its level: a key only one side holds may have missed the other's error."""
        if not right.heavy_keys.size and not right.error:
            return self
        keys, (counts, slack) = _sum_by_key(
            left.heavy_keys,
            right.heavy_keys,
            [
                (left.heavy_counts, right.heavy_counts),
                (left.heavy_missed - left.error, right.heavy_missed - right.error),
            ],
        )
        error = left.error + right.error
        return replace(self, heavy_keys=keys, heavy_counts=counts, heavy_missed=slack + error, error=error)

    def _at_level(self, level: int) -> AccessSketch:
        """The same at a higher level: keys that leave the sample become heavy hitters, with nothing missed."""
        if level == self.level:
            return self
        cut = int(np.searchsorted(self.sample_keys, np.uint64(1 << (64 - level))))
        leaving = self.sample_keys[cut:]
        return replace(
            self,
            level=level,
            sample_keys=self.sample_keys[:cut].copy(),
            sample_counts=self.sample_counts[:cut].copy(),
            heavy_keys=np.concatenate([leaving, self.heavy_keys]),
            heavy_counts=np.concatenate([self.sample_counts[cut:], self.heavy_counts]),
            heavy_missed=np.concatenate([np.zeros(leaving.size, dtype=np.int64), self.heavy_missed]),
        )

    def _within_limit(self) -> AccessSketch:
        """The same with the level raised and the heavy hitters cut back until both fit the limit."""
        sketch = self
        if self.sample_keys.size > self.limit:
            # The lowest level at which at most `limit` keys are below 2 ** (64 - level): the next key must be above it.
            sketch = self._at_level(65 - int(self.sample_keys[self.limit]).bit_length())
        most = self.limit // 2
        if sketch.heavy_keys.size <= most:
            return sketch
        upper = sketch.heavy_counts + sketch.heavy_missed
        error = max(sketch.error, int(np.partition(upper, upper.size - most - 1)[upper.size - most - 1]))
        kept = upper > error
        return replace(
            sketch,
            heavy_keys=sketch.heavy_keys[kept],
            heavy_counts=sketch.heavy_counts[kept],
            heavy_missed=sketch.heavy_missed[kept],
            error=error,
        )


def _run_starts(ordered: Keys) -> npt.NDArray[np.intp]:
    """Positions at which a new key begins in sorted keys."""
    if not ordered.size:
        return np.zeros(0, dtype=np.intp)
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def _sum_by_key(left: Keys, right: Keys, values: list[tuple[Counts, Counts]]) -> tuple[Keys, list[Counts]]:
    """Union of two sorted key arrays, and for each pair of value arrays the sums by key."""
    if not left.size or not right.size:
        side = 0 if left.size else 1
        return (left, right)[side], [pair[side] for pair in values]
    keys = np.concatenate([left, right])
    order = np.argsort(keys, kind="stable")  # a merge sort: it finds the two sorted runs and merges them in linear time
    keys = keys[order]
    starts = _run_starts(keys)
    return keys[starts], [np.add.reduceat(np.concatenate(pair)[order], starts) for pair in values]
