"""A policy applied to a task, with numpy alone: torch takes seconds to import.

Letters: n units, d devices, q pre-activations of the cost heads (192), k heads (3), c and h hidden numbers of the cost features.

All sums of encodings enter through linear layers first, so a device is kept as what those layers make of its sum, beside its value; both
change where a unit is placed only. With the unit in turn, every device is priced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright.search.dreamshard.weights import (
    ENCODING,
    FARTHEST,
    HEAD_HIDDEN,
    HEADS,
    LEAST_EVEN,
    MOST_LOG,
    MOST_URGENT,
    SHARE_GAIN,
    SIZES,
    checked,
)
from shardwright.search.learned.arrays import Floats, Ints, PlacementArrays
from shardwright.search.learned.policy_files import SavedPolicy

STUCK = -1


class Heads(NamedTuple):
    """Weights that placing needs.

    Attributes:
        mix: `(k, 64)` second layers of the cost heads, scaled to ms.
        bias: `(k,)` likewise.
        first: `(c, k)` and `first_bias` `(c,)` of the cost features.
        second: `(h, c)` and `second_bias` `(h,)` likewise.
        logit: `(h,)`.
        urgency: `(k,)` logarithm of the factor of a power of each share.
        power: `(k,)` the power.
    """

    mix: Floats
    bias: Floats
    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    logit: Floats
    urgency: Floats
    power: Floats


@dataclass(frozen=True, eq=False)
class Encoded:
    """A task as a policy sees it.

    Attributes:
        arrays: the task.
        order: `(n,)` units by their predicted cost alone on a device, largest first.
        hidden: `(n, q)` what each unit adds to a device's pre-activations.
        start: `(d, q)` the devices' pre-activations before the first unit is placed.
        even: `(k,)` ms of a device with an even share of everything.
        load: `(n,)` what a unit adds to the logit of its device.
        start_load: `(d,)` what settled shards add.
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

    Args:
        saved: the policy.

    Raises:
        InvalidInput: an array is missing or has another shape.
    """

    def __init__(self, saved: SavedPolicy) -> None:
        self._w = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in checked(saved).items()}
        w = self._w
        scale = w["cost.scale"][:HEADS]
        self.heads = Heads(
            mix=w["cost.mix"] * scale[:, None],
            bias=w["cost.bias"] * scale,
            first=w["policy.costs.0.weight"] * SHARE_GAIN,
            first_bias=w["policy.costs.0.bias"],
            second=w["policy.costs.1.weight"],
            second_bias=w["policy.costs.1.bias"],
            logit=w["policy.logit.weight"][0, ENCODING:].copy(),
            urgency=w["policy.urgency"] - w["policy.power"] * math.log(2),
            power=w["policy.power"],
        )

    def encode(self, arrays: PlacementArrays) -> Encoded:
        """Encode a task."""
        w, devices = self._w, arrays.devices
        units, fixed = self._sums("cost.encoder", arrays)
        own, own_fixed = self._sums("policy.encoder", arrays)
        layer, bias = w["cost.heads.weight"].T, w["cost.heads.bias"]
        alone = self.device_costs(units @ layer + bias).sum(axis=1)
        even = self.device_costs(((units.sum(axis=0) + fixed.sum(axis=0)) / devices) @ layer + bias)
        logit = w["policy.logit.weight"][0, :ENCODING] / max(len(arrays) / devices, 1.0)
        return Encoded(
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
        return np.asarray((active * self.heads.mix).sum(axis=-1) + self.heads.bias)

    def place(self, encoded: Encoded, order: Ints | None = None, noise: Floats | None = None) -> Ints:
        """`(n,)` device of each unit, or `STUCK` from the first unit on for which no device is left.

        Args:
            encoded: the task.
            order: units in the order in which they are placed; by predicted cost if not given.
            noise: `(n, d)` added to logits: of a Gumbel distribution, it makes the choice a sample of the policy.
        """
        return _place(encoded, self.heads, encoded.order if order is None else order, noise)

    def _sums(self, name: str, arrays: PlacementArrays) -> tuple[Floats, Floats]:
        """`(n, 32)` encodings of the units and `(d, 32)` sums of those of settled shards."""
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


def _place(encoded: Encoded, heads: Heads, order: Ints, noise: Floats | None) -> Ints:
    """Place unit by unit on the device with the highest logit, plus noise, among those with room."""
    arrays, per_even = encoded.arrays, 1.0 / encoded.even
    states, loads, used = encoded.start.copy(), encoded.start_load.copy(), arrays.used.copy()
    apart = bool(arrays.rivals.any())
    assignment = np.full(order.size, STUCK)
    values = _values(states, heads, per_even)
    for unit in order.tolist():
        added = _values(states + encoded.hidden[unit], heads, per_even)
        able = arrays.allowed[unit] & (used + arrays.bytes[unit] <= arrays.memory)
        if apart:
            theirs = assignment[arrays.rivals[unit]]
            able[theirs[theirs >= 0]] = False
        if not able.any():
            return assignment
        logits = loads + added - values
        if noise is not None:
            logits += noise[unit]
        best = int(np.argmax(np.where(able, logits, -np.inf)))
        assignment[unit] = best
        used[best] += arrays.bytes[unit]
        loads[best] += encoded.load[unit]
        values[best] = added[best]
        states[best] += encoded.hidden[unit]
    return assignment


def _values(states: Floats, heads: Heads, per_even: Floats) -> Floats:
    """`(d,)` how good it is for devices to have such `(d, q)` pre-activations: by log(1 + costs over those of an even share)."""
    active = np.maximum(states, 0.0).reshape(len(states), *heads.mix.shape)
    costs = np.einsum("dkh,kh->dk", active, heads.mix) + heads.bias
    shares = np.log1p(np.maximum(costs, 0.0) * per_even)
    wide = np.maximum(shares @ heads.first.T + heads.first_bias, 0.0)
    good = np.maximum(wide @ heads.second.T + heads.second_bias, 0.0) @ heads.logit
    logarithm, steep = heads.urgency + heads.power * shares, np.maximum(heads.power, 1.0)
    beyond = np.expm1(np.maximum(logarithm - MOST_URGENT, 0.0) / steep)
    bad = np.exp(np.minimum(logarithm, MOST_URGENT)) * (1.0 + steep * beyond)
    found: Floats = good - bad.sum(axis=1)
    return found
