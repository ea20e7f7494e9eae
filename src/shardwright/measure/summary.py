"""What a sample store holds, and how repeatable its measurements are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.measure.session import QUIET

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CollectSummary:
    """What a store holds after collecting.

    Attributes:
        folder: the store.
        samples: samples in the store, repeats not counted.
        measured: visits made by this call.
        seconds: time this call took.
        disturbed: share of all measurements for which the machine was quiet at no visit.
        repeat_median: median relative difference of forward + backward time between a sample and its repeat; NaN without repeats.
        repeat_mean: mean of the same.
    """

    folder: Path
    samples: int
    measured: int
    seconds: float
    disturbed: float
    repeat_median: float
    repeat_mean: float


def repeat_differences(samples: pa.Table) -> Floats:
    """`(pairs,)` relative differences |a − b| / mean(a, b) of forward + backward time between samples and their repeats."""
    total = samples["forward_ms"].to_numpy() + samples["backward_ms"].to_numpy()
    keys = list(zip(samples["sample"].to_pylist(), samples["repeat"].to_pylist(), strict=True))
    by_key = dict(zip(keys, total, strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    first, second = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    difference: Floats = np.abs(first - second) / ((first + second) / 2)
    return difference


def summarise(folder: Path, samples: pa.Table, measured: int, seconds: float) -> CollectSummary:
    """The summary of a store with these samples, of which a call measured some."""
    noise = repeat_differences(samples)
    return CollectSummary(
        folder=folder,
        samples=int((samples["repeat"].to_numpy() == 0).sum()),
        measured=measured,
        seconds=seconds,
        disturbed=float((samples["sentinel"].to_numpy() > QUIET).mean()),
        repeat_median=float(np.median(noise)) if noise.size else float("nan"),
        repeat_mean=float(noise.mean()) if noise.size else float("nan"),
    )
