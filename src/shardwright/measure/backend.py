"""The fused kernels that serve a device's shards, and what a backend does: build the fused call of a kernel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardwright.measure.arena import Arena
from shardwright.sharding.calls import Call, call_of
from shardwright.sharding.work import ShardWork

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 1e-9
"""Keeps the weights in place however often a call is repeated, at the full cost of an update."""

EPSILON = 1e-8


@dataclass(frozen=True)
class KernelGroup:
    """Shards that one fused call serves; see `sharding.calls`.

    Attributes:
        members: positions of the shards in the device's list.
        works: their works, in the same order.
    """

    members: tuple[int, ...]
    works: tuple[ShardWork, ...]

    @property
    def samples(self) -> int:
        """Bags of each table."""
        return self.works[0].samples

    @property
    def pooled(self) -> bool:
        """Whether the rows of a bag are summed."""
        return self.works[0].pooled

    @property
    def dtype(self) -> str:
        """Type of the weights."""
        return self.works[0].dtype


def kernel_groups(works: Sequence[ShardWork]) -> list[KernelGroup]:
    """The fused calls that serve a device's shards, usually one."""
    groups: dict[Call, list[int]] = {}
    for position, work in enumerate(works):
        groups.setdefault(call_of(work), []).append(position)
    return [KernelGroup(tuple(members), tuple(works[m] for m in members)) for members in groups.values()]


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
