"""A saved AutoShard policy as plain arrays, and its encoder and cost head in numpy.

Facts of the networks, from the paper and the authors' public code:

    encoding of a table   = relu(128→32 · relu(21→128 · standardised features))                      32 numbers
    cost of a device      = 64→1 · relu(32→64 · sum of its tables' encodings)                        forward + backward ms
    input of the LSTM     = encoding of the table to place, relu(1→32 · share of tables placed)      64
    state                 = output of a two-layer LSTM                                               64
    device                = sum of its encodings, relu(2→32 · predicted cost and memory)             64
    logit of a device     = 192→128→128→64→1 · (state, device, state × device)
    value                 = 64→64→1 · state

References:
    [autoshard] Zha et al., AutoShard: Automated Embedding Table Sharding for Recommender Systems, KDD 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.cost.neuroshard.model import Layers, check_weights, evaluate, layer_shapes, layers_of
from shardwright.errors import InvalidInput
from shardwright.search.learned.arrays import TABLE_FEATURES
from shardwright.search.learned.policy_files import SavedPolicy

Floats = npt.NDArray[np.float64]

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
"""Of the scale of costs: no even share of a task's cost is taken to be less, so that nothing is divided by 0."""

SHAPES: dict[str, tuple[int, ...]] = {
    "feature_mean": (FEATURES,),
    "feature_scale": (FEATURES,),
    "cost_scale": (1,),
    **layer_shapes("encoder", ENCODER_SIZES),
    **layer_shapes("cost", COST_SIZES),
    **layer_shapes("share", SHARE_SIZES),
    **layer_shapes("device", DEVICE_SIZES),
    **layer_shapes("policy", POLICY_SIZES),
    **layer_shapes("value", VALUE_SIZES),
    **{
        f"lstm.{name}_l{layer}": shape
        for layer in range(LSTM_LAYERS)
        for name, shape in {
            "weight_ih": (4 * STATE, STATE),
            "weight_hh": (4 * STATE, STATE),
            "bias_ih": (4 * STATE,),
            "bias_hh": (4 * STATE,),
        }.items()
    },
}
"""Names and shapes of a policy file's arrays."""


class Decoder(NamedTuple):
    """What the compiled greedy reads; weights are stored `(in, out)`, rows of inputs next to each other.

    Attributes:
        cost_0: `(32, 64)` first layer of the cost head.
        cost_0_bias: `(64,)`.
        cost_1: `(64,)` second layer of the cost head.
        cost_1_bias: its bias.
        share: `(2, 32)` weight and bias of the placed share's layer.
        device: `(3, 32)` weights of predicted cost and memory, and the bias, of the device's layer.
        lstm: `(2, 128, 256)` weights of input and hidden state of both layers, gates input, forget, cell, output.
        lstm_bias: `(2, 256)`.
        on_state: `(64, 128)` first layer of the policy, on the state.
        on_device: `(64, 128)` the same, on the device.
        on_both: `(64, 128)` the same, on state × device.
        bias_0: `(128,)`.
        layer_1: `(128, 128)`.
        bias_1: `(128,)`.
        layer_2: `(128, 64)`.
        bias_2: `(64,)`.
        layer_3: `(64,)`.
    """

    cost_0: Floats
    cost_0_bias: Floats
    cost_1: Floats
    cost_1_bias: float
    share: Floats
    device: Floats
    lstm: Floats
    lstm_bias: Floats
    on_state: Floats
    on_device: Floats
    on_both: Floats
    bias_0: Floats
    layer_1: Floats
    bias_1: Floats
    layer_2: Floats
    bias_2: Floats
    layer_3: Floats


class AutoShardWeights:
    """The networks of a saved policy, in double precision.

    Args:
        policy: the policy.

    Raises:
        InvalidInput: an array is missing, of another shape, or not finite.
    """

    def __init__(self, policy: SavedPolicy) -> None:
        try:
            check_weights(policy.weights, SHAPES)
        except InvalidInput as error:
            raise InvalidInput(
                f"the file is not a whole policy of 'autoshard' ({error}); learn it again with 'shardwright learn autoshard'"
            ) from None
        self._weights = {name: array.astype(np.float64) for name, array in policy.weights.items()}
        self._encoder: Layers = layers_of(policy.weights, "encoder", len(ENCODER_SIZES) - 1)
        self._cost: Layers = layers_of(policy.weights, "cost", len(COST_SIZES) - 1)

    def encode(self, features: Floats) -> Floats:
        """`(b, 32)` encodings of blocks from `(b, 21)` table features."""
        standardised = (features - self._weights["feature_mean"]) * self._weights["feature_scale"]
        return np.maximum(evaluate(self._encoder, standardised), 0.0)

    def relative_cost(self, sums: Floats) -> Floats:
        """`(...)` predicted forward + backward time from `(..., 32)` sums of encodings, in units of `cost_scale` ms."""
        return evaluate(self._cost, sums)[..., 0]

    def cost_ms(self, sums: Floats) -> Floats:
        """`(...)` predicted forward + backward ms from `(..., 32)` sums of encodings."""
        predicted: Floats = self.relative_cost(sums) * self._weights["cost_scale"]
        return predicted

    def decoder(self) -> Decoder:
        """The arrays of the compiled greedy."""
        w = self._weights
        state, device, both = np.split(w["policy.0.weight"].T, 3)
        layers = range(LSTM_LAYERS)
        arrays = {
            "cost_0": w["cost.0.weight"].T,
            "cost_0_bias": w["cost.0.bias"],
            "cost_1": w["cost.1.weight"][0],
            "share": np.vstack([w["share.0.weight"].T, w["share.0.bias"]]),
            "device": np.vstack([w["device.0.weight"].T, w["device.0.bias"]]),
            "lstm": np.stack([np.hstack([w[f"lstm.weight_{kind}_l{i}"] for kind in ("ih", "hh")]).T for i in layers]),
            "lstm_bias": np.stack([w[f"lstm.bias_ih_l{i}"] + w[f"lstm.bias_hh_l{i}"] for i in layers]),
            "on_state": state,
            "on_device": device,
            "on_both": both,
            "bias_0": w["policy.0.bias"],
            "layer_1": w["policy.1.weight"].T,
            "bias_1": w["policy.1.bias"],
            "layer_2": w["policy.2.weight"].T,
            "bias_2": w["policy.2.bias"],
            "layer_3": w["policy.3.weight"][0],
        }
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return Decoder(cost_1_bias=float(w["cost.1.bias"][0]), **plain)
