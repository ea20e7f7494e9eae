"""A policy applied to a task, without torch: encoding with numpy, placing in compiled code.

Letters: n units, d devices, q pre-activations of the cost heads (192), k heads (3), c and h hidden numbers of the cost features.

All sums of encodings enter through linear layers first, so a device is kept as what those layers make of its sum, beside its value; both
change where a unit is placed only. With the unit in turn, every device is priced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.jit import compiled, inner
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
from shardwright.search.learned.arrays import Bools, Floats, Ints, PlacementArrays
from shardwright.search.learned.policy_files import SavedPolicy

STUCK = -1


class Heads(NamedTuple):
    """Weights that compiled code needs.

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
        arrays = encoded.arrays
        return np.asarray(
            _place(
                encoded.order if order is None else order,
                encoded.hidden, encoded.start, 1.0 / encoded.even, encoded.load, encoded.start_load,
                np.zeros((0, 0)) if noise is None else noise,
                arrays.bytes, arrays.used, arrays.memory, arrays.allowed,
                arrays.rivals if arrays.rivals.any() else np.zeros((0, 0), dtype=np.bool_),
                *self.heads,
            )
        )  # fmt: skip

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


@compiled
def _place(
    order: Ints, hidden: Floats, start: Floats, per_even: Floats, load: Floats, start_load: Floats, noise: Floats,
    unit_bytes: Ints, used: Ints, memory: Ints, allowed: Bools, rivals: Bools,
    mix: Floats, bias: Floats, first: Floats, first_bias: Floats, second: Floats, second_bias: Floats, logit: Floats,
    urgency: Floats, power: Floats,
) -> Ints:  # fmt: skip
    """Place unit by unit on the device with the highest logit, plus noise, among those with room."""
    devices, nothing = used.size, np.zeros(hidden.shape[1])
    states, loads, used = start.copy(), start_load.copy(), used.copy()
    assignment = np.full(order.size, STUCK)
    costs, wide = np.empty(mix.shape[0]), np.empty(first.shape[0])
    values, added = np.empty(devices), np.empty(devices)
    for device in range(devices):
        _shares(states[device], nothing, mix, bias, per_even, costs)
        values[device] = _value(costs, wide, first, first_bias, second, second_bias, logit, urgency, power)
    for unit in order:
        best, highest = STUCK, -np.inf
        for device in range(devices):
            if not allowed[unit, device] or used[device] + unit_bytes[unit] > memory[device]:
                continue
            if rivals.size and np.any(rivals[unit] & (assignment == device)):
                continue
            _shares(states[device], hidden[unit], mix, bias, per_even, costs)
            added[device] = _value(costs, wide, first, first_bias, second, second_bias, logit, urgency, power)
            value = loads[device] + added[device] - values[device]
            if noise.size:
                value += noise[unit, device]
            if value > highest or best < 0:
                best, highest = device, value
        if best < 0:
            return assignment
        assignment[unit] = best
        used[best] += unit_bytes[unit]
        loads[best] += load[unit]
        values[best] = added[best]
        for index in range(states.shape[1]):
            states[best, index] += hidden[unit, index]
    return assignment


@inner
def _shares(
    state: Floats, added: Floats, mix: Floats, bias: Floats, per_even: Floats, shares: npt.NDArray[np.float64]
) -> None:
    """log(1 + costs of a device with a unit added, over those of an even share)."""
    hidden = mix.shape[1]
    for head in range(mix.shape[0]):
        total = bias[head]
        for index in range(hidden):
            value = state[head * hidden + index] + added[head * hidden + index]
            total += mix[head, index] * max(value, 0.0)
        shares[head] = np.log1p(max(total, 0.0) * per_even[head])


@inner
def _value(
    shares: Floats, wide: Floats, first: Floats, first_bias: Floats, second: Floats, second_bias: Floats, logit: Floats,
    urgency: Floats, power: Floats,
) -> float:  # fmt: skip
    """How good it is for a device to have such shares."""
    for row in range(first.shape[0]):
        total = first_bias[row]
        for column in range(shares.size):
            total += first[row, column] * shares[column]
        wide[row] = max(total, 0.0)
    result = 0.0
    for row in range(second.shape[0]):
        total = second_bias[row]
        for column in range(wide.size):
            total += second[row, column] * wide[column]
        result += logit[row] * max(total, 0.0)
    for head in range(shares.size):
        logarithm, steep = urgency[head] + power[head] * shares[head], max(power[head], 1.0)
        beyond = np.expm1(max(logarithm - MOST_URGENT, 0.0) / steep)
        result -= np.exp(min(logarithm, MOST_URGENT)) * (1.0 + steep * beyond)
    return result
