"""Fit the parts of a GPU's kernel time to measured sets, without a network."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import PARTS, WIDTHS, parts, wider
from shardwright.cost.model import WIDE_SHAPE
from shardwright.modelling.dataset import Samples, rates_of

Width: TypeAlias = Literal["own", "widest"]


def width_of(device_kind: str) -> Width:
    """The `TrainingOptions.width` of a machine, given its kind: "cpu" or "cuda"."""
    return "widest" if device_kind == "cuda" else "own"


def part_sums(samples: Samples, cache: float) -> Floats:
    """`(n, 4 * len(PARTS) + 1)` sizes that determine the time of n sets: parts, parts in calls wider than each of `WIDTHS`, calls."""
    call, owner = samples.calls
    of_calls, widest = np.zeros((len(owner), len(PARTS))), np.zeros((len(owner), len(WIDTHS)))
    np.add.at(of_calls, call, parts(samples.works, cache))
    np.maximum.at(widest, call, wider(samples.works))
    paid = np.hstack([np.ones((len(owner), 1)), widest])[:, :, None] * of_calls[:, None]
    sums = np.zeros((len(samples), WIDE_SHAPE[1] * len(PARTS) + 1))
    np.add.at(sums[:, :-1], owner, paid.reshape(len(owner), -1))
    np.add.at(sums[:, -1], owner, 1.0)
    return sums


def fitted_parts(samples: Samples, cache: float) -> Floats:
    """`WIDE` weights that, with a fixed time for each call and no network, fit the measured times best."""
    sums = part_sums(samples, cache)
    return np.stack([rates_of(sums, times)[:-1] for times in samples.times.T]).reshape(WIDE_SHAPE)
