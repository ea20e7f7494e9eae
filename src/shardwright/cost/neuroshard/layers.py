"""Stacks of linear layers as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.pricing import Floats
from shardwright.errors import InvalidInput

Weights: TypeAlias = dict[str, npt.NDArray[np.float32]]
Layers: TypeAlias = tuple[tuple[Floats, Floats], ...]
"""`(out, in)` weights and `(out,)` biases of each layer; a ReLU stands between layers, none after the last."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def layer_shapes(prefix: str, sizes: Sequence[int]) -> Shapes:
    """Names and shapes of the arrays of layers with these sizes, inputs first."""
    shapes: Shapes = {}
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes |= {f"{prefix}.{index}.weight": (outputs, inputs), f"{prefix}.{index}.bias": (outputs,)}
    return shapes


def check_weights(weights: Mapping[str, npt.NDArray[np.float32]], shapes: Shapes) -> None:
    """Check that arrays are there, have the right shapes, and are finite.

    Raises:
        InvalidInput: one is not so.
    """
    for name, shape in shapes.items():
        found = weights.get(name)
        if found is None or found.shape != shape:
            held = "is missing" if found is None else f"has shape {found.shape}"
            raise InvalidInput(f"cost model: {name} {held}, must be an array of shape {shape}; train the model again")
        if not np.isfinite(found).all():
            raise InvalidInput(f"cost model: {name} holds NaN or infinite values; train the model again")


def layers_of(weights: Mapping[str, npt.NDArray[np.float32]], prefix: str, count: int) -> Layers:
    """Layers 0 to `count` - 1 under a prefix, in double precision."""
    return tuple(
        (weights[f"{prefix}.{i}.weight"].astype(np.float64), weights[f"{prefix}.{i}.bias"].astype(np.float64))
        for i in range(count)
    )


def standardised(layers: Layers, mean: Floats, std: Floats) -> Layers:
    """Layers for raw inputs x that do what `layers` do for (x − mean) / std."""
    weight, bias = layers[0]
    scaled = weight / std
    return ((scaled, bias - scaled @ mean), *layers[1:])


def evaluate(layers: Layers, x: Floats) -> Floats:
    """`(..., out)` outputs of `(..., in)` inputs."""
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, 0.0)
    weight, bias = layers[-1]
    outputs: Floats = x @ weight.T + bias
    return outputs
