"""How sums of encodings become time, as plain arrays that the engine can evaluate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Pricing:
    """The time of a fused call, and of a device, which makes one or several; forward and backward apart.

        call = max(0, mix · relu(hidden · sum + hidden_bias) + linear · sum + bias)       sum: of the encodings of its shards
        device = Σ of its calls + once                                                    0 for a device without a shard

    Attributes:
        hidden: `(h, latent)`; h may be 0, which makes the time linear.
        hidden_bias: `(h,)`.
        mix: `(2, h)`; the time is convex in the sum where it has no negative entry.
        linear: `(2, latent)`.
        bias: `(2,)` ms.
        once: `(2,)` ms that a device with shards takes besides its calls; not negative.
    """

    hidden: Floats
    hidden_bias: Floats
    mix: Floats
    linear: Floats
    bias: Floats
    once: Floats = field(default_factory=lambda: np.zeros(2))

    @property
    def convex(self) -> bool:
        """Whether the time is convex in the sum."""
        return bool((self.mix >= 0).all())

    def price(self, sums: Floats) -> Floats:
        """`(..., 2)` forward and backward ms of calls from `(..., latent)` sums; never negative."""
        active = np.maximum(sums @ self.hidden.T + self.hidden_bias, 0.0)
        times: Floats = np.maximum(active @ self.mix.T + sums @ self.linear.T + self.bias, 0.0)
        return times

    def devices(self, sums: Floats, present: Bools) -> Floats:
        """`(..., 2)` forward and backward ms of devices.

        Args:
            sums: `(..., calls, latent)` of the shards in each call.
            present: `(..., calls)` which calls a device makes; one that it does not make costs nothing.
        """
        of_calls = np.where(present[..., None], self.price(sums), 0.0).sum(axis=-2)
        times: Floats = of_calls + present.any(axis=-1, keepdims=True) * self.once
        return times
