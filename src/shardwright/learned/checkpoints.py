"""Checkpoints: a killed training resumes from its last checkpoint, with the same result. Files hold safetensors and JSON, never pickles."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardwright.errors import InvalidInput
from shardwright.files import is_missing, write_atomically
from shardwright.tensor_files import reading

FORMAT = "1"
KIND = "checkpoint"
_OF_ADAM = {"step", "exp_avg", "exp_avg_sq"}
_REMEDY = "name a checkpoint that 'shardwright learn' wrote, or remove it to begin anew"


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: whenever the process ends, the last whole checkpoint remains.

    Args:
        path: the file.
        tensors: weights, optimizer state, replay buffer.
        state: everything else, as plain data that JSON can hold; `rng_state` makes it of generators.

    Raises:
        InvalidInput: the path cannot be written to.
    """
    from safetensors.torch import save

    own = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    header = {"format": FORMAT, "kind": KIND, "state": json.dumps(state)}
    write_atomically(path, save(own, metadata=header))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the tensors and the state of a checkpoint; None if the file does not exist.

    Raises:
        InvalidInput: the file cannot be read, is damaged, or is not a checkpoint of this format version.
    """
    from safetensors import safe_open

    if is_missing(path):
        return None
    with reading(path, "checkpoint", None, _REMEDY), safe_open(str(path), framework="pt") as file:
        header: dict[str, str] = file.metadata() or {}
        stated = header.get("format"), header.get("kind")
        if stated != (FORMAT, KIND):
            raise InvalidInput(
                f"{path}: not a checkpoint of format {FORMAT!r} (it says kind {stated[1]!r}, format {stated[0]!r}); {_REMEDY}"
            )
        try:
            state = json.loads(header.get("state", ""))
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            raise InvalidInput(f"{path}: not a whole checkpoint (its state is no JSON object); {_REMEDY}")
        return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118


def check_same_training(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to this training.

    Args:
        path: the checkpoint, for messages.
        stored: the checkpoint's state.
        wanted: entries that the state must equal, as plain data: strategy, options, digest of the tasks, world.

    Raises:
        InvalidInput: an entry differs; the message names it.
    """
    for name, value in json.loads(json.dumps(wanted)).items():
        if stored.get(name) != value:
            raise InvalidInput(
                f"{path}: the checkpoint was made with {name} {stored.get(name)!r}, this training has {value!r}; "
                "train with the same, or name another checkpoint"
            )


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Wrap the restoring of a checkpoint, and report any value of a wrong shape or kind as an invalid checkpoint.

    Raises:
        InvalidInput: a value does not fit the training; the message names the file and quotes torch, NumPy or `check_tensor`.
    """
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(f"{path}: the checkpoint does not fit this training ({said}); {_REMEDY}") from error


def check_tensor(name: str, value: Tensor, like: Tensor, *, any_length: bool = False) -> None:
    """Check that a tensor can take the place of another one.

    Args:
        name: name of the tensor, for messages.
        value: the tensor.
        like: a tensor with the required shape and type.
        any_length: whether the first size may differ.

    Raises:
        ValueError: shape or type differ; see `restoring`.
    """
    first = 1 if any_length else 0
    if value.dtype != like.dtype or value.dim() != like.dim() or value.shape[first:] != like.shape[first:]:
        raise ValueError(
            f"{name} is of {value.dtype} and shape {tuple(value.shape)}, not of {like.dtype} and {tuple(like.shape)}"
        )


def check_range(name: str, value: Tensor, low: float, high: float) -> None:
    """Check that all numbers of a tensor are from `low` to `high`; NaN fails.

    Raises:
        ValueError: a number is outside; see `restoring`.
    """
    if not bool(((value >= low) & (value <= high)).all()):
        raise ValueError(f"{name} holds numbers that are not from {low:g} to {high:g}")


def check_count(name: str, value: object) -> int:
    """Return a count from a checkpoint after checking it.

    Raises:
        ValueError: the value is not a whole number of at least 0; see `restoring`.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, must be a whole number of at least 0")
    return value


def restore_network(network: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "network.") -> None:
    """Give a network the weights whose names begin with `prefix`.

    Raises:
        RuntimeError, ValueError: a weight is missing, unknown, or does not fit.
    """
    own = network.state_dict()
    named = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    for name in own.keys() & named.keys():
        check_tensor(prefix + name, named[name], own[name])
    network.load_state_dict(named)


def optimizer_tensors(optimizer: Optimizer, prefix: str = "optimizer.") -> dict[str, Tensor]:
    """An optimizer's state and learning rates, as tensors whose names begin with `prefix`."""
    content = optimizer.state_dict()
    state = {
        f"{prefix}state.{index}.{name}": torch.as_tensor(value)
        for index, values in content["state"].items()
        for name, value in values.items()
    }
    rates = [group["lr"] for group in content["param_groups"]]
    return state | {f"{prefix}rates": torch.tensor(rates, dtype=torch.float64)}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], prefix: str = "optimizer.") -> None:
    """Restore an Adam optimizer over the same parameters from the tensors of `optimizer_tensors`.

    Raises:
        KeyError: the tensors hold no optimizer of this prefix.
        ValueError: a tensor does not fit the parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    check_tensor(f"{prefix}rates", tensors[f"{prefix}rates"], optimizer_tensors(optimizer, prefix)[f"{prefix}rates"])
    rates = tensors[f"{prefix}rates"].tolist()
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(f"{prefix}state."):
            index, part = name.removeprefix(f"{prefix}state.").split(".", 1)
            check_tensor(name, value, torch.zeros(()) if part == "step" else parameters[int(index)])
            state.setdefault(int(index), {})[part] = value
    if any(index < 0 or parts.keys() != _OF_ADAM for index, parts in state.items()):
        raise ValueError(f"{prefix}state is not that of Adam: {', '.join(sorted(_OF_ADAM))} of each parameter")
    groups = optimizer.state_dict()["param_groups"]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rng_state(numpy_rng: np.random.Generator, torch_rng: torch.Generator | None = None) -> dict[str, Any]:
    """The states of generators as plain data: NumPy's alone, or both under the keys "numpy" and "torch"."""
    if torch_rng is None:
        return dict(numpy_rng.bit_generator.state)
    saved = base64.b64encode(torch_rng.get_state().numpy().tobytes()).decode("ascii")
    return {"numpy": numpy_rng.bit_generator.state, "torch": saved}


def restore_rng(
    state: Mapping[str, Any], numpy_rng: np.random.Generator, torch_rng: torch.Generator | None = None
) -> None:
    """Set generators to the states that `rng_state` returned."""
    numpy_rng.bit_generator.state = state if torch_rng is None else state["numpy"]
    if torch_rng is not None:
        torch_rng.set_state(torch.frombuffer(bytearray(base64.b64decode(state["torch"])), dtype=torch.uint8))
