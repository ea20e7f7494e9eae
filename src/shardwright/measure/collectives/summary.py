"""What a store holds of collectives, and how repeatable they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwright.measure.collectives.records import keys_of, read_collectives, step_ms


@dataclass(frozen=True)
class CollectivesSummary:
    """What a store holds after collecting collectives.

    Attributes:
        folder: the store.
        samples: measured samples in the store, repeats not counted.
        skipped: samples in the store that hung or ended the group, repeats not counted.
        measured: measurements made by this call.
        seconds: time this call took.
        repeat_median: median relative difference between a sample and its repeat, of the time until the last device is done; NaN
            without repeats.
        repeat_mean: mean of the same.
    """

    folder: Path
    samples: int
    skipped: int
    measured: int
    seconds: float
    repeat_median: float
    repeat_mean: float


def summarise(folder: Path, measured: int, seconds: float) -> CollectivesSummary:
    """The summary of a store, of which a call measured some rows in some time."""
    table = read_collectives(folder, allow_other_hardware=True, skipped=True)
    first, valid = table["repeat"].to_numpy() == 0, table["runs"].to_numpy() > 0
    kept = table.filter(valid)
    by_key = dict(zip(keys_of(kept), step_ms(kept), strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    one, other = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    noise = np.abs(one - other) / ((one + other) / 2)
    return CollectivesSummary(
        folder=folder,
        samples=int((first & valid).sum()),
        skipped=int((first & ~valid).sum()),
        measured=measured,
        seconds=seconds,
        repeat_median=float(np.median(noise)) if noise.size else float("nan"),
        repeat_mean=float(noise.mean()) if noise.size else float("nan"),
    )
