"""From a sketch to its ids by hotness: the keys of integers are a one-to-one scramble, so the ids can be had back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.workload.profile.keys import unscramble
from shardwright.workload.profile.sketch import AccessSketch


def hottest_ids(sketch: AccessSketch, limit: int | None = None) -> npt.NDArray[np.int64]:
    """`(n,)` ids hottest first, those with the same count in ascending order.

    In a sketch that is not exact only ids that occurred more often than any id it does not hold: of others the order is unknown. Those
    it counted from the middle of the log on are taken at the middle of what their count may be.

    Args:
        sketch: accesses of a table whose ids are integers below 2 ** 63.
        limit: most ids; default all.
    """
    keys = np.concatenate([sketch.sample_keys, sketch.heavy_keys])
    counts = np.concatenate([sketch.sample_counts, sketch.heavy_counts + sketch.heavy_missed / 2])
    known = counts > sketch.error
    ids, counts = unscramble(keys[known]).astype(np.int64), counts[known]
    return ids[np.lexsort((ids, -counts))][:limit]
