"""A cost model for tests: small, fixed and convex, with plausible preferences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel, Pricing


@dataclass(frozen=True)
class SimpleCostModel(CostModel):
    """Time grows with values looked up, distinct values and outputs. It grows faster once the distinct values overflow a cache."""

    name: str = "testing/simple"

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 3)` sizes in units like ms: values looked up, distinct values, outputs."""
        w = works
        return np.stack([w.lookups * w.dim, w.distinct * w.dim, w.outputs * w.dim], axis=1) * 1e-5

    @property
    def pricing(self) -> Pricing:
        """Forward and backward prices, both with a kink at 1 ms of distinct values, which fill the cache."""
        return Pricing(
            hidden=np.array([[0.0, 1.0, 0.0]]),
            hidden_bias=np.array([-1.0]),
            mix=np.array([[1.0], [2.0]]),
            linear=np.array([[1.0, 0.0, 0.3], [1.5, 1.0, 0.0]]),
            bias=np.array([0.01, 0.02]),
        )
