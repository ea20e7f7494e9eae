"""NeuroShard's communication networks: how long each of D devices spends in the forward and the backward all-to-all.

    forward    [dim sum of each device, start delay of each device] (2 D) → 128 → 64 → 32 → 16 → ms of each device (D)
    backward   [dim sum of each device]                               (D) → 128 → 64 → 32 → 16 → ms of each device (D)

A network serves exactly the number of devices it was trained for; a model may hold networks for several numbers. So that the batch size
may differ from the one that was measured, a dim sum enters as MB of pooled values: 4 bytes × batch size × dim sum.
Start delays count from the first device to start. Their source in a search: differences of compute + backward communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

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
from shardwright.cost.pricing import Floats
from shardwright.errors import InvalidInput

SIZES = (128, 64, 32, 16)
PASSES = ("forward", "backward")
_MB_PER_VALUE = 4e-6


@dataclass(frozen=True)
class PassLayers:
    """Layers on raw inputs (dim sums, delays in ms from the first to start), to be evaluated without torch; a negative output means 0.

    Attributes:
        forward: from `(2 D,)` dim sums, then delays, to `(D,)` ms.
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
    """MB of the values of all samples, from dim sums: what the networks see of both."""
    return np.asarray(np.multiply(dims, batch_size) * _MB_PER_VALUE, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CommunicationNetworks:
    """The networks for one or several numbers of devices.

    Attributes:
        weights: arrays by the names and shapes of `communication_shapes`, of every number of devices.
        devices: numbers of devices there are networks for.
        batch_size: samples a step that dim sums are meant for unless a call says otherwise: the most frequent of the training.
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
        """Forward all-to-all from each device's own start to its end, so with the wait for devices that start late.

        Args:
            dims: `(..., D)` dim sums.
            delays: `(..., D)` ms; only differences count.
            batch_size: samples a step over all devices; None for the attribute's.

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
        """Backward all-to-all of devices that start together: `(..., D)` ms from `(..., D)` dim sums; see `forward_ms`."""
        sums = np.asarray(dims, dtype=np.float64)
        return np.maximum(evaluate(self.layers(sums.shape[-1], batch_size).backward, sums), 0.0)

    def layers(self, devices: int, batch_size: int | None = None) -> PassLayers:
        """Layers that take dim sums and delays as they are: scaling and standardisation are part of the first.

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
            InvalidInput: there are none.
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
