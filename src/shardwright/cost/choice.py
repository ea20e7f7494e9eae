"""Choose the cost model for a task: the one that the caller names, one calibrated on this machine, or the bundled one.

Calibrated models are in the user's cache folder:

    $SHARDWRIGHT_CACHE, or the system's folder for caches
      samples/                 measurements of calibrations; without $SHARDWRIGHT_CACHE, in the system's folder for data
      models/NAME.safetensors  one model for each combination of machine, libraries and coverage

This folder never makes planning fail: an unreadable folder counts as empty, and a damaged model is moved aside with one warning.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from shardwright.cost.files import (
    FORMAT,
    StoredModel,
    bundled_models,
    device_type,
    load_model,
    model_header,
    save_model,
    unlike,
)
from shardwright.cost.model import CostModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.errors import InvalidInput
from shardwright.hardware import DECISIVE, Fingerprint, default_backend, fingerprint
from shardwright.plugins import load_plugin, plugins
from shardwright.sharding.plan import Plan
from shardwright.task.quantities import did_you_mean
from shardwright.task.task import Optimizer, Task

_ENDING = ".safetensors"
_NAME = re.compile(rf"(?!.*{re.escape(_ENDING)})[\w.-]{{1,60}}(/[\w., -]{{1,60}})?")
_CUDA = {"device_kind": "cuda"}


@dataclass(frozen=True)
class UserModel:
    """A model in the cache folder."""

    path: Path
    metadata: Mapping[str, str]
    size: int

    @property
    def name(self) -> str:
        """The name of the model in plans."""
        return self.metadata.get("name", self.path.stem)

    @property
    def error(self) -> float:
        """Mean error of the model on sets that it had not seen; infinite if its metadata lacks it."""
        try:
            return float(self.metadata["mean_error"])
        except (KeyError, ValueError):
            return float("inf")

    def learned_on(self, machine: Fingerprint) -> bool:
        """Whether the model was learned on hardware and libraries with this fingerprint."""
        return f"{self.metadata.get('hardware', '')}, ".startswith(f"{_decisive(machine)}, ")


def cache_folder() -> Path:
    """The user's cache folder, which may not exist yet."""
    named = os.environ.get("SHARDWRIGHT_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("shardwright")


def samples_folder() -> Path:
    """The folder of samples: in the cache folder if `SHARDWRIGHT_CACHE` names it or samples lie there, else in the user's data folder."""
    cached = cache_folder() / "samples"
    if os.environ.get("SHARDWRIGHT_CACHE") or cached.is_dir():
        return cached
    from platformdirs import user_data_path

    return user_data_path("shardwright") / "samples"


def machine_with(device: str) -> Fingerprint | None:
    """Fingerprint of this machine if it has devices of this type, else None. Does not import torch.

    Args:
        device: device type of a topology, as in "cpu" or "h100".
    """
    if device == "cpu":
        return fingerprint("cpu", default_backend())
    for processor in _gpus():
        if device_type(_CUDA | {"processor": processor}) == device:
            return fingerprint("cpu", default_backend()) | _CUDA | {"processor": processor}
    return None


def gpu_types() -> list[str]:
    """Device types of this machine's GPUs as topologies name them, each once. Does not import torch."""
    return list(dict.fromkeys(device_type(_CUDA | {"processor": processor}) for processor in _gpus()))


def user_models() -> list[UserModel]:
    """The models in the cache folder, in order of file name; moves damaged ones aside and leaves out other format versions."""
    try:
        paths = sorted((cache_folder() / "models").glob(f"*{_ENDING}"))
    except OSError:
        return []
    return [model for path in paths if (model := _read(path)) is not None]


def best_user_model(task: Task) -> tuple[UserModel, StoredModel] | None:
    """The model calibrated on this machine that suits a task best; None if there is none, or this machine lacks the task's device type.

    A tuned model, which holds for the tables of one task, is used by name only. The ranking prefers a model that covers the task, then
    one calibrated for this task, then the least error.
    """
    if not (cache_folder() / "models").is_dir() or (machine := machine_with(task.topology.device)) is None:
        return None
    digest = task_digest(task)

    def rank(model: UserModel) -> tuple[int, bool, float]:
        return len(list(unlike(model.metadata, task))), model.metadata.get("task") != digest, model.error

    own = (model for model in user_models() if model.learned_on(machine) and not model.metadata.get("tuned"))
    for model in sorted(own, key=rank):
        if (loaded := _loaded(model.path)) is not None:
            return model, loaded
    return None


def named_user_model(name: str) -> StoredModel | None:
    """The model in the cache folder that plans know by this name; None if there is none."""
    loaded = (_loaded(model.path) for model in user_models() if model.name == name)
    return next((model for model in loaded if model is not None), None)


def _loaded(path: Path) -> StoredModel | None:
    """A model of the cache folder; None after setting aside a damaged one."""
    try:
        return load_model(path)
    except InvalidInput as error:
        _set_aside(path, str(error))
        return None


def path_for(metadata: Mapping[str, str], machine: Fingerprint) -> Path:
    """The file for a model: the same path for the same machine, libraries and coverage."""
    covered = "-".join(
        [
            metadata["device"],
            metadata["optimizer"],
            *(f"b{size}" for size in metadata["batch_sizes"].split(", ")),
            *metadata["tables"].split(", "),
            *([f"task-{metadata['task']}"] if metadata.get("task") else []),
            *(["tuned"] if metadata.get("tuned") else []),
            sha256(_decisive(machine).encode()).hexdigest()[:8],
        ]
    )
    return cache_folder() / "models" / f"{re.sub(r'[^a-z0-9_-]', '', covered)}{_ENDING}"


def keep_model(model: StoredModel, path: Path) -> None:
    """Save a model in the cache folder, atomically.

    Raises:
        InvalidInput: the folder cannot be written to, or no file can hold the model.
    """
    with suppress(OSError):  # save_model reports the reason
        path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)


def task_digest(task: Task) -> str:
    """Eight hexadecimal digits that identify the tables, batch size and optimizer of a task."""
    digest = sha256(f"{task.batch_size} {task.optimizer}".encode())
    for table in sorted(task.tables, key=lambda table: table.name):
        digest.update(
            f"{table.rows} {table.dim} {' '.join(f'{each:.6g}' for each in table.poolings)} {table.pooled} {table.dtype}".encode()
        )
        digest.update(table.access.rows.tobytes() + table.access.share.tobytes())
    return digest.hexdigest()[:8]


def _read(path: Path) -> UserModel | None:
    try:
        header = model_header(path)
        size = path.stat().st_size
    except InvalidInput as error:
        _set_aside(path, str(error))
        return None
    except OSError:
        return None
    return UserModel(path, header, size) if header.get("format") == FORMAT else None


def _set_aside(path: Path, why: str) -> None:
    """Rename a damaged model file and warn; if it cannot be renamed, only warn."""
    try:
        path.replace(path.with_name(path.name + ".damaged"))
        where = f"moved aside as {path.name}.damaged"
    except OSError as error:
        where = f"left where it is ({error.strerror})"
    warnings.warn(f"{why}; {where}, planning goes on without it", stacklevel=2)


def _decisive(machine: Fingerprint) -> str:
    """Hardware and libraries as one text, the beginning of the "hardware" entry in the metadata of models."""
    return ", ".join(f"{key} {machine[key]}" for key in DECISIVE)


def _gpus() -> list[str]:
    """Names of this machine's NVIDIA GPUs, as the driver reports them."""
    names = []
    with suppress(OSError):
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            match = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
            names += [match[1].strip()] if match else []
    return names


def cost_model_for(device: str, optimizer: Optimizer = "rowwise_adagrad") -> CostModel:
    """The bundled learned model of a device type, or the model from published figures if no learned one is bundled.

    Raises:
        InvalidInput: there is neither.
    """
    bundled = bundled_models()
    if device in bundled:
        return load_model(bundled[device])
    if device in GPUS:
        return PublishedModel(device, optimizer)
    known = ", ".join(sorted({*bundled, *GPUS}))
    raise InvalidInput(
        f"topology: no cost model for device {device!r}; bundled are {known}. Measure and train one "
        "('shardwright collect', 'shardwright train') and pass it as cost_model, or --model on the command line"
    )


def named_model(name: str, optimizer: Optimizer = "rowwise_adagrad") -> CostModel | None:
    """The model that plans know by this name: calibrated here, bundled, published or a plug-in; None if there is none.

    Raises:
        InvalidInput: the plug-in cannot be loaded.
    """
    device, _, kind = name.partition("/")
    if kind == "published" and device in GPUS:
        return PublishedModel(device, optimizer)
    bundled = next((path for path in bundled_models().values() if model_header(path).get("name") == name), None)
    return named_user_model(name) or (load_model(bundled) if bundled is not None else _plugin(name))


def model_names() -> list[str]:
    """The names of all models but plug-ins: bundled, published, and calibrated here."""
    bundled = [model_header(path).get("name", path.stem) for path in bundled_models().values()]
    return [*bundled, *(PublishedModel(device).name for device in GPUS), *(model.name for model in user_models())]


def given_cost_model(given: CostModel | str | Path, optimizer: Optimizer = "rowwise_adagrad") -> CostModel:
    """The cost model that a caller passed: a model, the path of a model file, or a name as `named_model` takes it.

    Raises:
        InvalidInput: the file cannot be read, the plug-in cannot be loaded, or there is neither file nor model.
    """
    if isinstance(given, CostModel):
        return given
    if not isinstance(given, (str, Path)):
        raise InvalidInput(
            f"cost_model is {given!r}, must be a path, a name or a model whose class derives from cost.CostModel"
        )
    named = None if os.path.lexists(given) else named_model(str(given), optimizer)
    if named is None and not os.path.lexists(given) and _NAME.fullmatch(str(given)):
        raise InvalidInput(
            f"there is neither a file nor a cost model {str(given)!r}; 'shardwright models' lists the models"
            f"{did_you_mean(str(given), model_names())}"
        )
    return load_model(Path(given)) if named is None else named


def resolve_cost_model(given: CostModel | str | Path | None, task: Task) -> CostModel:
    """The cost model for a task, from a caller's argument: a model, a file, a name, or None.

    None means the model calibrated on this machine, if this machine has the task's device type and the bundled model does not cover more
    of the task; otherwise it means the bundled model.

    Raises:
        InvalidInput: the file or plug-in cannot be loaded, or there is no model for the task's devices.
    """
    if given is not None:
        return given_cost_model(given, task.optimizer)
    device = task.topology.device
    own = best_user_model(task)
    if own is None:
        return cost_model_for(device, task.optimizer)
    user_model, model = own
    if device in bundled_models():
        bundled = load_model(bundled_models()[device])
        if len(list(unlike(bundled.metadata, task))) < len(list(unlike(user_model.metadata, task))):
            return bundled
    return model


def model_behind(plan: Plan) -> CostModel:
    """The model that priced a plan: the calibrated or published one, or the plug-in, that the plan names, else the default of its devices.

    Raises:
        InvalidInput: no such model exists, or the plug-in cannot be loaded.
    """
    device, optimizer = plan.task.topology.device, plan.task.optimizer
    named = named_model(plan.cost_model, optimizer)
    return cost_model_for(device, optimizer) if named is None else named


def _plugin(name: str) -> CostModel | None:
    """The plug-in of this name; None if there is none."""
    plugin = plugins("cost_models").get(name)
    return None if plugin is None else given_cost_model(load_plugin(plugin, ("pricing", "encode_arrays")))
