"""How a sum of encodings becomes time, as plain arrays that compiled code can evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pricing:
    """time = max(0, mix · relu(hidden · sum + hidden_bias) + linear · sum + bias), for forward and backward.

    Attributes:
        hidden: `(h, latent)`; h may be 0, which makes the time linear.
        hidden_bias: `(h,)`.
        mix: `(2, h)`; the time is convex in the sum where it has no negative entry.
        linear: `(2, latent)`.
        bias: `(2,)` ms.
    """

    hidden: Floats
    hidden_bias: Floats
    mix: Floats
    linear: Floats
    bias: Floats

    @property
    def convex(self) -> bool:
        """Whether the time is convex in the sum."""
        return bool((self.mix >= 0).all())

    def price(self, sums: Floats) -> Floats:
        """`(..., 2)` forward and backward ms from `(..., latent)` sums; never negative."""
        active = np.maximum(sums @ self.hidden.T + self.hidden_bias, 0.0)
        times: Floats = np.maximum(active @ self.mix.T + sums @ self.linear.T + self.bias, 0.0)
        return times
