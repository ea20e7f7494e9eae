"""What is left of a plan when tables or devices have come, gone or changed since it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.errors import InvalidPlan
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology


@dataclass(frozen=True)
class Carried:
    """An older plan on the devices of a newer task.

    Attributes:
        shards: of every table of the task that the plan has in the same shape, the blocks that a device still holds, by the task's ranks.
        lost: those of these tables of which a block lies on no device any more.
        new: tables that the plan does not have.
        changed: tables that have other rows, another dim or another type of weights in the plan.
        gone: tables that only the plan has.
        new_devices: how many devices the plan did not have.
        gone_devices: how many devices of the plan are no more.
    """

    shards: dict[str, list[Shard]]
    lost: frozenset[str]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    new_devices: int
    gone_devices: int

    def why_no_plan(self, task: Task) -> str | None:
        """Why what is left does not answer the task as it is; None if it does."""
        missing = [
            _counted(len(self.new), "table", "new"),
            _counted(len(self.changed), "table", "of another shape"),
            _counted(self.gone_devices if self.lost else 0, "device", "gone"),
        ]
        found = ", ".join(text for text in missing if text)
        if found:
            return found
        try:
            Plan(task, self.all_shards()).check()
        except InvalidPlan as error:
            return str(error)
        return None

    def all_shards(self) -> tuple[Shard, ...]:
        """The blocks of all tables."""
        return tuple(shard for shards in self.shards.values() for shard in shards)


def carry(plan: Plan, task: Task) -> Carried:
    """What is left of a plan for another task.

    Args:
        plan: the older plan.
        task: the newer task.
    """
    before, after = plan.task.table_by_name, task.table_by_name
    same = same_devices(plan.task.topology, task.topology)
    shards: dict[str, list[Shard]] = {}
    lost = set()
    for name, table in after.items():
        if name in before and same_shape(before[name], table):
            shards[name] = _surviving(plan.by_table[name], same)
            if len(shards[name]) < len(plan.by_table[name]):
                lost.add(name)
    return Carried(
        shards,
        frozenset(lost),
        new=tuple(name for name in after if name not in before),
        changed=tuple(name for name in after if name in before and name not in shards),
        gone=tuple(name for name in before if name not in after),
        new_devices=task.topology.devices - len(same),
        gone_devices=plan.task.topology.devices - len(same),
    )


def same_devices(older: Topology, newer: Topology) -> dict[int, int]:
    """Rank in the newer topology of each rank of the older one that is still there.

    A device is the same if it is of the same type and has the same host and the same place in it.
    """
    if older.device != newer.device:
        return {}
    near = min(older.devices_per_host, newer.devices_per_host)
    return {
        host * older.devices_per_host + place: host * newer.devices_per_host + place
        for host in range(min(older.hosts, newer.hosts))
        for place in range(near)
    }


def same_shape(one: Table, other: Table) -> bool:
    """Whether the weights of one table can become those of the other: same rows, dim and type."""
    return (one.rows, one.dim, one.dtype) == (other.rows, other.dim, other.dtype)


def _surviving(shards: Sequence[Shard], same: dict[int, int]) -> list[Shard]:
    moved = [(shard, tuple(sorted(same[rank] for rank in shard.devices if rank in same))) for shard in shards]
    return [replace(shard, devices=ranks) for shard, ranks in moved if ranks]


def _counted(count: int, what: str, how: str) -> str:
    """How many things are how, such as "3 tables are new"; nothing for none."""
    return f"{count} {what}{'s are' if count > 1 else ' is'} {how}" if count else ""
