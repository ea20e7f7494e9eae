"""Poisson probabilities at the edges of the reuse bins, for many means at once and with numpy only."""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

_SUMMED = 16  # up to this count probabilities are summed term by term
_REACH = 9.0  # standard deviations from the count beyond which the probability is 0 or 1 to 1e-15
_NODES = 48
_SPREAD = 7.0  # of the square root of the mean, around that of k, within which the probability is neither 0 nor 1
_STEP = 1 / 128


def poisson_at_most(counts: npt.ArrayLike, means: npt.ArrayLike) -> Floats:
    """Probability of at most k events when their number is Poisson distributed.

    Up to k = 16 the terms are summed. Beyond, P(X ≤ k) is the tail integral of the gamma density t**k · exp(-t) / k! from the mean on
    (DLMF 8.4.10): by Gauss-Legendre quadrature at nodes that are computed once, and cubic interpolation between them over the square
    root of the mean, in which the curve is equally smooth for every k. The absolute error is below 1e-9.

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
    """`(17, m)` probability of at most 0 … 16 events."""
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
    """Square root of the first node's mean; at every node the probability, and its slope per step."""
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

    Below k it is 1 minus the rest, which keeps small tails exact on both sides.
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
