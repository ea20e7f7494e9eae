"""Arrays on disk: safetensors files with a versioned header of texts. Reading needs numpy alone and unpickles nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput
from shardwright.files import input_size, write_atomically
from shardwright.schema import Place

LARGEST = 64 << 20
"""Most bytes of a file that is read."""

Weights = dict[str, npt.NDArray[np.float32]]


def check_weights(
    weights: Mapping[str, npt.NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    what: str = "cost model",
    remedy: str = "train the model again",
) -> None:
    """Check that arrays are present, have the right shapes, and are finite.

    Raises:
        InvalidInput: an array fails the check; the message begins with `what` and ends with the remedy.
    """
    for name, shape in shapes.items():
        weight = weights.get(name)
        if weight is None or weight.shape != shape:
            held = "is missing" if weight is None else f"has shape {weight.shape}"
            raise InvalidInput(f"{what}: {name} {held}, must be an array of shape {shape}; {remedy}")
        if not np.isfinite(weight).all():
            raise InvalidInput(f"{what}: {name} holds NaN or infinite values; {remedy}")


def save_weights(path: Path, weights: Mapping[str, npt.NDArray[Any]], header: Mapping[str, str]) -> None:
    """Write arrays as float32, atomically.

    Raises:
        InvalidInput: the path cannot be written to.
    """
    from safetensors.numpy import save

    tensors = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()}
    write_atomically(path, save(tensors, metadata=dict(header)))


def load_weights(
    path: Path, wanted: Callable[[dict[str, str]], Collection[str] | None], what: str, remedy: str
) -> tuple[dict[str, str], Weights]:
    """The header and the float32 arrays of a file.

    Args:
        path: the file.
        wanted: checks the header and returns the names of the arrays to read (None: all).
        what: what the file should be, for messages: "policy".
        remedy: end of the message if the file cannot be read: "name a file made by …".

    Raises:
        InvalidInput: the file cannot be read, is too large or damaged, its header is refused, or an array does not hold float32.
    """
    from safetensors import safe_open

    # Given a Path, safe_open would lose a Ctrl-C that comes while it asks for the path's text.
    with (
        reading(path, what, LARGEST, remedy),
        safe_open(str(path), framework="np") as file,
        Place(str(path)).naming(),
    ):
        header: dict[str, str] = file.metadata() or {}
        chosen = wanted(header)
        names = [name for name in file.keys() if chosen is None or name in chosen]  # noqa: SIM118
        for name in names:
            number = file.get_slice(name).get_dtype()
            if number != "F32":
                raise InvalidInput(f"{name} holds numbers of type {number}, must be F32; make the {what} anew")
        return header, {name: file.get_tensor(name) for name in names}


@contextmanager
def reading(path: Path, what: str, largest: int | None, remedy: str) -> Iterator[None]:
    """Check a safetensors file before it is opened; raise the reason if it cannot be read.

    Args:
        path: the file.
        what: what the file should be, for messages: "policy".
        largest: most bytes of a file that is read; None for any size.
        remedy: end of the message if the file cannot be read: "name a file made by …".

    Raises:
        InvalidInput: the file is missing, too large or damaged, or cannot be read.
    """
    from safetensors import SafetensorError

    input_size(path, what, largest, remedy)
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{path}: the {what} cannot be read ({error.strerror or error}); {remedy}") from None
    except SafetensorError as error:
        raise InvalidInput(f"{path}: not a whole safetensors file ({error}); {remedy}") from None
