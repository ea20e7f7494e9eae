"""NeuroShard models in the terms of a model file: header entries and arrays by name."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shardwright.cost.neuroshard.communication import CommunicationNetworks, communication_shapes
from shardwright.cost.neuroshard.features import TABLE_FEATURES
from shardwright.cost.neuroshard.layers import Weights
from shardwright.cost.neuroshard.model import SHAPES, NeuroShardModel
from shardwright.errors import InvalidInput
from shardwright.task.topology import MAX_DEVICES

KIND = "neuroshard"
HEADER = ("kind", "features", "devices", "communication_batch_size")
"""Header entries that are the format's, not the model's metadata."""

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
    """Names of the arrays that a model with this header has.

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
    """Numbers of devices that the file has communication networks for."""
    text = header.get("devices", "")
    found = tuple(_count(header, "devices", part, MAX_DEVICES) for part in text.split(",")) if text else ()
    if len(set(found)) < len(found) or len(found) > _MOST_NETWORKS:
        raise InvalidInput(
            f"the header's devices are {text[:80]!r}, must be at most {_MOST_NETWORKS} different numbers; train the model again"
        )
    return found


def _count(header: Mapping[str, str], name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= most):
        raise InvalidInput(
            f"the header's {name} is {header.get(name, '')[:80]!r}, must be whole numbers from 1 to {most}; train the model again"
        )
    return int(text)
