"""A cost model from public bandwidths alone, for devices nobody has measured yet.

Every byte a kernel must touch, over the memory bandwidth the vendor states, times a fixed efficiency, plus one launch:

    forward   lookups × (8 + dim × b) + outputs × 4                        ids and rows in, pooled values out
    backward  lookups × (8 + dim × 4) + distinct × (2 × dim × b + 8)       gradients in; rows and their state in and out

It knows nothing of caches or of launch-bound kernels, and its name says "analytic" wherever a plan carries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shardwright.cost.features import WorkArrays
from shardwright.cost.pricing import Floats, Pricing
from shardwright.sharding.work import ShardWork

# Bytes per second of device memory as the vendors publish them.
MEMORY_BANDWIDTH = {"rtx2080ti": 616e9, "a100": 2039e9, "h100": 3350e9, "h200": 4800e9}
_EFFICIENCY = 0.6  # share of the stated bandwidth that gather kernels reach: an assumption, not a measurement
_LAUNCH_MS = 0.02


@dataclass(frozen=True)
class AnalyticModel:
    """Bytes over bandwidth; linear, hence convex.

    Attributes:
        device: device type, a key of `MEMORY_BANDWIDTH`.
    """

    device: str
    superadditive: ClassVar[bool] = True
    """The parts of a table, however it is cut and replicated, together cost at least what the whole does."""

    @property
    def name(self) -> str:
        """As in "h200/analytic"."""
        return f"{self.device}/analytic"

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, 2)` forward and backward ms of each shard, launches aside."""
        return self.encode_arrays(WorkArrays.of(works)) if works else np.zeros((0, 2))

    def encode_arrays(self, w: WorkArrays) -> Floats:
        """`(n, 2)` likewise, of n shards given as columns."""
        outputs = np.where(w.pooled > 0, w.samples, w.lookups) * w.dim
        forward = w.lookups * (8 + w.row_bytes) + 4 * outputs
        backward = w.lookups * (8 + 4 * w.dim) + w.distinct * (2 * w.row_bytes + 8)
        return np.stack([forward, backward], axis=1) / (MEMORY_BANDWIDTH[self.device] * _EFFICIENCY) * 1e3

    @property
    def pricing(self) -> Pricing:
        """The sums themselves, and one launch each way."""
        nothing = np.zeros((0, 2))
        return Pricing(nothing, np.zeros(0), nothing.T, np.eye(2), np.full(2, _LAUNCH_MS))
