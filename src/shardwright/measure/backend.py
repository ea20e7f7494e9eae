"""What a kernel backend does: build the fused call of a kernel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.measure.arena import Arena
from shardwright.measure.groups import KernelGroup
from shardwright.measure.own_backend import is_own, own_backend

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 1e-9
"""Keeps the weights in place however often a call is repeated, at the full cost of an update."""

EPSILON = 1e-8


@dataclass(frozen=True)
class FusedInput:
    """Lookups of all tables of a kernel group in one batch, table after table.

    Attributes:
        indices: `(n,)` int64 row ids.
        offsets: `(tables × samples + 1,)` int64 starts of the bags.
    """

    indices: torch.Tensor
    offsets: torch.Tensor


class FusedCall(Protocol):
    """The tables of one kernel group, ready to run."""

    def forward(self, batch: FusedInput) -> Sequence[torch.Tensor]:
        """Look up. Pooled: `(samples, dim)` per table, or one `(samples, sum of dims)`. Not pooled: `(n, dim)` rows."""

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Propagate the gradients of the outputs and update the weights."""

    def weights(self) -> list[torch.Tensor]:
        """Views `(rows, dim)` of the weights, by table."""

    def state(self) -> list[list[torch.Tensor]]:
        """Views of the optimizer state by kind and table: none, `(rows,)` or `(rows, dim)` tensors."""


class Backend(Protocol):
    """Builds fused calls.

    A class of one's own that is made without arguments may be named as `package.module:ClassName` wherever a backend is named. It
    is checked against float64 before samples are made of it (`shardwright.measure.checks`), so a call must return the views that
    `FusedCall` lists, and update as `shardwright.measure.checks.reference.updated` does.

    Attributes:
        name: what to call it; samples are kept apart by the name that it is asked for by.
    """

    name: str

    def build(
        self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = LEARNING_RATE
    ) -> FusedCall:
        """The tables of `group` in the arena, with the optimizer that `backward` applies.

        Args:
            group: tables of one number of samples and one weight type, all pooled or none.
            optimizer: "sgd", "rowwise_adagrad", "adagrad" or "adam".
            arena: weights and state are taken from it, so that no sample pays for fresh memory; its device is where all tensors lie.
            learning_rate: step size.

        Raises:
            MeasurementFailed: the backend cannot run this group or optimizer on the arena's device.
        """


BACKENDS = ("fbgemm", "embedding_bag")

BACKEND_HELP = f"{', '.join(BACKENDS)}, or your own as package.module:ClassName (default: fbgemm where it is installed)"

NO_CUDA = "device 'cuda' is not available here; use device='cpu', or install a CUDA build of torch"


def default_backend() -> str:
    """`fbgemm` where it is installed, else `embedding_bag`."""
    from importlib.util import find_spec

    return "fbgemm" if find_spec("fbgemm_gpu") else "embedding_bag"


def check_backend(name: str) -> None:
    """Check that there is a backend of this name; one of the user's own is imported for that.

    Raises:
        InvalidInput: there is none.
        MissingDependency: torch is not installed.
    """
    if is_own(name):
        import_torch()
        own_backend(name)
    elif name not in BACKENDS:
        raise InvalidInput(
            f"backend: unknown backend {name!r}; known backends are {', '.join(BACKENDS)}, "
            "and one of your own is named package.module:ClassName"
        )


def load_backend(name: str) -> Backend:
    """The backend of this name.

    Args:
        name: one of `BACKENDS`, or package.module:ClassName.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: its package is not installed.
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


def import_torch() -> ModuleType:
    """The torch package.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"measuring needs PyTorch ({error}); install it with: pip install 'shardwright[measure]'"
        ) from error
    return torch
