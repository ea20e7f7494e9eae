"""The devices that hold one shard, host by host, and which of them sums the gradients of which rows."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import InvalidInput
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task
from shardwright.task.topology import Topology

ALONE, TOUCHED, WHOLE = 0, 1, 2


@dataclass(frozen=True)
class ReplicaSet:
    """The holders of a shard: the same local ranks on each of some hosts.

    Attributes:
        ranks: the holders, ascending.
        hosts: hosts with a replica, ascending.
        local: local ranks of the replicas of each host, ascending.
        per_host: devices of a host.
    """

    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    local: tuple[int, ...]
    per_host: int

    @classmethod
    def of(cls, shard: Shard, topology: Topology) -> ReplicaSet:
        """The holders of a shard.

        Raises:
            InvalidInput: the hosts do not hold it on the same local ranks.
        """
        per_host = topology.devices_per_host
        hosts = tuple(sorted({rank // per_host for rank in shard.devices}))
        local = tuple(sorted({rank % per_host for rank in shard.devices}))
        if len(shard.devices) != len(hosts) * len(local):
            raise InvalidInput(
                f"table '{shard.table}': rows [{shard.rows[0]}, {shard.rows[1]}) lie on devices {list(shard.devices)[:8]}; "
                "replicas must lie on the same local ranks of each of their hosts. "
                "Use one device, one local rank of every host, or all devices"
            )
        return cls(shard.devices, hosts, local, per_host)

    def owner(self, number: int) -> int:
        """The rank that sums the gradients of the number-th range of the shard."""
        local = self.local[number % len(self.local)]
        host = self.hosts[number // len(self.local) % len(self.hosts)]
        return host * self.per_host + local

    def nearest(self, rank: int, number: int) -> int:
        """Whom a rank asks for rows of the number-th range: itself, else a holder on its host, else the owner."""
        if rank in self.ranks:
            return rank
        host = rank // self.per_host
        if host in self.hosts:
            return host * self.per_host + self.local[number % len(self.local)]
        return self.owner(number)


def exchange_of(task: Task, shard: Shard) -> int:
    """How the replicas of a shard agree on its gradient: `ALONE`, `TOUCHED` or `WHOLE`."""
    if len(shard.devices) == 1:
        return ALONE
    way: str = task.exchange.replica_gradients
    if way == "cheaper":
        from shardwright.cost.sequences import replica_exchange

        way = replica_exchange(task, shard)
    return WHOLE if way == "whole" else TOUCHED
