"""NeuroShard's compute network as a cost model that every strategy can use.

    encoder   21 features → 128 → 32, ReLU after both      one table
    sum       over the tables of a device
    head      32 → 64 → 1, ReLU between                    fused forward + backward ms of the device

The network knows the SUM of forward and backward only. In this package's terms `forward_ms` carries both and `backward_ms` is 0: sums over
phases, and the papers' embedding cost, are what they should be; the split is not known. The head is not convex, so no lower bound
follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwright.cost.features import WorkArrays
from shardwright.cost.model import HEAD_HIDDEN, HIDDEN, LATENT
from shardwright.cost.neuroshard.communication import CommunicationNetworks
from shardwright.cost.neuroshard.features import TABLE_FEATURES, table_features
from shardwright.cost.neuroshard.layers import (
    Layers,
    Shapes,
    Weights,
    check_weights,
    evaluate,
    layer_shapes,
    layers_of,
    standardised,
)
from shardwright.cost.pricing import Floats, Pricing
from shardwright.errors import InvalidInput
from shardwright.sharding.work import ShardWork

SHAPES: Shapes = {
    "feature_mean": (len(TABLE_FEATURES),),
    "feature_std": (len(TABLE_FEATURES),),
    **layer_shapes("encoder", (len(TABLE_FEATURES), HIDDEN, LATENT)),
    **layer_shapes("head", (LATENT, HEAD_HIDDEN, 1)),
}


@dataclass(frozen=True, eq=False)
class NeuroShardModel:
    """The three networks, evaluated with numpy.

    Attributes:
        weights: arrays of the compute network, by the names and shapes of `SHAPES`.
        communication: networks of the all-to-alls; None where no collectives were measured.
        metadata: where the model comes from: hardware, optimizer, samples, accuracy.
    """

    weights: Weights
    communication: CommunicationNetworks | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_weights(self.weights, SHAPES)
        if (self.weights["feature_std"] <= 0).any():
            raise InvalidInput("cost model: feature_std must be greater than 0; train the model again")

    @property
    def name(self) -> str:
        """Device and kind, as in "cpu/neuroshard"."""
        return self.metadata.get("name", f"{self.metadata.get('device', 'unknown')}/neuroshard")

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, 32)` encodings of n shards."""
        return self.encode_arrays(WorkArrays.of(works)) if works else np.zeros((0, LATENT))

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 32)` encodings of n shards given as columns."""
        return np.maximum(evaluate(self.encoder, table_features(works)), 0.0)

    @cached_property
    def encoder(self) -> Layers:
        """The encoder on raw features; a ReLU follows its last layer too."""
        mean, std = (self.weights[f"feature_{part}"].astype(np.float64) for part in ("mean", "std"))
        return standardised(layers_of(self.weights, "encoder", 2), mean, std)

    @cached_property
    def pricing(self) -> Pricing:
        """The head: forward carries forward + backward, backward is 0."""
        (hidden, hidden_bias), (mix, bias) = layers_of(self.weights, "head", 2)
        return Pricing(
            hidden=hidden,
            hidden_bias=hidden_bias,
            mix=np.vstack([mix, np.zeros_like(mix)]),
            linear=np.zeros((2, LATENT)),
            bias=np.append(bias, 0.0),
        )
