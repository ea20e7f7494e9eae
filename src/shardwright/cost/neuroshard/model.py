"""NeuroShard's three networks as plain arrays, and the cost model made of them.

    encoder   21 features → 128 → 32, ReLU after both      one table
    sum       over the tables of a device
    head      32 → 64 → 1, ReLU between                    fused forward + backward ms of the device

The compute network predicts only the SUM of forward and backward time. Here `forward_ms` carries both and `backward_ms` is 0: the sum of
the phases, and the papers' embedding cost, are right, but the split is unknown. The head is not convex, so no lower bound follows.

    forward    [dim sum of each device, start delay of each device] (2 D) → 128 → 64 → 32 → 16 → ms of each device (D)
    backward   [dim sum of each device]                               (D) → 128 → 64 → 32 → 16 → ms of each device (D)

A communication network serves only the number of devices that it was trained for; a model may hold networks for several numbers. A dim
sum enters as MB of pooled values, 4 bytes × batch size × dim sum, so the batch size may differ from the measured one. Start delays count
from the first device to start. In a search they are differences of compute + backward communication.

A table is described by 21 numbers: rows, dim, pooling factor, size, and the shares of its distinct rows in 17 reuse bins. Rows, dim,
pooling factor and size span decades, so they enter as logarithms. As in the paper, the batch size is not a feature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.cost.features import BINS, WorkArrays
from shardwright.cost.model import HEAD_HIDDEN, HIDDEN, LATENT, ComputeModel, CostModel, Pricing
from shardwright.errors import InvalidInput
from shardwright.task.topology import MAX_DEVICES
from shardwright.tensor_files import check_weights

TABLE_FEATURES = ("log_rows", "log_dim", "log_pooling", "log_bytes", *(f"reuse_{i}" for i in range(BINS)))


def table_features(works: WorkArrays) -> Floats:
    """`(n, 21)` inputs of the encoder, before standardisation."""
    pooling = works.lookups / works.samples
    sizes = np.stack([works.rows, works.dim, pooling, works.rows * works.row_bytes], axis=1)
    return np.hstack([np.log(sizes + 1e-3), works.reuse_rows / np.maximum(works.distinct, 1e-9)[:, None]])


Weights: TypeAlias = dict[str, npt.NDArray[np.float32]]
Layers: TypeAlias = tuple[tuple[Floats, Floats], ...]
"""`(out, in)` weights and `(out,)` biases of each layer; a ReLU follows each layer except the last."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def layer_shapes(prefix: str, sizes: Sequence[int]) -> Shapes:
    """Names and shapes of the arrays of layers with these sizes; the first size is that of the inputs."""
    shapes: Shapes = {}
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes |= {f"{prefix}.{index}.weight": (outputs, inputs), f"{prefix}.{index}.bias": (outputs,)}
    return shapes


def layers_of(weights: Mapping[str, npt.NDArray[np.float32]], prefix: str, count: int) -> Layers:
    """Layers 0 to `count` - 1 under a prefix, in double precision."""
    return tuple(
        (weights[f"{prefix}.{i}.weight"].astype(np.float64), weights[f"{prefix}.{i}.bias"].astype(np.float64))
        for i in range(count)
    )


def standardised(layers: Layers, mean: Floats, std: Floats) -> Layers:
    """Layers that give for raw inputs x what `layers` give for (x − mean) / std."""
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


SIZES = (128, 64, 32, 16)
PASSES = ("forward", "backward")
_MB_PER_VALUE = 4e-6


@dataclass(frozen=True)
class PassLayers:
    """Layers for raw inputs (dim sums; delays in ms from the first start), evaluated without torch; a negative output means 0.

    Attributes:
        forward: from `(2 D,)` dim sums followed by delays, to `(D,)` ms.
        backward: from `(D,)` dim sums to `(D,)` ms.
    """

    forward: Layers
    backward: Layers


def communication_shapes(devices: int) -> Shapes:
    """Names and shapes of the arrays of the networks for a number of devices."""
    shapes: Shapes = {}
    for name, inputs in (("forward", 2 * devices), ("backward", devices)):
        prefix = f"communication.{devices}.{name}"
        shapes |= {f"{prefix}.mean": (inputs,), f"{prefix}.std": (inputs,)}
        shapes |= layer_shapes(prefix, (inputs, *SIZES, devices))
    return shapes


def megabytes(dims: npt.ArrayLike, batch_size: npt.ArrayLike) -> Floats:
    """MB of the pooled values of all samples: the networks' input for dim sums and batch size."""
    return np.asarray(np.multiply(dims, batch_size) * _MB_PER_VALUE, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CommunicationNetworks:
    """The networks for one or several numbers of devices.

    Attributes:
        weights: arrays with the names and shapes of `communication_shapes`, for every number of devices.
        devices: numbers of devices that have networks.
        batch_size: default samples per step of a call: the most frequent batch size in training.
    """

    weights: Weights
    devices: tuple[int, ...]
    batch_size: int

    def __post_init__(self) -> None:
        if not self.devices or self.batch_size < 1:
            raise InvalidInput(
                f"cost model: communication networks for devices {list(self.devices)} and batch size {self.batch_size}: there must be at "
                "least one number of devices, and a batch size of at least 1; train the model again"
            )
        for devices in self.devices:
            shapes = communication_shapes(devices)
            check_weights(self.weights, shapes)
            if any((self.weights[name] <= 0).any() for name in shapes if name.endswith(".std")):
                raise InvalidInput("cost model: a std must be greater than 0; train the model again")

    def forward_ms(self, dims: npt.ArrayLike, delays: npt.ArrayLike, batch_size: int | None = None) -> Floats:
        """Forward all-to-all ms from each device's own start to its end, so the wait for devices that start late is included.

        Args:
            dims: `(..., D)` dim sums.
            delays: `(..., D)` start delays in ms; only differences count.
            batch_size: samples per step over all devices; None for the attribute.

        Returns:
            `(..., D)` ms.

        Raises:
            InvalidInput: there are no networks for D devices.
        """
        sums, starts = np.broadcast_arrays(np.asarray(dims, dtype=np.float64), np.asarray(delays, dtype=np.float64))
        late = starts - starts.min(axis=-1, keepdims=True)
        layers = self.layers(sums.shape[-1], batch_size).forward
        return np.maximum(evaluate(layers, np.concatenate([sums, late], axis=-1)), 0.0)

    def backward_ms(self, dims: npt.ArrayLike, batch_size: int | None = None) -> Floats:
        """Backward all-to-all if all devices start together: `(..., D)` ms from `(..., D)` dim sums; see `forward_ms`."""
        sums = np.asarray(dims, dtype=np.float64)
        return np.maximum(evaluate(self.layers(sums.shape[-1], batch_size).backward, sums), 0.0)

    def embedding_costs(self, times: Floats, dims: npt.ArrayLike, batch_size: int) -> Floats:
        """`(k, D)` kernels + both all-to-alls, in ms, of each device in k placements.

        A device starts the forward all-to-all late by the time that its kernels + backward all-to-all exceed the fastest device's.

        Args:
            times: `(k, D, 2)` forward and backward kernel ms.
            dims: `(k, D)` columns on each device.
            batch_size: samples per step over all devices.
        """
        columns = np.asarray(dims, dtype=np.float64)
        busy: Floats = times.sum(axis=-1) + self.backward_ms(columns, batch_size)
        delays = busy - busy.min(axis=-1, keepdims=True)
        return busy + self.forward_ms(columns, delays, batch_size)

    def layers(self, devices: int, batch_size: int | None = None) -> PassLayers:
        """Layers for raw dim sums and delays; the first layer includes scaling and standardisation.

        Raises:
            InvalidInput: there are no networks for this number of devices.
        """
        self.check_devices(devices)
        key = devices, batch_size or self.batch_size
        if key not in self._folded:
            self._folded[key] = PassLayers(*(self._fold(name, *key) for name in PASSES))
        return self._folded[key]

    def check_devices(self, devices: int) -> None:
        """Check that there are networks for a number of devices.

        Raises:
            InvalidInput: there are no networks for this number.
        """
        if devices not in self.devices:
            raise InvalidInput(
                f"communication networks: trained for {' and '.join(map(str, self.devices))} devices, the task has {devices}; measure "
                f"collectives of {devices} processes ('shardwright collect --collectives') and train on them, or use a strategy "
                "whose communication model is free of the number of devices"
            )

    @cached_property
    def _folded(self) -> dict[tuple[int, int], PassLayers]:
        return {}

    def _fold(self, name: str, devices: int, batch_size: int) -> Layers:
        prefix = f"communication.{devices}.{name}"
        mean, std = (self.weights[f"{prefix}.{part}"].astype(np.float64) for part in ("mean", "std"))
        unit = np.ones(len(mean))
        unit[:devices] = megabytes(1.0, batch_size)
        return standardised(layers_of(self.weights, prefix, len(SIZES) + 1), mean / unit, std / unit)


SHAPES: Shapes = {
    "feature_mean": (len(TABLE_FEATURES),),
    "feature_std": (len(TABLE_FEATURES),),
    **layer_shapes("encoder", (len(TABLE_FEATURES), HIDDEN, LATENT)),
    **layer_shapes("head", (LATENT, HEAD_HIDDEN, 1)),
}


@dataclass(frozen=True, eq=False)
class NeuroShardModel(CostModel):
    """The three networks, evaluated with numpy.

    Attributes:
        weights: arrays of the compute network, with the names and shapes of `SHAPES`.
        communication: networks of the all-to-alls; None if no collectives were measured.
        metadata: origin of the model: hardware, optimizer, samples, accuracy.
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
        """Name in the metadata, else device and kind, as in "cpu/neuroshard"."""
        return self.metadata.get("name", f"{self.metadata.get('device', 'unknown')}/neuroshard")

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 32)` encodings of n shards given as arrays."""
        return np.maximum(evaluate(self.encoder, table_features(works)), 0.0)

    @cached_property
    def encoder(self) -> Layers:
        """The encoder for raw features; a ReLU follows its last layer too."""
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


LearnedModel: TypeAlias = ComputeModel | NeuroShardModel
"""The kinds of models that are trained on samples and kept in files."""

KIND = "neuroshard"
HEADER = ("kind", "features", "devices", "communication_batch_size")
"""Header entries that belong to the file format, not to the model's metadata."""

_MOST_NETWORKS = 64


def header_of(model: NeuroShardModel) -> dict[str, str]:
    """The header entries of a model."""
    header = {"kind": KIND, "features": json.dumps(TABLE_FEATURES)}
    if model.communication is not None:
        header["devices"] = ",".join(map(str, model.communication.devices))
        header["communication_batch_size"] = str(model.communication.batch_size)
    return header


def arrays_of(model: NeuroShardModel) -> Weights:
    """The arrays of a model."""
    return model.weights | (model.communication.weights if model.communication is not None else {})


def wanted_arrays(header: Mapping[str, str]) -> set[str]:
    """Names of the arrays that a model with this header must have.

    Raises:
        InvalidInput: the header is damaged, or made for other features.
    """
    if header.get("features") != json.dumps(TABLE_FEATURES):
        raise InvalidInput("the model was trained on other features than this version computes; train it again")
    return {*SHAPES, *(name for devices in _devices(header) for name in communication_shapes(devices))}


def model_of(
    header: Mapping[str, str], arrays: Mapping[str, npt.NDArray[np.float32]], metadata: dict[str, str]
) -> NeuroShardModel:
    """A model from a file's header, arrays and metadata.

    Raises:
        InvalidInput: an array is missing, has a wrong shape, or is not finite; or the header is damaged.
    """
    devices = _devices(header)
    compute, networks = {name: arrays[name] for name in arrays if name in SHAPES}, None
    if devices:
        names = {name for count in devices for name in communication_shapes(count)}
        batch_size = _count(header, "communication_batch_size", header.get("communication_batch_size", ""), 2**31)
        networks = CommunicationNetworks({n: arrays[n] for n in arrays if n in names}, devices, batch_size)
    return NeuroShardModel(compute, networks, metadata)


def _devices(header: Mapping[str, str]) -> tuple[int, ...]:
    """Numbers of devices with communication networks, from a file's header."""
    text = header.get("devices", "")
    counts = tuple(_count(header, "devices", part, MAX_DEVICES) for part in text.split(",")) if text else ()
    if len(set(counts)) < len(counts) or len(counts) > _MOST_NETWORKS:
        raise InvalidInput(
            f"the header's devices are {text[:80]!r}, must be at most {_MOST_NETWORKS} different numbers; train the model again"
        )
    return counts


def _count(header: Mapping[str, str], name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= most):
        raise InvalidInput(
            f"the header's {name} is {header.get(name, '')[:80]!r}, must be whole numbers from 1 to {most}; train the model again"
        )
    return int(text)
