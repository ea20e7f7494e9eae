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


def poisson_at_most(counts: npt.ArrayLike, means: npt.ArrayLike) -> Floats:
    """Probability of at most k events when their number is Poisson distributed.

    Up to k = 16 the terms are summed. Beyond, P(X ≤ k) is the tail integral of the gamma density t**k · exp(-t) / k! from the mean on
    (DLMF 8.4.10), by Gauss-Legendre quadrature; the absolute error is below 1e-11.

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
        result[:, column] = terms[k] if k <= _SUMMED else _tail(k, mean)
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
