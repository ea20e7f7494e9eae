"""Cost models on disk: safetensors with a versioned header. Read with numpy alone; nothing is unpickled."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import cast

from shardwright.cost.features import FEATURES, SCALES
from shardwright.cost.model import SHAPES, ComputeModel, Head
from shardwright.cost.neuroshard import files as neuroshard
from shardwright.cost.neuroshard.layers import Weights
from shardwright.cost.neuroshard.model import NeuroShardModel
from shardwright.errors import InvalidInput
from shardwright.tensor_files import load_weights, save_weights

FORMAT = "2"
_COMPUTE = "compute"
_HEADERS = {_COMPUTE: ("kind", "head", "features"), neuroshard.KIND: neuroshard.HEADER}


def save_model(model: ComputeModel | NeuroShardModel, path: Path) -> None:
    """Write a model as safetensors; atomic."""
    if isinstance(model, NeuroShardModel):
        header = neuroshard.header_of(model)
    else:
        header = {"kind": _COMPUTE, "head": model.head, "features": json.dumps([FEATURES, SCALES])}
    save_weights(path, _arrays_of(model), {"format": FORMAT} | header | model.metadata)


def telling_name(model: ComputeModel | NeuroShardModel) -> str:
    """A name that no other weights have: the model's own, and eight digits of their SHA-256, as in "cpu/convex-1f0e9a3b"."""
    arrays = _arrays_of(model)
    digest = sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(arrays[name].astype("<f4").tobytes())
    return f"{model.name}-{digest.hexdigest()[:8]}"


def load_model(path: Path) -> ComputeModel | NeuroShardModel:
    """Read a model.

    Raises:
        InvalidInput: the file cannot be read, is damaged, of another format version or feature set, or has wrong shapes.
    """
    header, weights = load_weights(path, _wanted_arrays, "cost model", "name a model file made by 'shardwright train'")
    own = ("format", *_HEADERS[header["kind"]])
    metadata = {name: value for name, value in header.items() if name not in own}
    try:
        if header["kind"] == neuroshard.KIND:
            return neuroshard.model_of(header, weights, metadata)
        return ComputeModel(cast(Head, header["head"]), weights, metadata)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def model_header(path: Path) -> dict[str, str]:
    """What a model's file says of itself, whatever version it is of; its weights are not looked at.

    Raises:
        InvalidInput: the file cannot be read or is damaged.
    """
    return load_weights(path, lambda _: (), "cost model", "name a model file made by 'shardwright train'")[0]


def bundled_models() -> dict[str, Path]:
    """The models that come with the package, by device type."""
    folder = Path(str(resources.files("shardwright.cost") / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def _arrays_of(model: ComputeModel | NeuroShardModel) -> Weights:
    return neuroshard.arrays_of(model) if isinstance(model, NeuroShardModel) else model.weights


def _wanted_arrays(header: dict[str, str]) -> set[str]:
    """Names of a model's arrays; checks the header."""
    if header.get("format") != FORMAT or header.get("kind") not in _HEADERS:
        raise InvalidInput(
            f"model format is {header.get('format')!r}, kind {header.get('kind')!r}; this version reads {' and '.join(_HEADERS)} models "
            f"of format {FORMAT!r}: train the model again with this version"
        )
    if header["kind"] == neuroshard.KIND:
        return neuroshard.wanted_arrays(header)
    if header.get("features") != json.dumps([FEATURES, SCALES]):
        raise InvalidInput("the model was trained on other features than this version computes; train it again")
    if "head" not in header:
        raise InvalidInput("the header names no head; train the model again with this version")
    return set(SHAPES)
