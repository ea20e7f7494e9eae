"""2D parallelism: a cluster is cut into sharding groups, and each group holds all tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from shardwright.errors import InvalidInput
from shardwright.task.quantities import checked_flag, checked_whole
from shardwright.task.topology import MAX_DEVICES

Shape: TypeAlias = tuple[int, int]
"""Number of hosts, and devices on each host."""


@dataclass(frozen=True)
class ShardingGroups:
    """Equal groups of devices. Each group shards all tables; the groups average their weights at intervals.

    TorchRec's `DMPCollection` runs them. W devices in groups of G make W / G groups. Rank r holds the same blocks in every group, so these
    devices are replicas. By default replicas are neighbours, so that their all-reduce stays inside a host as far as possible: rank r of
    group g is rank r · W / G + g of the cluster. With `inter_host_allreduce` the ranks of a group are neighbours: g · G + r.

    Attributes:
        size: devices of a group, G.
        hosts: hosts of the whole cluster.
        devices_per_host: devices of each host.
        sync_interval: steps between two all-reduces of weights and optimizer state.
        inter_host_allreduce: TorchRec's `use_inter_host_allreduce`.
        fully_sharded: TorchRec's `ShardingStrategy.FULLY_SHARDED`: between forward and backward pass each replica holds only its part
            of the weights. Weights then travel in every step, and optimizer state never does.
    """

    size: int
    hosts: int
    devices_per_host: int
    sync_interval: int = 1
    inter_host_allreduce: bool = False
    fully_sharded: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "hosts", "devices_per_host", "sync_interval"):
            object.__setattr__(self, name, checked_whole(getattr(self, name), f"sharding_groups: {name}"))
        for name in ("inter_host_allreduce", "fully_sharded"):
            object.__setattr__(self, name, checked_flag(getattr(self, name), f"sharding_groups: {name}"))
        if self.devices > MAX_DEVICES:
            raise InvalidInput(
                f"sharding_groups: hosts {self.hosts} × devices_per_host {self.devices_per_host} must be at most {MAX_DEVICES} devices"
            )
        if self.devices % self.size:
            raise InvalidInput(
                f"sharding_groups: size is {self.size}, must divide the {self.devices} devices: one of "
                f"{', '.join(map(str, group_sizes(self.devices)))}"
            )
        if self.fully_sharded and self.sync_interval != 1:
            raise InvalidInput(
                f"sharding_groups: sync_interval is {self.sync_interval}, and fully sharded groups exchange weights every step: leave it 1"
            )

    @property
    def devices(self) -> int:
        """Devices of the cluster."""
        return self.hosts * self.devices_per_host

    @property
    def count(self) -> int:
        """Number of groups, and of replicas of each block."""
        return self.devices // self.size

    def ranks(self, group: int) -> range:
        """The cluster's ranks of one group, in the order of the group's ranks."""
        if self.inter_host_allreduce:
            return range(group * self.size, (group + 1) * self.size)
        return range(group, self.devices, self.count)

    def replicas(self, rank: int) -> range:
        """The cluster's ranks of one rank in every group: the replicas of its blocks."""
        if self.inter_host_allreduce:
            return range(rank, self.devices, self.size)
        return range(rank * self.count, (rank + 1) * self.count)

    @cached_property
    def group_shape(self) -> Shape:
        """Shape of a group's ranks: its hosts are the longest equal runs of ranks that each lie on one host."""
        return self._shape([self.ranks(group) for group in range(self.count)])

    @cached_property
    def replica_shape(self) -> Shape:
        """Shape of the replicas of a block."""
        return self._shape([self.replicas(rank) for rank in range(self.size)])

    def _shape(self, sets: Sequence[range]) -> Shape:
        length, per_host = len(sets[0]), self.devices_per_host

        def together(run: int) -> bool:
            starts = range(0, length, run)
            return all(ranks[i] // per_host == ranks[i + run - 1] // per_host for ranks in sets for i in starts)

        run = next(run for run in reversed(group_sizes(length)) if together(run))
        return length // run, run


def group_sizes(devices: int) -> list[int]:
    """The possible group sizes for `devices` devices: the divisors, ascending."""
    return [size for size in range(1, devices + 1) if devices % size == 0]
