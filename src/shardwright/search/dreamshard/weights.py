"""A saved DreamShard policy as plain arrays: their names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput
from shardwright.search.learned.arrays import TABLE_FEATURES
from shardwright.search.learned.policy_files import SavedPolicy

NAME = "dreamshard"
HIDDEN, ENCODING, HEAD_HIDDEN, COST_HIDDEN = 128, 32, 64, 64
SIZES = 4
"""Features that are logarithms of sizes; they come first."""
MOST_LOG = 8.0
"""Largest logarithm of the factor by which sizes change an encoding: a stop for tables unlike those learned from."""
FARTHEST = 3.0
"""Most standard deviations that a feature may be from its mean; features of unseen tables may lie far outside of what was learned from."""
SHARE_GAIN = 4.0
"""Factor on shares, which differ by little between devices where it matters."""
FIRST_POWER = 28.0
"""Of (1 + share) / 2 in the value of a device before training."""
FIRST_URGENCY = 10.0
"""Its factor then: the larger, the more a sample of the policy keeps to the likeliest device."""
MOST_URGENT = 20.0
"""Logarithm from which on such a power is continued as its tangent, so that no device is ever too slow to get worse."""
HEADS = 3
"""Forward, backward, backward communication."""
LEAST_EVEN = 0.01
"""Of a head's scale: what an even share is taken to cost at least, so that costs can be divided by it."""

Objective: TypeAlias = Literal["step", "embedding"]
"""What the overall cost is: step time, or the papers' embedding cost."""

Array: TypeAlias = npt.NDArray[np.float64]


def _encoder(name: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.layers.0.weight": (HIDDEN, len(TABLE_FEATURES)),
        f"{name}.layers.0.bias": (HIDDEN,),
        f"{name}.layers.1.weight": (ENCODING, HIDDEN),
        f"{name}.layers.1.bias": (ENCODING,),
        f"{name}.powers": (SIZES, ENCODING),
    }


SHAPES: dict[str, tuple[int, ...]] = {
    "feature_mean": (len(TABLE_FEATURES),),
    "feature_std": (len(TABLE_FEATURES),),
    **_encoder("cost.encoder"),
    "cost.heads.weight": (HEADS * HEAD_HIDDEN, ENCODING),
    "cost.heads.bias": (HEADS * HEAD_HIDDEN,),
    "cost.mix": (HEADS, HEAD_HIDDEN),
    "cost.bias": (HEADS,),
    "cost.overall.0.weight": (HEAD_HIDDEN, ENCODING),
    "cost.overall.0.bias": (HEAD_HIDDEN,),
    "cost.overall.1.weight": (1, HEAD_HIDDEN),
    "cost.overall.1.bias": (1,),
    "cost.scale": (HEADS + 1,),
    **_encoder("policy.encoder"),
    "policy.costs.0.weight": (COST_HIDDEN, HEADS),
    "policy.costs.0.bias": (COST_HIDDEN,),
    "policy.costs.1.weight": (ENCODING, COST_HIDDEN),
    "policy.costs.1.bias": (ENCODING,),
    "policy.logit.weight": (1, 2 * ENCODING),
    "policy.urgency": (HEADS,),
    "policy.power": (HEADS,),
}
"""Arrays of a policy; heads are stacked: rows 64 k … 64 k + 63 of `cost.heads` belong to head k."""


def checked(policy: SavedPolicy) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays of a policy.

    Raises:
        InvalidInput: one is missing or has another shape, or a standard deviation is not positive.
    """
    for name, shape in SHAPES.items():
        found = policy.weights.get(name)
        if found is None or found.shape != shape:
            held = "is missing" if found is None else f"has shape {found.shape}"
            raise InvalidInput(
                f"dreamshard policy: {name} {held}, must be an array of shape {shape}; learn the policy again"
            )
    if not (policy.weights["feature_std"] > 0).all():
        raise InvalidInput("dreamshard policy: feature_std must be positive; learn the policy again")
    return policy.weights
