"""AutoShard's networks as plain arrays, and greedy placement with them. It avoids torch, which takes seconds to import.

The networks, from the paper and the authors' public code:

    encoding of a table   = relu(128→32 · relu(21→128 · standardised features))                      32 numbers
    cost of a device      = 64→1 · relu(32→64 · sum of its tables' encodings)                        forward + backward ms
    input of the LSTM     = encoding of the table to place, relu(1→32 · share of tables placed)      64
    state                 = output of a two-layer LSTM                                               64
    device                = sum of its encodings, relu(2→32 · predicted cost and memory)             64
    logit of a device     = 192→128→128→64→1 · (state, device, state × device)
    value                 = 64→64→1 · state

Letters: n units, d devices. Weights are stored `(out, in)`.

The policy's first layer, W · (state, device, state × device), equals (W_device + W_both · diag(state)) · device + W_state · state. So one
matrix per step serves all devices.

References:
    [autoshard] Zha et al., AutoShard: Automated Embedding Table Sharding for Recommender Systems, KDD 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.neuroshard.model import Shapes, evaluate, layer_shapes, layers_of
from shardwright.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.learned.policy_files import SavedPolicy
from shardwright.tensor_files import check_weights

NAME = "autoshard"
FEATURES, ENCODING, STATE = len(TABLE_FEATURES), 32, 64
ENCODER_SIZES = (FEATURES, 128, ENCODING)
COST_SIZES = (ENCODING, 64, 1)
SHARE_SIZES = (1, STATE - ENCODING)
DEVICE_SIZES = (2, STATE - ENCODING)
POLICY_SIZES = (3 * STATE, 128, 128, 64, 1)
VALUE_SIZES = (STATE, 64, 1)
LSTM_LAYERS = 2
LEAST_SHARE = 1e-2
"""Least even share of a task's cost, in units of `cost_scale`; it prevents a division by 0."""

SHAPES: Shapes = {
    "feature_mean": (FEATURES,),
    "feature_scale": (FEATURES,),
    "cost_scale": (1,),
    **layer_shapes("encoder", ENCODER_SIZES),
    **layer_shapes("cost", COST_SIZES),
    **layer_shapes("share", SHARE_SIZES),
    **layer_shapes("device", DEVICE_SIZES),
    **layer_shapes("policy", POLICY_SIZES),
    **layer_shapes("value", VALUE_SIZES),
    **{f"lstm.weight_{kind}_l{layer}": (4 * STATE, STATE) for layer in range(LSTM_LAYERS) for kind in ("ih", "hh")},
    **{f"lstm.bias_{kind}_l{layer}": (4 * STATE,) for layer in range(LSTM_LAYERS) for kind in ("ih", "hh")},
}
"""Names and shapes of the arrays in a policy file."""

_TIE = 1e-9  # relative difference below which logits count as equal: rounding must not decide between equal devices


class AutoShardWeights:
    """The networks of a saved policy, in double precision.

    Attributes:
        published: whether the policy sees predicted costs in ms, as in the paper, instead of relative to an even share.

    Raises:
        InvalidInput: an array is missing, has another shape, or is not finite.
    """

    def __init__(self, policy: SavedPolicy) -> None:
        check_weights(policy.weights, SHAPES, "autoshard policy", "learn it again with 'shardwright learn autoshard'")
        self.published = policy.metadata.get("method") == "paper"
        self._weights = w = {name: array.astype(np.float64) for name, array in policy.weights.items()}
        self._encoder, self._cost, self._share, self._device, policy_layers = (
            layers_of(policy.weights, name, len(sizes) - 1)
            for name, sizes in (
                ("encoder", ENCODER_SIZES), ("cost", COST_SIZES), ("share", SHARE_SIZES), ("device", DEVICE_SIZES),
                ("policy", POLICY_SIZES),
            )
        )  # fmt: skip
        first, self._between, (self._last, _) = policy_layers[0], policy_layers[1:-1], policy_layers[-1]
        self._on_state, self._on_device, self._on_both = np.split(first[0].T, 3)
        self._first_bias = first[1]
        self._lstm = [
            (
                np.hstack([w[f"lstm.weight_{kind}_l{layer}"] for kind in ("ih", "hh")]).T,
                w[f"lstm.bias_ih_l{layer}"] + w[f"lstm.bias_hh_l{layer}"],
            )
            for layer in range(LSTM_LAYERS)
        ]

    def encode(self, features: Floats) -> Floats:
        """`(b, 32)` encodings of blocks from `(b, 21)` table features."""
        standardised = (features - self._weights["feature_mean"]) * self._weights["feature_scale"]
        return np.maximum(evaluate(self._encoder, standardised), 0.0)

    def relative_cost(self, sums: Floats) -> Floats:
        """`(...)` predicted forward + backward time from `(..., 32)` sums of encodings, in units of `cost_scale` ms."""
        return evaluate(self._cost, sums)[..., 0]

    def device(self, sums: Floats, facts: Floats) -> Floats:
        """`(d, 64)` the policy's input for devices: their sums of encodings, and a code of their `(d, 2)` predicted cost and memory."""
        return np.hstack([sums, np.maximum(evaluate(self._device, facts), 0.0)])

    def advance(self, hidden: Floats, cell: Floats, unit: Floats, share: float) -> None:
        """Advance the LSTM in place by one unit, from its encoding and the share of units placed; `hidden[1]` becomes the state."""
        below = np.concatenate([unit, np.maximum(evaluate(self._share, np.array([share])), 0.0)])
        for layer, (weight, bias) in enumerate(self._lstm):
            gates = np.concatenate([below, hidden[layer]]) @ weight + bias
            let_in, kept, new, shown = gates.reshape(4, STATE)
            cell[layer] = _sigmoid(kept) * cell[layer] + _sigmoid(let_in) * np.tanh(new)
            below = hidden[layer] = _sigmoid(shown) * np.tanh(cell[layer])

    def logits(self, state: Floats, devices: Floats) -> Floats:
        """`(d,)` logits from a `(64,)` state and `(d, 64)` devices; the last bias is left out, as it is the same for all devices."""
        first = self._on_device + self._on_both * state[:, None]
        x = np.maximum(devices @ first + (self._first_bias + state @ self._on_state), 0.0)
        for weight, bias in self._between:
            x = np.maximum(x @ weight.T + bias, 0.0)
        return np.asarray(x @ self._last[0])


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


@dataclass(frozen=True, eq=False)
class Setting:
    """A task as the greedy placement reads it.

    Attributes:
        arrays: the task.
        units: `(n, 32)` sums of the encodings of each unit's blocks.
        fixed: `(d, 32)` sums of the encodings of the settled shards.
        even: predicted cost of an even share of everything, in units of `cost_scale`; 1 for a published policy.
        order: `(n,)` units by the predicted cost of the unit alone, largest first.
    """

    arrays: PlacementArrays
    units: Floats
    fixed: Floats
    even: float
    order: Ints

    @classmethod
    def of(cls, arrays: PlacementArrays, weights: AutoShardWeights) -> Setting:
        """Encode a task."""
        blocks = weights.encode(arrays.features)
        units = np.zeros((len(arrays), ENCODING))
        np.add.at(units, arrays.unit_of, blocks)
        fixed = arrays.fixed_on.T.astype(np.float64) @ weights.encode(arrays.fixed_features)
        total = units.sum(axis=0) + fixed.sum(axis=0)
        even = max(LEAST_SHARE, float(weights.relative_cost(total / arrays.devices))) if not weights.published else 1.0
        return cls(arrays, units, fixed, even, np.argsort(-weights.relative_cost(units), kind="stable"))


def decode(
    setting: Setting, weights: AutoShardWeights, order: Ints, noise: Floats | None = None, logits: Floats | None = None
) -> tuple[int, Ints]:
    """Place the units in `order`.

    Args:
        setting: the task.
        weights: the policy.
        order: `(n,)` units in the order of placement.
        noise: `(n, d)` noise to add to the logits of each unit.
        logits: `(n, d)` array to fill with the logits of each unit; minus infinity for devices that may not take the unit.

    Returns:
        The first unit for which no device is left, or -1; and the `(n,)` device of each unit.
    """
    arrays = setting.arrays
    hidden, cell, used = np.zeros((2, STATE)), np.zeros((2, STATE)), arrays.used.copy()
    sums, occupied = setting.fixed.copy(), np.asarray(arrays.fixed_on.any(axis=0))
    assignment: Ints = np.full(len(arrays), -1, dtype=np.int64)

    def described(of: slice) -> Floats:
        cost = np.where(occupied[of], weights.relative_cost(sums[of]) / setting.even, 0.0)
        return weights.device(sums[of], np.stack([cost, used[of] / np.maximum(arrays.memory[of], 1)], axis=1))

    holds = described(slice(None))
    for step, unit in enumerate(order.tolist()):
        weights.advance(hidden, cell, setting.units[unit], step / len(arrays))
        able = arrays.able(unit, used, assignment)
        scores = np.where(able, weights.logits(hidden[1], holds), -np.inf)
        if logits is not None:
            logits[unit] = scores
        if not able.any():
            return unit, assignment
        best = _best(scores if noise is None else scores + noise[unit], arrays.memory - used)
        assignment[unit] = best
        used[best] += arrays.bytes[unit]
        sums[best] += setting.units[unit]
        occupied[best] = True
        holds[best] = described(slice(best, best + 1))[0]
    return -1, assignment


def _best(scores: Floats, room: Ints) -> int:
    """The device with the highest score; among equals the one with most memory left, so that device numbers do not matter."""
    highest = scores.max()
    equal = scores >= highest - _TIE * (1 + abs(highest))
    return int(np.argmax(np.where(equal, room, np.iinfo(np.int64).min)))
