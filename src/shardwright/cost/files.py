"""Cost models on disk: safetensors with a versioned header. Read with numpy alone; nothing is unpickled."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import cast

import numpy as np

from shardwright.cost.features import FEATURES, SCALES
from shardwright.cost.model import SHAPES, ComputeModel, Head
from shardwright.errors import InvalidInput
from shardwright.files import write_atomically

FORMAT = "1"
_LARGEST = 64 << 20


def save_model(model: ComputeModel, path: Path) -> None:
    """Write a model as safetensors; atomic."""
    from safetensors.numpy import save

    header = {"format": FORMAT, "kind": "compute", "head": model.head, "features": json.dumps([FEATURES, SCALES])}
    tensors = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in model.weights.items()}
    write_atomically(path, save(tensors, metadata=header | model.metadata))


def load_model(path: Path) -> ComputeModel:
    """Read a model.

    Raises:
        InvalidInput: the file cannot be read, is damaged, of another format version or feature set, or has wrong shapes.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidInput(
                f"{path}: {path.stat().st_size} bytes; a cost model has at most {_LARGEST}: is this the right file?"
            )
        with safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
            _check_header(path, metadata)
            weights = {name: file.get_tensor(name) for name in file.keys() if name in SHAPES}  # noqa: SIM118
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror or error}); name a model file made by 'shardwright train'"
        ) from None
    except SafetensorError as error:
        raise InvalidInput(
            f"{path}: not a whole safetensors file ({error}); name a model file made by 'shardwright train'"
        ) from None
    try:
        return ComputeModel(cast(Head, metadata["head"]), weights, _own_metadata(metadata))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def bundled_models() -> dict[str, Path]:
    """The models that come with the package, by device type."""
    folder = Path(str(resources.files("shardwright.cost") / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def _check_header(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or metadata.get("kind") != "compute":
        raise InvalidInput(
            f"{path}: model format is {metadata.get('format')!r}, kind {metadata.get('kind')!r}; this version reads compute models of "
            f"format {FORMAT!r}: train the model again with this version"
        )
    if metadata.get("features") != json.dumps([FEATURES, SCALES]):
        raise InvalidInput(
            f"{path}: the model was trained on other features than this version computes; train it again"
        )
    if "head" not in metadata:
        raise InvalidInput(f"{path}: the header names no head; train the model again with this version")


def _own_metadata(metadata: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if name not in ("format", "kind", "head", "features")}
