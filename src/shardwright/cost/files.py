"""Cost models on disk, and their metadata: the machine that a model was learned on, how accurate it was, and which tasks it does not cover.

A file is safetensors with a versioned header. It is read with numpy alone; nothing is unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy.typing as npt

from shardwright.cost import correction
from shardwright.cost.correction import CorrectedModel
from shardwright.cost.features import FEATURES, PARTS, SCALES
from shardwright.cost.model import SHAPES, WIDE, ComputeModel, CostModel, Head
from shardwright.cost.neuroshard import model as neuroshard
from shardwright.cost.neuroshard.model import LearnedModel, NeuroShardModel, Weights
from shardwright.cost.published import PublishedModel
from shardwright.errors import InvalidInput
from shardwright.hardware import cpu_model, gpu_model
from shardwright.task import PRESETS, Task
from shardwright.tensor_files import load_weights, save_weights

_BEYOND = 2.0  # batch sizes outside the trained range by more than this factor count as extrapolation
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))


def learned_elsewhere(metadata: Mapping[str, str], kind: str, here: str | None = None) -> str | None:
    """A warning that a model was learned on another processor, or None.

    Args:
        metadata: metadata of the model.
        kind: "cpu" or "cuda".
        here: the processor whose times are predicted; by default this machine's.

    Returns:
        A clause to follow "the cost model"; None if the model learned from this processor, or if its metadata does not name one.
    """
    learned_on = processors(metadata, kind)
    if not learned_on:
        return None
    here = here or (gpu_model() if kind == "cuda" else cpu_model())
    if here in learned_on:
        return None
    return (
        f"was learned on {' and '.join(learned_on)}, this machine is {here}: times differ because the hardware does; "
        "for a model of this machine, run 'shardwright calibrate'"
    )


def processors(metadata: Mapping[str, str], kind: str = r"\w+") -> list[str]:
    """The processors whose samples a model learned from; empty if its metadata does not name them.

    Args:
        metadata: metadata of the model.
        kind: "cpu" or "cuda"; by default any.
    """
    names = re.findall(rf"device_kind {kind}, processor (.*?), cores ", metadata.get("hardware", ""))
    return list(dict.fromkeys(names))


def unlike(metadata: Mapping[str, str], task: Task) -> Iterator[str]:
    """Each way in which a task differs from the samples that a model's metadata describes; skips what the metadata lacks."""
    device, optimizer = metadata.get("device"), metadata.get("optimizer")
    if device and device != task.topology.device:
        yield f"was trained on {device}, the task is for {task.topology.device}"
    if optimizer and task.optimizer not in optimizer.split(", "):
        yield f"was trained with {optimizer}, the task uses {task.optimizer}: predicted backward times are those of {optimizer}"
    sizes = [int(size) for size in metadata.get("batch_sizes", "").split(", ") if size.isdigit()]
    if sizes and not min(sizes) / _BEYOND <= task.batch_size <= max(sizes) * _BEYOND:
        yield f"was trained at batch sizes {metadata['batch_sizes']}, the task has {task.batch_size}: predictions are extrapolated"
    kinds, known = {kind_of_table(table.pooled, table.dtype) for table in task.tables}, metadata.get("tables")
    if known and (missing := sorted(kinds - set(known.split(", ")))):
        yield f"was trained on {known} tables, the task has {', '.join(missing)} ones too"


def kind_of_table(pooled: bool, dtype: str) -> str:
    """The kind of a table, by which a model names its range: "pooled-fp32", "sequence-fp16"."""
    return f"{'pooled' if pooled else 'sequence'}-{dtype}"


def provenance(metadata: Mapping[str, str]) -> str | None:
    """Where and when a model was learned and how accurate it was; None if that is unknown.

    As in "calibrated on this machine 3 hours ago, mean error 5.1% on 180 sets it had not seen".
    """
    if origin := metadata.get("origin"):
        return f"{origin}; leave-one-source-out median error {float(metadata['half_within']):.0%}"
    error, when = metadata.get("mean_error"), metadata.get("calibrated_at")
    if when:
        origin = f"{'tuned' if metadata.get('tuned') else 'calibrated'} on this machine {age(when)}"
    elif names := processors(metadata):
        origin = f"learned on {' and '.join(names)}, {metadata.get('date', 'undated')}"
    else:
        return None
    if not error:
        return origin
    return f"{origin}, mean error {float(error):.1%} on {metadata.get('test_sets', 'some')} sets it had not seen"


def device_type(hardware: Mapping[str, str]) -> str:
    """The device type that topologies use for hardware: "NVIDIA H200" → "h200"; the processor's own name if no preset has it."""
    if hardware["device_kind"] == "cpu":
        return "cpu"
    name = re.sub(r"[^a-z0-9]", "", hardware["processor"].lower())
    known = (preset.device for preset in PRESETS.values() if preset.device in name)
    return max(known, key=len, default=name)  # a GB200 is no B200 in a host of eight


def age(when: str) -> str:
    """How long ago a time was, in the largest fitting unit; "just now" also if the clock was set back since."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(when)).total_seconds()
    except (ValueError, TypeError):
        return "at an unknown time"
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


FORMAT = "3"
_COMPUTE, _PUBLISHED = "compute", "published"
_FEATURES = {False: json.dumps([FEATURES, SCALES]), True: json.dumps([FEATURES, SCALES, PARTS])}
"""Inputs that a model was trained on, for CPUs (False) and for GPUs (True)."""
_HEADERS = {
    _COMPUTE: ("kind", "head", "features"),
    neuroshard.KIND: neuroshard.HEADER,
    correction.KIND: ("kind", "base"),
    _PUBLISHED: ("kind", "device", "optimizer"),
}
_OF_BASE = "base."  # begins the names of the arrays of the model that a correction corrects

StoredModel: TypeAlias = LearnedModel | CorrectedModel
"""A model that a file can hold."""


def save_model(model: StoredModel, path: Path) -> None:
    """Write a model as safetensors, atomically.

    Raises:
        InvalidInput: the path cannot be written to, or a corrected model has a base that no file can hold.
    """
    save_weights(path, _arrays_of(model), {"format": FORMAT} | _header_of(model) | model.metadata)


def _header_of(model: CostModel) -> dict[str, str]:
    if isinstance(model, NeuroShardModel):
        return neuroshard.header_of(model)
    if isinstance(model, CorrectedModel):
        base = {"format": FORMAT} | dict(model.base.metadata) | _header_of(model.base)
        return {"kind": correction.KIND, "base": json.dumps(base)}
    if isinstance(model, PublishedModel) and model.gpu is None:
        return {"kind": _PUBLISHED, "device": model.device, "optimizer": model.optimizer}
    if isinstance(model, ComputeModel):
        return {"kind": _COMPUTE, "head": model.head, "features": _FEATURES[WIDE in model.weights]}
    raise InvalidInput(
        f"cost model {model.name} cannot be saved: a file holds learned and published models, and corrections of them"
    )


def telling_name(model: StoredModel) -> str:
    """A name unique to a model's weights: the model's name and eight digits of the weights' SHA-256, as in "cpu/convex-1f0e9a3b".

    A corrected model is named by its device alone, as in "cpu/tuned-1f0e9a3b".
    """
    arrays = _arrays_of(model)
    digest = sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(arrays[name].astype("<f4").tobytes())
    name = f"{model.name.partition('/')[0]}/tuned" if isinstance(model, CorrectedModel) else model.name
    return f"{name}-{digest.hexdigest()[:8]}"


def load_model(path: Path) -> StoredModel:
    """Read a model.

    Raises:
        InvalidInput: the file cannot be read, is damaged, has another format version or feature set, or has wrong shapes.
    """
    header, weights = load_weights(path, _wanted_arrays, "cost model", "name a model file made by 'shardwright train'")
    try:
        model = _model_of(header, weights)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    assert not isinstance(model, PublishedModel)  # a file holds it as the base of a correction only
    return model


def _model_of(header: dict[str, str], weights: Weights) -> StoredModel | PublishedModel:
    own = ("format", *_HEADERS[header["kind"]])
    metadata = {name: value for name, value in header.items() if name not in own}
    if header["kind"] == neuroshard.KIND:
        return neuroshard.model_of(header, weights, metadata)
    if header["kind"] == _PUBLISHED:
        return PublishedModel(header.get("device", ""), header.get("optimizer", ""))
    if header["kind"] == correction.KIND:
        of_base = {name.removeprefix(_OF_BASE): array for name, array in weights.items() if name.startswith(_OF_BASE)}
        return correction.model_of(_model_of(_base_header(header), of_base), weights, metadata)
    return ComputeModel(cast(Head, header["head"]), weights, metadata)


def _base_header(header: dict[str, str]) -> dict[str, str]:
    """The header of the model that a correction corrects, as texts."""
    try:
        base = json.loads(header.get("base", ""))
    except ValueError:
        base = None
    if not isinstance(base, dict):
        raise InvalidInput("the model file does not say which model it corrects; tune again")
    return {str(name): str(value) for name, value in base.items()}


def model_header(path: Path) -> dict[str, str]:
    """The header of a model file of any format version; the weights are not checked.

    Raises:
        InvalidInput: the file cannot be read or is damaged.
    """
    return load_weights(path, lambda _: (), "cost model", "name a model file made by 'shardwright train'")[0]


def bundled_models() -> dict[str, Path]:
    """Paths of the models that come with the package, by device type."""
    folder = Path(str(resources.files("shardwright.cost") / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def _arrays_of(model: CostModel) -> dict[str, npt.NDArray[Any]]:
    if isinstance(model, NeuroShardModel):
        return dict(neuroshard.arrays_of(model))
    if isinstance(model, CorrectedModel):
        of_base = {_OF_BASE + name: array for name, array in _arrays_of(model.base).items()}
        return correction.arrays_of(model) | of_base
    return dict(model.weights) if isinstance(model, ComputeModel) else {}


def _wanted_arrays(header: dict[str, str], base: bool = False) -> set[str]:
    """Check a model's header; return the names of the arrays that the model must have. `base`: a correction corrects the model."""
    if header.get("format") != FORMAT or header.get("kind") not in _HEADERS or (header["kind"] == _PUBLISHED) > base:
        raise InvalidInput(
            f"model format is {header.get('format')!r}, kind {header.get('kind')!r}; this version reads {', '.join(_HEADERS)} models "
            f"of format {FORMAT!r}: train the model again with this version"
        )
    if header["kind"] == neuroshard.KIND:
        return neuroshard.wanted_arrays(header)
    if header["kind"] == correction.KIND:
        of_base = _wanted_arrays(_base_header(header), base=True)
        return correction.wanted_arrays() | {_OF_BASE + name for name in of_base}
    if header["kind"] == _PUBLISHED:
        return set()
    if header.get("features") not in _FEATURES.values():
        raise InvalidInput("the model was trained on other features than this version computes; train it again")
    if "head" not in header:
        raise InvalidInput(
            "the model file does not say which head it has ('convex' or 'mlp'); train the model again with this version"
        )
    return {*SHAPES, WIDE}
