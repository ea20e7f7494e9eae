"""How far predicted collectives are off, beside what measuring the same collective twice gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.links.dataset import Collectives, Floats
from shardwright.cost.links.fit import LinkFits, passes_of, predict


@dataclass(frozen=True)
class PassErrors:
    """Errors of the predicted times of single devices in collectives that were held out.

    Attributes:
        devices: times compared.
        mean_error: mean absolute relative error.
        median_error: median absolute relative error.
        repeat_error: mean relative difference of a time measured twice; None without repeats.
    """

    devices: int
    mean_error: float
    median_error: float
    repeat_error: float | None


def errors_of(predicted: Floats, measured: Floats, repeat_error: float | None) -> PassErrors:
    """Errors of `(k,)` predicted times."""
    error = np.abs(predicted - measured) / measured
    return PassErrors(len(error), float(error.mean()), float(np.median(error)), repeat_error)


def repeat_error(parts: Sequence[Collectives], name: str) -> float | None:
    """Mean relative difference between the two measurements of a device's time; None without repeats.

    Args:
        parts: collectives with their repeats.
        name: which passes, one of `FITS`.
    """
    differences = [np.zeros(0)]
    for part in parts:
        first, second = (np.concatenate([p[2].ravel() for p in passes_of(half, name)]) for half in part.repeated())
        differences.append(2 * np.abs(first - second) / (first + second))
    joined = np.concatenate(differences)
    return float(joined.mean()) if len(joined) else None


def link_errors(
    fits: Mapping[str, LinkFits], held_out: Sequence[Collectives], everything: Sequence[Collectives]
) -> dict[str, PassErrors]:
    """Errors of each fit on the first measurements that were held out.

    Args:
        fits: as `fit_links` returns them.
        held_out: collectives the fits have not seen.
        everything: every collective of the stores, for the repeat noise.
    """
    result = {}
    for name in fits:
        pairs = [predict(fits, part.select(part.repeat == 0), name) for part in held_out]
        predicted, measured = (np.concatenate(side) for side in zip(*pairs, strict=True))
        if len(measured):
            result[name] = errors_of(predicted, measured, repeat_error(everything, name))
    return result
