"""Which row of a table lies where in its blocks.

A block without a tier holds the very rows of its range. A tier of N rows, hottest first, is dealt out to its n row ranges like cards: the
p-th row of the tier goes to range p mod n, as its row p // n. All blocks of a tier then get the same share of the lookups, which blocks of
consecutive rows would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.sharding.shard import Shard

Ints: TypeAlias = npt.NDArray[np.int64]


def dealt_ranges(tier: tuple[int, int], parts: int) -> list[tuple[int, int]]:
    """The row ranges to which a tier is dealt out: as even as possible, larger ones first.

    Args:
        tier: half-open range of rows.
        parts: number of ranges, at most the rows of the tier.
    """
    size, more = divmod(tier[1] - tier[0], parts)
    starts = [tier[0] + part * size + min(part, more) for part in range(parts + 1)]
    return list(pairwise(starts))


def even_cuts(length: int, parts: int) -> list[int]:
    """Where a length is cut into parts that differ by one at most: `parts + 1` numbers from 0 to the length.

    Python's integers: a table may have so many rows that rows times parts exceed 64 bits.
    """
    return [part * length // parts for part in range(parts + 1)]


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Where the rows of one table lie.

    A *segment* is a tier, or a block without one. All of its arithmetic is the same: a block is a tier dealt to a single range.

    Attributes:
        starts: `(s,)` first row of each segment, ascending from 0.
        parts: `(s,)` row ranges that each segment is dealt to.
        first: `(s,)` number of the first row range of each segment.
        ranges: the `(start, stop)` of all row ranges, ascending.
    """

    starts: Ints
    parts: Ints
    first: Ints
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> RowLayout:
        """The layout of the shards of one table, which tile it (all columns cut at the same rows)."""
        ranges = sorted({shard.rows for shard in shards})
        tier_of = {shard.rows: shard.tier or shard.rows for shard in shards}
        segments = sorted(set(tier_of.values()))
        counts = [sum(tier_of[rows] == segment for rows in ranges) for segment in segments]
        return cls(
            np.array([start for start, _ in segments], dtype=np.int64),
            np.array(counts, dtype=np.int64),
            np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64),
            tuple(ranges),
        )

    def locate(self, rows: Ints) -> tuple[Ints, Ints]:
        """Where `(n,)` rows (ids, or ranks by hotness, as the shards' row order says) lie.

        Returns:
            `(n,)` number of the row range in `ranges`, and `(n,)` row within it.
        """
        segment = np.searchsorted(self.starts, rows, side="right") - 1
        position, parts = rows - self.starts[segment], self.parts[segment]
        return self.first[segment] + position % parts, position // parts

    def rows_of(self, number: int) -> Ints:
        """The rows of a range, in the order in which they lie there."""
        segment = int(np.searchsorted(self.first, number, side="right")) - 1
        start, stop = self.ranges[number]
        first = int(self.starts[segment]) + number - int(self.first[segment])
        return first + int(self.parts[segment]) * np.arange(stop - start, dtype=np.int64)
