"""From a sketch to the access profile of its table."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.task import AccessProfile
from shardwright.workload.profile.sketch import AccessSketch

Floats: TypeAlias = npt.NDArray[np.float64]

SHARE_DIGITS = 7
_POINTS = 100


def access_profile(sketch: AccessSketch, rows: int | None = None) -> AccessProfile:
    """Cumulative share of accesses over rows, hottest first, in about 100 points rounded to `SHARE_DIGITS` digits.

    Args:
        sketch: accesses of the table; at least one.
        rows: rows of the table where some were never seen; default (and at least) the sketch's distinct ids.
    """
    counts, weights = ranked_counts(sketch)
    seen = sketch.distinct
    reached = np.concatenate([[0.0], np.cumsum(weights)])
    mass = np.concatenate([[0.0], np.cumsum(weights * counts)])
    ranks = np.concatenate([[0.0], np.unique(np.rint(np.geomspace(1, seen, _POINTS)))])
    share = np.round(np.interp(ranks, reached * (seen / reached[-1]), mass / mass[-1]), SHARE_DIGITS)
    if rows is not None and rows > seen:
        ranks, share = np.append(ranks, float(rows)), np.append(share, 1.0)
    corners = _upper_hull(ranks, share)
    return AccessProfile(ranks[corners], share[corners])


def flat_profile(seen: int, rows: int) -> AccessProfile:
    """Profile of a table of which `seen` of the `rows` rows are equally likely, and the others never looked up."""
    if rows == seen:
        return AccessProfile.uniform(rows)
    return AccessProfile(np.array([0.0, seen, rows]), np.array([0.0, 1.0, 1.0]))


def ranked_counts(sketch: AccessSketch) -> tuple[Floats, Floats]:
    """Counts of ids, hottest first, and how many ids of the table each of them stands for.

    In a sketch that is not exact, hot ids (count above twice the sketch's error: none of them can be unknown) stand for
    themselves. The cold rest is that of the sample, scaled so that the distinct ids and the events of all add up.

    Returns:
        `(n,)` counts, not increasing, and `(n,)` weights.
    """
    sample = sketch.sample_counts.astype(np.float64)
    if sketch.exact:
        return np.sort(sample)[::-1], np.ones(sample.size)
    threshold = 2 * sketch.error
    heavy = sketch.heavy_counts + sketch.heavy_missed / 2
    hot = np.concatenate([sample[sample > threshold], heavy[heavy > threshold]])
    cold = sample[sample <= threshold]
    if not cold.size and not hot.size:  # only where ids were chosen against the hash
        cold = np.ones(1)
    weight = max((sketch.distinct - hot.size) / max(cold.size, 1), 1.0)
    cold_events = max(sketch.events - hot.sum(), weight)
    counts = np.concatenate([hot, cold * (cold_events / (weight * cold.sum()))]) if cold.size else hot
    weights = np.concatenate([np.ones(hot.size), np.full(cold.size, weight)])
    order = np.argsort(counts)[::-1]
    return counts[order], weights[order]


def _upper_hull(x: Floats, y: Floats) -> list[int]:
    """Indices of the corners of the upper concave hull of points sorted by x: rounding a concave curve dents it a little."""
    corners: list[int] = []
    for point in range(x.size):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (y[b] - y[a]) * (x[point] - x[a]) > (y[point] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(point)
    return corners
