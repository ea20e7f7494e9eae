"""The fused kernels that serve a device's shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.sharding.calls import Call, call_of
from shardwright.sharding.work import ShardWork


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
