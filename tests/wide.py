"""Cost models of a GPU: a call's widest table sets the price of all its lookups."""

from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost import load_model
from shardwright.cost.features import PARTS, WorkArrays
from shardwright.cost.files import bundled_models
from shardwright.cost.model import WIDE, WIDE_SHAPE, ComputeModel, Pricing
from shardwright.testing.model import SimpleCostModel


def wide_model(ms: float = 100.0) -> ComputeModel:
    """The bundled CPU model; ten million pooled lookups or bags pay `ms` for each of `WIDTHS` that a table of the call exceeds."""
    model = load_model(bundled_models()["cpu"])
    assert isinstance(model, ComputeModel)
    weights = np.zeros(WIDE_SHAPE, dtype=np.float32)
    weights[:, 1:, [PARTS.index("pooled_lookups"), PARTS.index("pooled_bags")]] = ms
    return replace(model, weights=model.weights | {WIDE: weights})


class GatedModel(SimpleCostModel):
    """The simple model with one gate: if a call has a table of more than 64 columns, each lookup of the others pays 10 µs and 20 µs."""

    def encode_arrays(self, works: WorkArrays) -> Floats:
        wide = works.dim > 64
        return np.hstack([super().encode_arrays(works), np.stack([wide, ~wide * works.lookups], axis=1)])

    @property
    def pricing(self) -> Pricing:
        plain = super().pricing
        hidden = np.zeros((4, 5))
        hidden[0, :3] = plain.hidden[0]
        hidden[1, 3], hidden[2, 4], hidden[3, 4] = 1.0, 0.01, 0.02
        return Pricing(
            hidden,
            np.array([*plain.hidden_bias, 0.0, 0.0, 0.0]),
            np.hstack([plain.mix, np.zeros((2, 3))]),
            np.hstack([plain.linear, np.zeros((2, 2))]),
            plain.bias,
            gates=1,
        )
