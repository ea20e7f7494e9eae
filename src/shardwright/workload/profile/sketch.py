"""Access counts of one table in bounded memory: a hash sample for the many ids, heavy hitters for the few hot ones.

Ids come as 64-bit hashes ("keys"). A sketch has two halves, split by the value of the key:

- *sample*: exact counts of all keys below 2 ** (64 - level). When it holds more than `limit` keys, the level rises by one and
  about half of them leave. The level, and so the sample, depends only on the SET of keys seen: any order and any split over
  files and workers gives the same sample. At level 0 every id is counted exactly.
- *heavy*: at most limit / 2 of the keys above, those with the largest counts. A key that leaves the sample enters here with
  its exact count, so most hot ids are counted exactly. The half is cut back to its limit as by Misra and Gries (1982), in
  the mergeable form of Agarwal et al., "Mergeable Summaries" (PODS 2012): every id that is not held occurred at most
  `error` times, and error <= events / (limit / 2 + 1).

The only operation is `merged`, since a chunk of keys is a sketch too.

Ids of a log column become keys that look random: integers are scrambled one to one, text is hashed. The keys do not depend on the file,
the platform or the library versions, so partial profiles can be merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats, Ints
from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile
from shardwright.task.access import upper_hull

if TYPE_CHECKING:
    import pyarrow as pa

Keys: TypeAlias = npt.NDArray[np.uint64]

BYTES_PER_ID = 28
"""Memory of a full sketch per id of its limit: 16 bytes in the sample, and 24 bytes for half as many heavy hitters."""

SHARE_DIGITS = 7
ID_RANGES = 16
_POINTS = 100
MAX_TEXT_BYTES = 4096

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)


def _no_keys() -> Keys:
    return np.zeros(0, dtype=np.uint64)


def _no_counts() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AccessSketch:
    """Number of occurrences of each id of a table, exact or within `error`. Immutable, so safe to share.

    Attributes:
        limit: most ids in the sample, at least 2; half as many heavy hitters.
        events: number of occurrences seen.
        level: the sample holds the keys below 2 ** (64 - level).
        sample_keys: `(n,)` keys of the sample, increasing.
        sample_counts: `(n,)` exact counts of the sample's keys.
        heavy_keys: `(m,)` keys of the heavy hitters, increasing, all above the sample's.
        heavy_counts: `(m,)` occurrences counted; the true count lies in [count, count + missed].
        heavy_missed: `(m,)` most occurrences that the count may have missed.
        error: most occurrences of an id that is in neither half.
    """

    limit: int
    events: int = 0
    level: int = 0
    sample_keys: Keys = field(default_factory=_no_keys)
    sample_counts: Ints = field(default_factory=_no_counts)
    heavy_keys: Keys = field(default_factory=_no_keys)
    heavy_counts: Ints = field(default_factory=_no_counts)
    heavy_missed: Ints = field(default_factory=_no_counts)
    error: int = 0

    @classmethod
    def of(cls, keys: Keys, limit: int) -> AccessSketch:
        """Return the sketch of `(n,)` keys in any order."""
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
        """Estimated number of distinct ids, at least the number held; its relative standard error is `distinct_error`."""
        held = self.sample_keys.size + self.heavy_keys.size
        return max(self.sample_keys.size << self.level, held, min(self.events, 1))

    @property
    def distinct_error(self) -> float:
        """Relative standard error of `distinct`: each id is in the sample with probability 2 ** -level."""
        return 0.0 if self.exact else float(np.sqrt((1 - 0.5**self.level) / max(self.sample_keys.size, 1)))

    def held(self) -> tuple[Keys, Floats]:
        """`(n,)` keys of both halves, and their counts; one that may have missed occurrences is in the middle of its range."""
        keys = np.concatenate([self.sample_keys, self.heavy_keys])
        return keys, np.concatenate([self.sample_counts, self.heavy_counts + self.heavy_missed / 2])

    def merged(self, other: AccessSketch) -> AccessSketch:
        """Return the sketch of the events of both, with the smaller of the two limits."""
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
        """Return this sketch with the heavy hitters of two at its level. A key that only one side holds may miss the other's error."""
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
        """Return the sketch at a higher level: keys that leave the sample become heavy hitters, with nothing missed."""
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
        """Return the sketch with the level raised and the heavy hitters cut back until both fit the limit."""
        sketch = self
        if self.sample_keys.size > self.limit:
            # The lowest level with at most `limit` keys below 2 ** (64 - level): the next key must not be below it.
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
    """Return the positions in sorted keys where a new key begins."""
    if not ordered.size:
        return np.zeros(0, dtype=np.intp)
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def _sum_by_key(left: Keys, right: Keys, values: list[tuple[Ints, Ints]]) -> tuple[Keys, list[Ints]]:
    """Return the union of two sorted key arrays, and the sums by key of each pair of value arrays."""
    if not left.size or not right.size:
        side = 0 if left.size else 1
        return (left, right)[side], [pair[side] for pair in values]
    keys = np.concatenate([left, right])
    order = np.argsort(keys, kind="stable")  # a merge sort merges the two sorted runs in linear time
    keys = keys[order]
    starts = _run_starts(keys)
    return keys[starts], [np.add.reduceat(np.concatenate(pair)[order], starts) for pair in values]


def hash_keys(ids: pa.Array) -> Keys:
    """Return the `(n,)` keys of integers that are hashes, negative ones included; different integers have different keys."""
    numbers = ids.to_numpy(zero_copy_only=False)
    wide = numbers if numbers.dtype.kind == "u" else numbers.astype(np.int64)
    return scramble(wide.astype(np.uint64))


def integer_keys(ids: pa.Array, where: str) -> tuple[Keys, int, int]:
    """Return the keys of integer ids; different ids have different keys.

    Args:
        ids: `(n,)` integers of any width, n at least 1, no nulls.
        where: file and column, for messages.

    Returns:
        `(n,)` keys, and the smallest and the largest id.

    Raises:
        InvalidInput: an id is negative.
    """
    numbers = ids.to_numpy(zero_copy_only=False)
    lowest = int(numbers.min())
    if lowest < 0:
        raise InvalidInput(
            f"{where}: id {lowest} is negative; ids must be at least 0 "
            "(write missing ids as null, or accept hashes with --hashed)"
        )
    return scramble(numbers.astype(np.uint64)), lowest, int(numbers.max())


def text_keys(ids: pa.Array, where: str) -> Keys:
    """Return the keys of text (or binary) ids: a 64-bit hash of their bytes, eight at a time.

    Args:
        ids: `(n,)` strings or binaries, no nulls.
        where: file and column, for messages.

    Returns:
        `(n,)` keys.

    Raises:
        InvalidInput: an id is longer than 4,096 bytes.
    """
    words, position, rest = _byte_windows(ids)
    longest = int(rest.max(initial=0))
    if longest > MAX_TEXT_BYTES:
        raise InvalidInput(
            f"{where}: an id has {longest:,} bytes; ids of text may have at most {MAX_TEXT_BYTES:,}: is it a text feature? exclude it"
        )
    keys = scramble(rest.astype(np.uint64))
    unfinished = np.flatnonzero(rest)
    while unfinished.size:
        left = rest[unfinished]
        word = words[position[unfinished]] & _LOW_BYTES[np.minimum(left, 8)]
        keys[unfinished] = scramble(keys[unfinished] ^ word)
        position[unfinished] += 8
        rest[unfinished] -= np.minimum(left, 8)
        unfinished = unfinished[left > 8]
    return keys


def scramble(numbers: Keys) -> Keys:
    """Map 64-bit numbers one to one to random-looking ones: number i becomes SplitMix64's i-th output (Steele et al., 2014)."""
    mixed = numbers * _GOLDEN
    mixed += _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIXERS[0]
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIXERS[1]
    mixed ^= mixed >> np.uint64(31)
    return mixed


def unscramble(keys: Keys) -> Keys:
    """Undo `scramble`: return the integers behind keys."""
    numbers = _unshifted(keys, 31) * _inverse(_MIXERS[1])
    numbers = _unshifted(numbers, 27) * _inverse(_MIXERS[0])
    ids: Keys = (_unshifted(numbers, 30) - _GOLDEN) * _inverse(_GOLDEN)
    return ids


def _unshifted(mixed: Keys, shift: int) -> Keys:
    """Undo x ^ (x >> shift), for shifts of at least 22: return the `(n,)` numbers x behind `mixed`."""
    numbers: Keys = mixed ^ (mixed >> np.uint64(shift)) ^ (mixed >> np.uint64(2 * shift))
    return numbers


def _inverse(odd: np.uint64) -> np.uint64:
    """Return the inverse of an odd number modulo 2 ** 64."""
    return np.uint64(pow(int(odd), -1, 1 << 64))


def _byte_windows(ids: pa.Array) -> tuple[npt.NDArray[Any], Ints, Ints]:
    """Return the eight bytes from every position of the ids' text as little-endian numbers, and `(n,)` starts and lengths of the ids."""
    import pyarrow as pa

    if pa.types.is_string_view(ids.type):
        ids = ids.cast(pa.large_string())
    ids = ids.cast(pa.large_binary())
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, dtype="<i8")[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    start, stop = int(ends[0]), int(ends[-1])
    padded = np.zeros(stop - start + 8, dtype=np.uint8)
    if data is not None:
        padded[: stop - start] = np.frombuffer(data, dtype=np.uint8)[start:stop]
    windows: npt.NDArray[Any] = np.ndarray((stop - start + 1,), dtype="<u8", buffer=padded, strides=(1,))
    return windows, ends[:-1] - start, np.diff(ends)


def access_profile(sketch: AccessSketch, rows: int | None = None) -> AccessProfile:
    """Return the access profile of a sketch, in about 100 points with shares rounded to `SHARE_DIGITS` digits.

    Args:
        sketch: accesses of the table; at least one.
        rows: rows of the table, with those never seen; default (and at least) the sketch's distinct ids.
    """
    counts, weights = ranked_counts(sketch)
    seen = sketch.distinct
    reached = np.concatenate([[0.0], np.cumsum(weights)])
    mass = np.concatenate([[0.0], np.cumsum(weights * counts)])
    ranks = np.concatenate([[0.0], np.unique(np.rint(np.geomspace(1, seen, _POINTS)))])
    share = np.round(np.interp(ranks, reached * (seen / reached[-1]), mass / mass[-1]), SHARE_DIGITS)
    if rows is not None and rows > seen:
        ranks, share = np.append(ranks, float(rows)), np.append(share, 1.0)
    corners = upper_hull(ranks, share)  # rounding makes the curve slightly non-concave
    return AccessProfile(ranks[corners], share[corners])


def id_shares(sketch: AccessSketch, rows: int) -> tuple[float, ...]:
    """Share of the lookups of each of 16 equal ranges of the ids 0 to `rows` - 1, in the order of ids.

    If the sketch is not exact, ids that are certainly hot have their own counts, and those of the sample represent all others.

    Args:
        sketch: accesses of a table whose ids are integers.
        rows: more than the largest id.
    """
    keys, counts = sketch.held()
    hot, cold = _hot_and_cold(sketch, counts)
    counts[cold] *= max(sketch.events - counts[hot].sum(), 0.0) / max(counts[cold].sum(), 1.0)
    held = hot | cold
    place = unscramble(keys[held]).astype(np.int64) * ID_RANGES // rows
    shares = np.bincount(place, counts[held], ID_RANGES)
    return tuple(np.round(shares / shares.sum(), SHARE_DIGITS).tolist())


def flat_profile(seen: int, rows: int) -> AccessProfile:
    """Return the profile in which `seen` of the `rows` rows are equally likely, and the others are never looked up."""
    if rows == seen:
        return AccessProfile.uniform(rows)
    return AccessProfile(np.array([0.0, seen, rows]), np.array([0.0, 1.0, 1.0]))


def ranked_counts(sketch: AccessSketch) -> tuple[Floats, Floats]:
    """Return counts of ids, hottest first, and how many ids of the table each of them represents.

    If the sketch is not exact, hot ids represent themselves: their count is above twice the sketch's error, so all of them are
    known. The sample provides the cold rest, scaled so that the sums of distinct ids and of events are right.

    Returns:
        `(n,)` counts, not increasing, and `(n,)` weights.
    """
    _, held = sketch.held()
    hot, cold = (held[part] for part in _hot_and_cold(sketch, held))
    if not cold.size and not hot.size:  # only if ids were chosen to defeat the hash
        cold = np.ones(1)
    weight = max((sketch.distinct - hot.size) / max(cold.size, 1), 1.0)
    cold_events = max(sketch.events - hot.sum(), weight)
    counts = np.concatenate([hot, cold * (cold_events / (weight * cold.sum()))]) if cold.size else hot
    weights = np.concatenate([np.ones(hot.size), np.full(cold.size, weight)])
    order = np.argsort(counts)[::-1]
    return counts[order], weights[order]


def _hot_and_cold(sketch: AccessSketch, counts: Floats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the held ids that are certainly hot, and of those of the sample that represent all others."""
    hot = counts > 2 * sketch.error
    return hot, ~hot & (np.arange(counts.size) < sketch.sample_counts.size)


def hottest_ids(sketch: AccessSketch, limit: int | None = None) -> Ints:
    """`(n,)` ids, hottest first; ids with the same count are in ascending order.

    If the sketch is not exact, only ids that occurred more often than any id outside it are returned: the order of the others is
    unknown. The count of an id that may have been missed at first is taken at the middle of its possible range.

    Args:
        sketch: accesses of a table whose ids are integers below 2 ** 63.
        limit: most ids to return; default all.
    """
    keys, counts = sketch.held()
    known = counts > sketch.error
    ids, counts = unscramble(keys[known]).astype(np.int64), counts[known]
    return ids[np.lexsort((ids, -counts))][:limit]
