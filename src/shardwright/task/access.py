"""The distribution of a table's accesses over its rows, sorted hottest first.

An `AccessProfile` is the cumulative share of accesses in about 100 points; between two points the density is constant. For any batch and
any range of rows it yields the expected distinct rows and the 17 reuse bins of the papers (see `REUSE_EDGES`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput
from shardwright.task.quantities import checked_number, checked_whole, real

_SUMMED = 16  # up to this count, probabilities are summed term by term
_REACH = 9.0  # standard deviations from the count; beyond them the probability is 0 or 1 to 1e-15
_NODES = 48
_SPREAD = 7.0  # distance of sqrt(mean) from sqrt(k); within it the probability is neither 0 nor 1
_STEP = 1 / 128


def poisson_at_most(counts: npt.ArrayLike, means: npt.ArrayLike) -> Floats:
    """Probability of at most k events when their number is Poisson distributed.

    Up to k = 16 the terms are summed. Beyond that, P(X ≤ k) is the integral of the gamma density t**k · exp(-t) / k! from the mean to
    infinity (DLMF 8.4.10). Gauss-Legendre quadrature computes it once at fixed nodes; a cubic interpolates between them over the square
    root of the mean, since the curve is then equally smooth for every k. The absolute error is below 1e-9.

    Args:
        counts: `(n,)` whole numbers k of at least 0.
        means: `(m,)` means, not negative.

    Returns:
        `(m, n)` probabilities.
    """
    mean = np.asarray(means, dtype=np.float64)
    wanted = [int(k) for k in np.asarray(counts)]
    result = np.empty((mean.size, len(wanted)))
    terms = _first_terms(mean)
    for column, k in enumerate(wanted):
        result[:, column] = terms[k] if k <= _SUMMED else _between_nodes(k, mean)
    return result


def poisson_exactly(count: int, means: npt.ArrayLike) -> Floats:
    """`(m,)` probability of exactly `count` events for each of `(m,)` means."""
    mean = np.asarray(means, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.exp(count * np.log(mean) - mean - math.lgamma(count + 1)) if count else np.exp(-mean)


def _first_terms(mean: Floats) -> Floats:
    """`(17, m)` probabilities of at most 0 … 16 events."""
    terms = np.empty((_SUMMED + 1, mean.size))
    terms[0] = np.exp(-mean)
    for k in range(1, _SUMMED + 1):
        terms[k] = terms[k - 1] * mean / k
    return np.minimum(np.cumsum(terms, axis=0), 1.0)


def _between_nodes(k: int, mean: Floats) -> Floats:
    """Probability of at most k events, interpolated."""
    lowest, value, rise = _nodes(k)
    place = (np.sqrt(mean) - lowest) / _STEP
    result = np.where(place < 0, 1.0, 0.0)
    inside = np.flatnonzero((place >= 0) & (place < value.size - 1))
    node = place[inside].astype(np.int64)
    x = place[inside] - node
    start, change = value[node], value[node + 1] - value[node]
    here, there = rise[node], rise[node + 1]
    result[inside] = start + x * (here + x * (3 * change - 2 * here - there + x * (here + there - 2 * change)))
    return result


@cache
def _nodes(k: int) -> tuple[float, Floats, Floats]:
    """Return the square root of the first node's mean, and for every node its probability and its slope per step."""
    lowest = max(0.0, math.sqrt(k) - _SPREAD)
    root = np.float64(lowest) + _STEP * np.arange(round((math.sqrt(k) + _SPREAD - lowest) / _STEP) + 1)
    mean: Floats = np.square(root)
    return lowest, _tail(k, mean), -2 * _STEP * root * poisson_exactly(k, mean)


@cache
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


def _tail(k: int, mean: Floats) -> Floats:
    """Integral of the gamma density of shape k + 1 from each mean to infinity.

    For means below k it is computed as 1 minus the integral up to the mean, which keeps small tails exact on both sides.
    """
    width = _REACH * math.sqrt(k)
    low, high = max(k - width, 0.0), k + width + _REACH**2 / 2  # the density leans to the right
    result = np.where(mean < k, 1.0, 0.0)
    left, right = (mean > low) & (mean < k), (mean >= k) & (mean < high)
    if left.any():
        result[left] -= _integral(k, np.full(left.sum(), low), mean[left])
    if right.any():
        result[right] = _integral(k, mean[right], np.full(right.sum(), high))
    return result


def _integral(k: int, start: Floats, stop: Floats) -> Floats:
    """Integral of t**k · exp(-t) / k! over each `[start, stop]`, both `(m,)`."""
    nodes, weights = _legendre()
    t = start[:, None] + (stop - start)[:, None] * nodes
    density: Floats = np.exp(k * np.log(t) - t - math.lgamma(k + 1))
    return (density @ weights) * (stop - start)


REUSE_EDGES = np.concatenate([[0.0], 2.0 ** np.arange(16), [np.inf]])
"""Edges of the reuse bins: bin i holds the rows that occur in a batch more than REUSE_EDGES[i] and at most REUSE_EDGES[i + 1] times.

The 17 bins are (0, 1], (1, 2], (2, 4], ... (16384, 32768] and above.
"""

_EDGES = REUSE_EDGES[:-1].astype(np.int64)
_COUNTS = np.unique(np.concatenate([_EDGES, np.maximum(_EDGES - 1, 0)]))
_AT_EDGE, _BELOW_EDGE = np.searchsorted(_COUNTS, _EDGES), np.searchsorted(_COUNTS, np.maximum(_EDGES - 1, 0))
_AT_ONCE = 64  # profiles handled at once, so that their arrays stay in the processor's caches

POINTS = 100
MAX_ROWS = 2**62
"""Most rows of a Zipf profile: more than any table has, and within 64 bits."""
_SHARE_DIGITS = 1e-12  # rounding error to expect in shares of accesses


@dataclass(frozen=True, eq=False)
class AccessProfile:
    """Cumulative share of accesses over rows sorted hottest first.

    Attributes:
        rows: `(k + 1,)` row counts from 0 to the table's rows, increasing. Fractions are allowed: a random tenth of
            a table holds 0.1 of its single hottest row, in expectation.
        share: `(k + 1,)` cumulative share of accesses, from 0 to 1, concave over `rows`.
        exponent: Zipf exponent that the profile was made from, or None. Keeping it keeps files short.
    """

    rows: Floats
    share: Floats
    exponent: float | None = field(default=None)

    def __post_init__(self) -> None:
        rows, share = _floats(self.rows, "rows"), _floats(self.share, "share")
        if rows.ndim != 1 or rows.shape != share.shape or rows.size < 2:
            raise InvalidInput("access: rows and share must be two lists of equal length, at least 2 points each")
        if not (np.isfinite(rows).all() and np.isfinite(share).all()):
            raise InvalidInput("access: rows and share must be finite; a value is NaN or infinite")
        if rows[0] != 0 or (np.diff(rows) <= 0).any():
            raise InvalidInput("access: rows must start at 0 and increase from point to point")
        if share[0] != 0 or abs(share[-1] - 1) > 1e-6 or (np.diff(share[:-1]) < 0).any() or share[-2] > 1:
            raise InvalidInput("access: share must start at 0, never fall, and end at 1")
        share[-1] = 1.0
        width = np.diff(rows)
        density = np.diff(share) / width
        noise = _SHARE_DIGITS * (1 / width[1:] + 1 / width[:-1])
        if (np.diff(density) > 1e-6 * density[:-1] + noise).any():
            raise InvalidInput(
                "access: rows must be sorted hottest first (the share per row may not grow along the points)"
            )
        rows.flags.writeable = share.flags.writeable = False
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "share", share)

    def __repr__(self) -> str:
        curve = (
            f"zipf {self.exponent:g}"
            if self.exponent
            else "uniform"
            if self.rows.size == 2
            else f"{self.rows.size} points"
        )
        return f"<AccessProfile: {self.total_rows:,.0f} rows, {curve}>"

    @classmethod
    def uniform(cls, rows: float) -> AccessProfile:
        """Return the profile in which all `rows` rows are equally likely."""
        count = checked_number(rows, "access: rows of a uniform profile")
        return cls(np.array([0.0, count]), np.array([0.0, 1.0]), exponent=0.0)

    @classmethod
    def zipf(cls, rows: int, exponent: float) -> AccessProfile:
        """Return the profile in which the r-th hottest of `rows` rows has an access probability proportional to r ** -exponent.

        Raises:
            InvalidInput: `rows` is not a whole number of at least 1, or `exponent` is not a number from 0 to 100.
        """
        count, power = checked_whole(rows, "access: rows of a zipf profile", MAX_ROWS), real(exponent)
        if power is None or not 0 <= power <= 100:
            raise InvalidInput(
                f"access: zipf exponent {reprlib.repr(exponent)} must be a number from 0 (uniform) to 100"
            )
        if power == 0 or count == 1:
            return cls(np.array([0.0, float(count)]), np.array([0.0, 1.0]), exponent=power)
        ranks = _log_spaced_ranks(count)
        mass = _zipf_cumulative(ranks, power)
        return cls(ranks, mass / mass[-1], exponent=power)

    @classmethod
    def from_counts(cls, counts: npt.ArrayLike, rows: int | None = None) -> AccessProfile:
        """Return the profile of observed accesses per row.

        Args:
            counts: `(n,)` non-negative number of accesses of each row, in any order.
            rows: rows of the table, if it also has rows without a count; default n.

        Raises:
            InvalidInput: a count is negative or not finite, nothing was accessed, or there are more counts than rows.
        """
        ordered = _floats(counts, "counts").ravel()
        ordered.sort()
        ordered = ordered[::-1]
        if ordered.size == 0 or not np.isfinite(ordered).all() or ordered[-1] < 0 or ordered.sum() <= 0:
            raise InvalidInput("access: counts must hold at least one access, and no negative or NaN count")
        total_rows = ordered.size if rows is None else checked_whole(rows, "access: rows", MAX_ROWS)
        if ordered.size > total_rows:
            raise InvalidInput(
                f"access: {ordered.size} counts for rows {total_rows}; there may be at most one count per row. "
                "Leave rows away, or pass all rows of the table"
            )
        ordered = ordered[ordered > 0]
        ranks = _log_spaced_ranks(ordered.size)
        cumulative = np.concatenate([[0.0], np.cumsum(ordered)])[ranks.astype(np.int64)]
        cumulative /= cumulative[-1]
        if total_rows > ordered.size:
            ranks, cumulative = np.append(ranks, float(total_rows)), np.append(cumulative, 1.0)
        return cls(ranks, cumulative)

    @property
    def total_rows(self) -> float:
        """Rows the profile covers."""
        return float(self.rows[-1])

    def share_of(self, start: float, stop: float) -> float:
        """Share of all accesses that fall on the rows `[start, stop)` of the hotness order."""
        low, high = np.interp([start, stop], self.rows, self.share)
        return float(high - low)

    def block(self, start: float, stop: float) -> AccessProfile:
        """Return the profile of the rows `[start, stop)` of the hotness order, as a separate table."""
        if (start, stop) == (0, self.total_rows):
            return self
        inside = self.rows[(self.rows > start) & (self.rows < stop)]
        rows = np.concatenate([[start], inside, [stop]])
        width = np.diff(rows)
        density = np.diff(np.interp(rows, self.rows, self.share)) / width
        density = np.minimum.accumulate(density)  # rounding may make the density of cold rows rise
        share = np.concatenate([[0.0], np.cumsum(density * width)])
        if share[-1] <= 0:
            return AccessProfile.uniform(stop - start)
        return AccessProfile(rows - start, share / share[-1])

    def thinned(self, rows: float) -> AccessProfile:
        """Return the profile of a random subset of `rows` rows: the same curve over fewer rows."""
        if rows == self.total_rows:
            return self
        fewer = self.rows * (rows / self.total_rows)
        fewer[-1] = rows  # exactly
        return AccessProfile(fewer, self.share)

    def distinct_rows(self, lookups: float) -> float:
        """Expected number of distinct rows among `lookups` independent lookups; never above `lookups`."""
        count, probability = self._segments()
        seen = -np.expm1(lookups * np.log1p(-np.minimum(probability, 1 - 1e-16)))
        return float((count * np.minimum(seen, lookups * probability)).sum())

    def reuse(self, lookups: float) -> tuple[Floats, Floats]:
        """Expected occurrences of rows in a batch of `lookups` lookups, by reuse bin.

        A row of access probability p occurs Poisson(lookups × p) times.

        Returns:
            `(17,)` expected distinct rows in each bin, and `(17,)` expected lookups that fall on them.
        """
        (rows,), (hits,) = reuse_of_many([self], [lookups])
        return rows, hits

    def _segments(self) -> tuple[Floats, Floats]:
        """`(k,)` rows of each segment and `(k,)` access probability of one row in it.

        In a thinned profile the probability of a fractional row may exceed 1. Multiplied by the thinned lookups it is still the
        row's mean number of occurrences.
        """
        count = np.diff(self.rows)
        return count, np.diff(self.share) / count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AccessProfile):
            return NotImplemented
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.share, other.share)

    def __hash__(self) -> int:
        return hash((self.rows.tobytes(), self.share.tobytes()))


def reuse_of_many(profiles: Sequence[AccessProfile], lookups: Sequence[float]) -> tuple[Floats, Floats]:
    """`AccessProfile.reuse` of n profiles, each with its number of lookups; several times as fast.

    Returns:
        `(n, 17)` expected distinct rows in each bin, and `(n, 17)` expected lookups that fall on them.
    """
    rows, hits = np.zeros((2, len(profiles), REUSE_EDGES.size - 1))
    for start in range(0, len(profiles), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        segments = [profile._segments() for profile in profiles[part]]
        begins = np.cumsum([0, *(count.size for count, _ in segments)])[:-1]
        count = np.concatenate([count for count, _ in segments])
        mean = np.concatenate([per * p for per, (_, p) in zip(lookups[part], segments, strict=True)])
        at_most = poisson_at_most(_COUNTS, mean)
        upper, below = (
            np.hstack([at_most[:, columns], np.ones((mean.size, 1))]) for columns in (_AT_EDGE, _BELOW_EDGE)
        )
        below[:, 0] = 0.0  # no row occurs fewer than 0 times
        rows[part] = np.add.reduceat(count[:, None] * np.diff(upper, axis=1), begins)
        hits[part] = np.add.reduceat((count * mean)[:, None] * np.diff(below, axis=1), begins)
    return np.maximum(rows, 0.0), np.maximum(hits, 0.0)


def upper_hull(x: Floats, y: Floats) -> list[int]:
    """Return the indices of the corners of the upper concave hull of `(n,)` points sorted by x."""
    corners: list[int] = []
    for point in range(x.size):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (y[b] - y[a]) * (x[point] - x[a]) > (y[point] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(point)
    return corners


def _floats(values: npt.ArrayLike, what: str) -> Floats:
    """Return a copy of the values as floats."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"access: {what} is {reprlib.repr(values)}, must be a list or array of numbers") from None


def _log_spaced_ranks(rows: int) -> Floats:
    """Return 0 and about POINTS ranks up to `rows`, dense at the hot end."""
    ranks = np.unique(np.rint(np.geomspace(1, rows, POINTS)))
    return np.concatenate([[0.0], ranks])


def _zipf_cumulative(ranks: Floats, exponent: float) -> Floats:
    """Sum of r ** -exponent for r = 1 … ranks: term by term for the first 4,096, by Euler-Maclaurin beyond."""
    exact = 4096
    head = np.concatenate([[0.0], np.cumsum(np.arange(1, exact + 1, dtype=np.float64) ** -exponent)])
    result = head[np.minimum(ranks, exact).astype(np.int64)]
    far = ranks > exact
    if far.any():
        n = ranks[far]
        power, ratio = 1 - exponent, np.log(n / exact)
        # expm1 keeps the integral exact for exponents close to 1
        integral = ratio if power == 0 else exact**power * np.expm1(power * ratio) / power
        ends = (n**-exponent - exact**-exponent) / 2
        slopes = exponent * (n ** (-exponent - 1) - exact ** (-exponent - 1)) / 12
        result[far] += integral + ends - slopes
    return result
