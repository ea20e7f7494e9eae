"""Kernel backends: the interface that a backend implements, and how to find a backend by name, built-in or a user's own."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from shardwright.errors import InvalidInput, MeasurementFailed, MissingDependency, said
from shardwright.hardware import available_memory, import_torch
from shardwright.plugins import plugins
from shardwright.sharding.work import Call, ShardWork, call_of
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    import torch

BACKENDS = ("fbgemm", "embedding_bag")

BACKEND_HELP = f"{', '.join(BACKENDS)}, a plug-in's name, or your own as package.module:ClassName (default: fbgemm if it is installed)"

LEARNING_RATE = 1e-9
"""A gradient that leaves the weights in place even after many calls, at the full cost of an update."""

EPSILON = 1e-8

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_BUILD = "build(self, group, optimizer, arena, learning_rate=…)"
_ALIGNMENT = 4096  # bytes: a page, as for a fresh allocation
_FILL = 0.01  # positive and far from denormal, read as fp32 or as a pair of fp16: valid weights and optimizer state
_SMALL_HALVES = (0x2000, 0x3400)  # bits of fp16 from 0.008 to 0.25; a pair of them is a small positive fp32
_TILE = 2**27


@dataclass(frozen=True)
class KernelGroup:
    """The shards of one fused call; see `sharding.work`.

    Attributes:
        members: positions of the shards in the device's list.
        works: the works of these shards, in the same order.
    """

    members: tuple[int, ...]
    works: tuple[ShardWork, ...]

    @property
    def samples(self) -> int:
        """Bags of each feature."""
        return self.works[0].samples

    @property
    def tables_of_features(self) -> list[int]:
        """The table of each feature, by position in `works`."""
        return [table for table, work in enumerate(self.works) for _ in work.feature_shares]

    @property
    def starts(self) -> list[int]:
        """The first bag of each table, and the number of bags."""
        return [0, *accumulate(work.bags for work in self.works)]

    @property
    def pooled(self) -> bool:
        """Whether the rows of a bag are summed."""
        return self.works[0].pooled

    @property
    def dtype(self) -> str:
        """Type of the weights."""
        return self.works[0].dtype


def kernel_groups(works: Sequence[ShardWork]) -> list[KernelGroup]:
    """Group a device's shards into fused calls, usually one."""
    groups: dict[Call, list[int]] = {}
    for position, work in enumerate(works):
        groups.setdefault(call_of(work), []).append(position)
    return [KernelGroup(tuple(members), tuple(works[m] for m in members)) for members in groups.values()]


@dataclass(frozen=True)
class FusedInput:
    """Lookups of all tables of a kernel group in one batch, table after table, and within a table feature after feature.

    Attributes:
        indices: `(n,)` int64 row ids.
        offsets: `(bags + 1,)` int64 starts of the bags: `work.bags` of each table.
    """

    indices: torch.Tensor
    offsets: torch.Tensor


class Arena:
    """One large buffer that holds the tables of a sample; every sample uses it again.

    So no sample has to allocate, zero or page-fault its weights.

    Args:
        size_bytes: size of the buffer.
        device: torch device of the buffer.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        import torch

        self.device = device
        self.size_bytes = size_bytes
        check_fits(size_bytes, device)
        try:
            self._buffer = torch.full((size_bytes // 4,), _FILL, dtype=torch.float32, device=device)
            if device.type == "cuda":
                fill_randomly(self._buffer)
        except RuntimeError as error:  # torch raises this, or its subclass OutOfMemoryError, when memory runs out
            raise MeasurementFailed(
                f"arena: {format_bytes(size_bytes)} could not be allocated on {device}; use a smaller arena"
            ) from error
        self._used = 0

    def reset(self) -> None:
        """Free everything. Tensors taken before must not be used afterwards."""
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A `(count,)` tensor that holds the values of the first fill, or those that earlier samples left there.

        Raises:
            MeasurementFailed: the arena is too small.
        """
        needed = math.ceil(count * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        if self._used + needed > self.size_bytes:
            raise MeasurementFailed(
                f"arena: the tables need {format_bytes(self._used + needed)}, the arena has {format_bytes(self.size_bytes)}; "
                "use a larger arena, or smaller tables"
            )
        start = self._used // 4
        self._used += needed
        return self._buffer[start : start + needed // 4].view(dtype)[:count]


def fill_randomly(buffer: torch.Tensor) -> None:
    """Fill an fp32 buffer with random small positive values, which are also small and positive when read as fp16.

    A GPU may be faster on constant data, as fewer bits change.
    """
    import torch

    for tile in buffer.view(torch.int16).split(_TILE):
        tile.random_(*_SMALL_HALVES)


def check_fits(size_bytes: int, device: torch.device) -> None:
    """Check that a buffer of this size may be allocated on the device.

    Raises:
        MeasurementFailed: less memory is free.
    """
    free = free_memory(device)
    if size_bytes > free:
        raise MeasurementFailed(
            f"arena: {format_bytes(size_bytes)} for weights and optimizer state are needed, {format_bytes(free)} are free on {device}; "
            "scale the tables down, or measure on a machine with more memory"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


class FusedCall(Protocol):
    """The tables of one kernel group, ready to run."""

    def forward(self, batch: FusedInput) -> Sequence[torch.Tensor]:
        """Look up. Pooled: `(bags, dim)` per table, or one `(samples, sum of the features' dims)`. Not pooled: `(n, dim)` rows."""

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Propagate the gradients of the outputs and update the weights."""

    def weights(self) -> list[torch.Tensor]:
        """Views `(rows, dim)` of the weights, by table."""

    def state(self) -> list[list[torch.Tensor]]:
        """Views of the optimizer state by kind and table: none, `(rows,)` or `(rows, dim)` tensors."""


class Backend(Protocol):
    """Builds fused calls.

    A user's own class is named as `package.module:ClassName` in any option that takes a backend; its constructor takes no arguments. It is
    checked against float64 before samples are measured with it (`shardwright.measure.checks`). So a call must return the views that
    `FusedCall` lists, and update weights as `shardwright.measure.kernel_checks.updated` does.

    Attributes:
        name: name of the backend. The store separates samples by the name under which the backend was requested.
    """

    name: str

    def build(
        self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = LEARNING_RATE
    ) -> FusedCall:
        """Place the tables of `group` in the arena; return their fused call, whose `backward` applies the optimizer.

        Args:
            group: tables of one number of samples and one weight type, all pooled or none.
            optimizer: "sgd", "rowwise_adagrad", "adagrad" or "adam".
            arena: the source of weights and state; its device holds all tensors.
            learning_rate: step size.

        Raises:
            MeasurementFailed: the backend cannot run this group or optimizer on the arena's device.
        """


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own backend class ("package.module:ClassName") or of a plug-in."""
    return name not in BACKENDS and (":" in name or name in plugins("backends"))


def check_backend(name: str) -> None:
    """Check that there is a backend of this name; imports a user's own backend.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch is not installed.
    """
    if is_own(name):
        import_torch()
        own_backend(name)
    elif name not in BACKENDS:
        raise InvalidInput(
            f"backend: unknown backend {name!r}; known backends are {', '.join([*BACKENDS, *plugins('backends')])}, "
            "and one of your own is named package.module:ClassName"
        )


def load_backend(name: str) -> Backend:
    """The backend of this name.

    Args:
        name: one of `BACKENDS`, package.module:ClassName, or the name of a plug-in, whose entry point names a class in this form.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: the package of the backend is not installed.
    """
    if is_own(name):
        import_torch()
        return own_backend(name)
    check_backend(name)
    import_torch()
    try:
        if name == "fbgemm":
            from shardwright.measure.fbgemm import FbgemmBackend

            return FbgemmBackend()
        from shardwright.measure.embedding_bag import EmbeddingBagBackend

        return EmbeddingBagBackend()
    except ImportError as error:
        raise MissingDependency(
            f"backend '{name}' cannot be imported ({error}); install it with: pip install 'shardwright[measure]'"
        ) from error


def own_backend(name: str) -> Backend:
    """Import a user's own backend class and make an instance.

    Args:
        name: as in "my_package.kernels:MyBackend". Measuring processes import it too, so it must not depend on this process.

    Raises:
        InvalidInput: there is no such module or class, it cannot be imported or instantiated, or the object is no backend.
    """
    backend_class = _class(name)
    try:
        backend = backend_class()
    except Exception as error:
        raise InvalidInput(
            f"backend: {name} could not be created ({said(error)}); its constructor must work without arguments"
        ) from error
    if not isinstance(getattr(backend, "name", None), str):
        raise InvalidInput(
            f"backend: {name} has no `name`, which must be a text; see shardwright.measure.backend.Backend"
        )
    build = getattr(backend, "build", None)
    if not callable(build):
        raise InvalidInput(f"backend: {name} has no method {_BUILD}; see shardwright.measure.backend.Backend")
    try:
        inspect.signature(build).bind("group", "sgd", "arena", 0.1)
        inspect.signature(build).bind("group", "sgd", "arena")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"backend: {name}.build does not take its arguments ({error}); write {_BUILD}") from error
    return cast("Backend", backend)


def source_digest(name: str) -> str:
    """Digest of the source file of a backend's class; "unknown" if the file cannot be read.

    Raises:
        InvalidInput: the class cannot be imported.
    """
    try:
        source = inspect.getsourcefile(_class(name))
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "unknown"
    except (OSError, TypeError):
        return "unknown"


def _class(name: str) -> type[Any]:
    """The backend class that a name or a plug-in points to."""
    name = name if ":" in name else plugins("backends")[name].value
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"backend: {name!r} must read package.module:ClassName")
    path, _, attribute = name.partition(":")
    if path == "__main__":
        raise InvalidInput(
            "backend: a class in '__main__' cannot be imported by measuring processes; move it into a module and name that"
        )
    try:
        module = import_module(path)
    except Exception as error:
        raise InvalidInput(f"backend: {_not_imported(path, error)}") from error
    member = getattr(module, attribute, None)
    if isinstance(member, type):
        return member
    classes = sorted(
        key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    )
    what = "is no class" if hasattr(module, attribute) else "does not exist"
    raise InvalidInput(f"backend: {attribute} {what} in {path}, which defines {', '.join(classes) or 'no class'}")


def _not_imported(path: str, error: Exception) -> str:
    """Why a module could not be imported, and what to do."""
    parts = path.split(".")
    own = {".".join(parts[: end + 1]) for end in range(len(parts))}
    if isinstance(error, ModuleNotFoundError) and error.name in own:
        return f"there is no module {error.name!r}; install its package, or name its folder in PYTHONPATH"
    return (
        f"importing {path} failed ({said(error)}); measuring processes import it, so it must not depend on this process"
    )
