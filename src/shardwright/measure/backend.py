"""What a kernel backend does: build the fused call of a kernel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.measure.arena import Arena
from shardwright.measure.groups import KernelGroup

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
    """Builds fused calls."""

    name: str

    def build(
        self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = LEARNING_RATE
    ) -> FusedCall:
        """The tables of `group` in the arena, with the optimizer that `backward` applies.

        Raises:
            MeasurementFailed: the backend cannot run this group or optimizer on the arena's device.
        """


BACKENDS = ("fbgemm", "embedding_bag")

NO_CUDA = "device 'cuda' is not available here; use device='cpu', or install a CUDA build of torch"


def default_backend() -> str:
    """`fbgemm` where it is installed, else `embedding_bag`."""
    from importlib.util import find_spec

    return "fbgemm" if find_spec("fbgemm_gpu") else "embedding_bag"


def load_backend(name: str) -> Backend:
    """The backend of this name.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: its package is not installed.
    """
    if name not in BACKENDS:
        raise InvalidInput(f"backend: unknown backend {name!r}; known backends are {', '.join(BACKENDS)}")
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
