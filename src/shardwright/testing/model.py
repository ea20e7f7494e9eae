"""A cost model for tests: small, fixed, convex, and right in what it prefers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel, Floats
from shardwright.sharding.work import ShardWork


@dataclass(frozen=True)
class SimpleCostModel:
    """Time grows with values looked up, distinct values and outputs, faster once the distinct values overflow a cache."""

    name: str = "testing/simple"
    convex: bool = True

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, 3)` ms-like sizes: values looked up, distinct values, outputs."""
        w = WorkArrays.of(works)
        outputs = np.where(w.pooled > 0, w.samples, w.lookups) * w.dim
        return np.stack([w.lookups * w.dim, w.distinct * w.dim, outputs], axis=1) * 1e-5

    def price(self, sums: Floats) -> Floats:
        """`(..., 2)` forward and backward ms."""
        overflow = np.maximum(sums[..., 1] - 1.0, 0.0)
        forward = 0.01 + sums[..., 0] + 0.3 * sums[..., 2] + overflow
        backward = 0.02 + 1.5 * sums[..., 0] + sums[..., 1] + 2 * overflow
        return np.stack([forward, backward], axis=-1)


def simple_cost_model() -> CostModel:
    """The model itself."""
    return SimpleCostModel()
