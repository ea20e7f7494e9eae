"""A DreamShard policy as plain arrays, applied to a task with numpy alone. It avoids torch, which takes seconds to import.

Letters: n units, d devices, q pre-activations of the cost heads (192), k heads (3), c and h hidden numbers of the cost features.

Sums of encodings always enter linear layers first. So for each device the policy keeps the outputs of these layers, and the device's
value; both change only on the device that takes a unit. At each step, every device is priced with the current unit added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.neuroshard.model import Shapes, layer_shapes
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.learned.policy_files import SavedPolicy
from shardwright.tensor_files import check_weights

NAME = "dreamshard"
HIDDEN, ENCODING, HEAD_HIDDEN, COST_HIDDEN = 128, 32, 64, 64
SIZES = 4
"""Number of features that are logarithms of sizes; they come first."""
MOST_LOG = 8.0
"""Largest logarithm of the factor by which sizes change an encoding; a limit for tables unlike the training tables."""
FARTHEST = 3.0
"""Standard deviations from its mean at which a feature is clipped, as features of unseen tables may lie far outside the training range."""
SHARE_GAIN = 4.0
"""Factor on shares; the differences between devices that matter are small."""
FIRST_POWER = 28.0
"""Exponent of (1 + cost / cost of an even share) / 2 in the value of a device before training."""
FIRST_URGENCY = 10.0
"""Factor on that power before training; the larger it is, the more samples of the policy keep to the likeliest device."""
MOST_URGENT = 20.0
"""Logarithm above which such a power continues as its tangent, so that the value of a slow device still changes with its load."""
HEADS = 3
"""Number of cost heads: forward, backward, backward communication."""
LEAST_EVEN = 0.01
"""Least cost of an even share, as a share of the head's scale, so that costs can be divided by it."""

Array: TypeAlias = npt.NDArray[np.float64]


def _encoder(name: str) -> Shapes:
    sizes = (len(TABLE_FEATURES), HIDDEN, ENCODING)
    return {**layer_shapes(f"{name}.layers", sizes), f"{name}.powers": (SIZES, ENCODING)}


SHAPES: Shapes = {
    "feature_mean": (len(TABLE_FEATURES),),
    "feature_std": (len(TABLE_FEATURES),),
    **_encoder("cost.encoder"),
    "cost.heads.weight": (HEADS * HEAD_HIDDEN, ENCODING),
    "cost.heads.bias": (HEADS * HEAD_HIDDEN,),
    "cost.mix": (HEADS, HEAD_HIDDEN),
    "cost.bias": (HEADS,),
    **layer_shapes("cost.overall", (ENCODING, HEAD_HIDDEN, 1)),
    "cost.scale": (HEADS + 1,),
    **_encoder("policy.encoder"),
    **layer_shapes("policy.costs", (HEADS, COST_HIDDEN, ENCODING)),
    "policy.logit.weight": (1, 2 * ENCODING),
    "policy.urgency": (HEADS,),
    "policy.power": (HEADS,),
}
"""Names and shapes of a policy's arrays. Heads are stacked: rows 64 k … 64 k + 63 of `cost.heads` belong to head k."""


STUCK = -1


@dataclass(frozen=True, eq=False)
class EncodedTask:
    """A task as a policy sees it.

    Attributes:
        arrays: the task.
        order: `(n,)` units by the predicted cost of a device that holds the unit alone, largest first.
        hidden: `(n, q)` term that each unit adds to a device's pre-activations.
        start: `(d, q)` the devices' pre-activations before the first unit is placed.
        even: `(k,)` ms of a device with an even share of everything.
        load: `(n,)` term that each unit adds to the logit of its device.
        start_load: `(d,)` term that settled shards add to the logit of each device.
    """

    arrays: PlacementArrays
    order: Ints
    hidden: Floats
    start: Floats
    even: Floats
    load: Floats
    start_load: Floats


class Policy:
    """A policy in double precision.

    Raises:
        InvalidInput: an array is missing, has another shape or is not finite, or a standard deviation is not positive.
    """

    def __init__(self, saved: SavedPolicy) -> None:
        learn = "learn it again with 'shardwright learn dreamshard'"
        check_weights(saved.weights, SHAPES, "dreamshard policy", learn)
        if not (saved.weights["feature_std"] > 0).all():
            raise InvalidInput(f"dreamshard policy: feature_std must be positive; {learn}")
        self._w = w = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in saved.weights.items()}
        self._published = saved.metadata.get("method") == "paper"
        scale = w["cost.scale"][:HEADS]
        # The second layers of the cost heads, to ms.
        self._mix, self._bias = w["cost.mix"] * scale[:, None], w["cost.bias"] * scale
        self._first = w["policy.costs.0.weight"] * (1.0 if self._published else SHARE_GAIN)
        self._logit = w["policy.logit.weight"][0, ENCODING:].copy()
        self._urgency = w["policy.urgency"] - w["policy.power"] * math.log(2)

    def encode(self, arrays: PlacementArrays) -> EncodedTask:
        """Encode a task."""
        w, devices = self._w, arrays.devices
        units, fixed = self._sums("cost.encoder", arrays)
        own, own_fixed = self._sums("policy.encoder", arrays)
        layer, bias = w["cost.heads.weight"].T, w["cost.heads.bias"]
        alone = self.device_costs(units @ layer + bias).sum(axis=1)
        even = self.device_costs(((units.sum(axis=0) + fixed.sum(axis=0)) / devices) @ layer + bias)
        held = 1.0 if self._published else max(len(arrays) / devices, 1.0)
        logit = w["policy.logit.weight"][0, :ENCODING] / held
        return EncodedTask(
            arrays=arrays,
            order=np.argsort(-alone, kind="stable"),
            hidden=units @ layer,
            start=fixed @ layer + bias,
            even=np.maximum(even, LEAST_EVEN * w["cost.scale"][:HEADS]),
            load=own @ logit,
            start_load=own_fixed @ logit,
        )

    def device_costs(self, hidden: Floats) -> Floats:
        """`(..., k)` ms from `(..., q)` pre-activations."""
        active = np.maximum(hidden, 0.0).reshape(*hidden.shape[:-1], HEADS, HEAD_HIDDEN)
        return np.asarray((active * self._mix).sum(axis=-1) + self._bias)

    def place(self, encoded: EncodedTask, order: Ints | None = None, noise: Floats | None = None) -> Ints:
        """`(n,)` device of each unit; `STUCK` from the first unit on for which no device is left.

        Args:
            encoded: the task.
            order: units in the order of placement; by predicted cost if not given.
            noise: `(n, d)` noise to add to the logits; Gumbel noise makes the choices samples of the policy.
        """
        arrays, per_even = encoded.arrays, 1.0 / encoded.even
        states, loads, used = encoded.start.copy(), encoded.start_load.copy(), arrays.used.copy()
        assignment = np.full(len(arrays), STUCK)
        values = self._values(states, per_even)
        for unit in (encoded.order if order is None else order).tolist():
            added = self._values(states + encoded.hidden[unit], per_even)
            able = arrays.able(unit, used, assignment)
            if not able.any():
                return assignment
            logits = loads + values if self._published else loads + added - values
            if noise is not None:
                logits += noise[unit]
            best = int(np.argmax(np.where(able, logits, -np.inf)))
            assignment[unit] = best
            used[best] += arrays.bytes[unit]
            loads[best] += encoded.load[unit]
            values[best] = added[best]
            states[best] += encoded.hidden[unit]
        return assignment

    def _values(self, states: Floats, per_even: Floats) -> Floats:
        """`(d,)` values of devices from their `(d, q)` pre-activations, by log(1 + costs / costs of an even share).

        In the paper, values depend on the costs themselves, and the logit takes the value, not its change by the unit.
        """
        w = self._w
        active = np.maximum(states, 0.0).reshape(len(states), *self._mix.shape)
        costs = np.einsum("dkh,kh->dk", active, self._mix) + self._bias
        shares = costs if self._published else np.log1p(np.maximum(costs, 0.0) * per_even)
        wide = np.maximum(shares @ self._first.T + w["policy.costs.0.bias"], 0.0)
        good: Floats = np.maximum(wide @ w["policy.costs.1.weight"].T + w["policy.costs.1.bias"], 0.0) @ self._logit
        if self._published:
            return good
        power = w["policy.power"]
        logarithm, steep = self._urgency + power * shares, np.maximum(power, 1.0)
        beyond = np.expm1(np.maximum(logarithm - MOST_URGENT, 0.0) / steep)
        bad = np.exp(np.minimum(logarithm, MOST_URGENT)) * (1.0 + steep * beyond)
        return np.asarray(good - bad.sum(axis=1))

    def _sums(self, name: str, arrays: PlacementArrays) -> tuple[Floats, Floats]:
        """`(n, 32)` encodings of the units, and `(d, 32)` sums of the encodings of settled shards on each device."""
        encoded = self._encoder(name, np.concatenate([arrays.features, arrays.fixed_features]))
        units = np.zeros((len(arrays), ENCODING))
        np.add.at(units, arrays.unit_of, encoded[: len(arrays.features)])
        return units, arrays.fixed_on.T.astype(np.float64) @ encoded[len(arrays.features) :]

    def _encoder(self, name: str, x: Floats) -> Floats:
        x = np.clip((x - self._w["feature_mean"]) / self._w["feature_std"], -FARTHEST, FARTHEST)
        size = np.exp(np.clip(x[:, :SIZES] @ self._w[f"{name}.powers"], -MOST_LOG, MOST_LOG))
        for layer in (0, 1):
            x = np.maximum(x @ self._w[f"{name}.layers.{layer}.weight"].T + self._w[f"{name}.layers.{layer}.bias"], 0.0)
        return x * size
