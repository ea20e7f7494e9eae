"""A cost model for tests of the command line."""

import numpy as np

from shardwright.cost.model import LATENT, SHAPES, ComputeModel


def linear_model(**metadata):
    """A compute model whose times are proportional to the sizes of the shards."""
    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    weights["feature_std"] += 1
    weights["feature_low"] -= 1e9
    weights["feature_high"] += 1e9
    weights["scale"] += 1e-6
    weights["encoder.1.bias"] += 1
    weights["caches"] += 1
    weights["head.skip"][:, :LATENT] += 1 / 64
    return ComputeModel("convex", weights, {"device": "cpu", **metadata})
