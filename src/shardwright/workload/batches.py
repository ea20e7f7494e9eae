"""Draw batches of lookups from an access profile: any batch size, seeded, hot rows scattered over the id range."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Ints
from shardwright.sharding.work import ShardWork

_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Batch:
    """Lookups of one table (or one block of it) in one batch.

    Attributes:
        indices: `(n,)` row ids of all bags, feature after feature and one sample after another.
        offsets: `(features × samples + 1,)` start of each bag's ids; the last is n.
    """

    indices: Ints
    offsets: Ints


@dataclass(frozen=True)
class Scatter:
    """A bijection of `[0, rows)` that scatters neighbours: rank → (rank × multiplier + shift) mod rows.

    The multiplier has no common factor with `rows`, which makes the map a bijection, and is small enough that the product
    stays inside 64 bits.
    """

    rows: int
    multiplier: int
    shift: int

    @classmethod
    def draw(cls, rows: int, rng: np.random.Generator) -> Scatter:
        """Draw a random scatter for a table of `rows` rows."""
        largest = min(rows, (_INT64_MAX - rows) // rows)
        multiplier = 1 + int(rng.integers(largest))
        while math.gcd(multiplier, rows) != 1:
            multiplier = 1 + int(rng.integers(largest))
        return cls(rows, multiplier, int(rng.integers(rows)))

    def __call__(self, ranks: Ints) -> Ints:
        """Return the ids of `(n,)` hotness ranks."""
        return (ranks * self.multiplier + self.shift) % self.rows


def draw_batch(work: ShardWork, rng: np.random.Generator, scatter: Scatter | None = None) -> Batch:
    """Draw a batch of lookups as `work` describes it.

    Each feature has its share of `work.lookups`, rounded up or down at random with the exact mean. All bags of a feature of a pooled table
    have the mean size, up to rounding. The bags of a sequence table have Poisson distributed sizes (given their sum). Rows are drawn
    independently, by the inverse of the access profile. If the profile has fractions of rows (a random block of a table), the fractions
    that make up one whole row are drawn as that row.

    Args:
        work: the table, or a block of it.
        rng: generator that draws the batch.
        scatter: positions of the hot rows, the same for all batches of a table; drawn by default.
    """
    counts = [int(work.lookups * share + rng.random()) for share in work.feature_shares]
    ranks = draw_ranks(work, sum(counts), rng)
    indices = (scatter or Scatter.draw(work.rows, rng))(ranks)
    sizes = [_draw_sizes(work, count, rng) for count in counts]
    return Batch(indices, np.cumsum(np.concatenate([[0], *sizes])))


def draw_ranks(work: ShardWork, count: int, rng: np.random.Generator) -> Ints:
    """`(count,)` hotness ranks in `[0, work.rows)`, hottest 0, drawn independently by the access profile."""
    positions = np.interp(rng.random(count), work.access.share, work.access.rows)
    ranks = positions.astype(np.int64)
    return np.minimum(ranks, work.rows - 1, out=ranks)


def _draw_sizes(work: ShardWork, total: int, rng: np.random.Generator) -> Ints:
    """Draw the `(samples,)` sizes of a feature's bags, which hold `total` lookups."""
    if work.pooled:
        sizes = np.full(work.samples, total // work.samples)
        sizes[rng.choice(work.samples, total % work.samples, replace=False)] += 1
    else:
        sizes = np.bincount(rng.integers(work.samples, size=total), minlength=work.samples)
    return sizes.astype(np.int64)
