"""What moves and what stays when one plan replaces another, and which blocks survive a change of tables or devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.errors import InvalidPlan
from shardwright.sharding.memory import optimizer_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table, row_bytes
from shardwright.task.task import Task
from shardwright.task.topology import Topology


@dataclass(frozen=True)
class Carried:
    """An older plan on the devices of a newer task.

    Attributes:
        shards: of every table of the task that the plan has in the same shape, the blocks that a device still holds, by the task's ranks.
        lost: those of these tables with a block that no device holds any more.
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
    per_host = min(older.devices_per_host, newer.devices_per_host)
    return {
        host * older.devices_per_host + place: host * newer.devices_per_host + place
        for host in range(min(older.hosts, newer.hosts))
        for place in range(per_host)
    }


def same_shape(one: Table, other: Table) -> bool:
    """Whether the weights of one table can become those of the other: same rows, dim and type."""
    return (one.rows, one.dim, one.dtype) == (other.rows, other.dim, other.dtype)


def _surviving(shards: Sequence[Shard], same: dict[int, int]) -> list[Shard]:
    moved = [(shard, tuple(sorted(same[rank] for rank in shard.devices if rank in same))) for shard in shards]
    return [replace(shard, devices=ranks) for shard, ranks in moved if ranks]


def _counted(count: int, what: str, how: str) -> str:
    """A count in words, such as "3 tables are new"; empty for none."""
    return f"{count} {what}{'s are' if count > 1 else ' is'} {how}" if count else ""


@dataclass(frozen=True)
class Move:
    """What one device must fetch of one table.

    Attributes:
        table: the table.
        device: the rank that receives.
        elements: weights it holds in the newer plan but not in the older one.
        bytes: bytes of these weights and their optimizer state.
    """

    table: str
    device: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class TableChange:
    """What becomes of one table that both plans have.

    Attributes:
        table: its name.
        before: how it was sharded.
        after: how it is sharded.
        moved_bytes: bytes that devices must fetch.
        kept_bytes: bytes that stay where they are.
    """

    table: str
    before: str
    after: str
    moved_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class PlanDiff:
    """Difference of two plans.

    Bytes are those of weights and optimizer state, counted once for each device that holds them.

    Attributes:
        moves: what each device fetches, in the newer plan's order of tables and ranks.
        tables: what becomes of each table that both plans have, in the newer plan's order.
        added: tables only the newer plan has; they are initialised, not moved.
        removed: tables only the older plan has.
        changed: tables of other rows, another dim or another type of weights; nothing of them can be kept, so they do not count as moved.
        made_bytes: bytes of the added and changed tables.
        new_devices: how many devices only the newer plan has.
        gone_devices: how many devices only the older plan has.
    """

    moves: tuple[Move, ...]
    tables: tuple[TableChange, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    made_bytes: int
    new_devices: int
    gone_devices: int

    @property
    def moved_bytes(self) -> int:
        """Bytes over all moves."""
        return sum(move.bytes for move in self.moves)

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay where they are."""
        return sum(change.kept_bytes for change in self.tables)

    @property
    def moved_tables(self) -> tuple[str, ...]:
        """Tables that move, whole or in part."""
        return tuple(dict.fromkeys(move.table for move in self.moves))


def diff_plans(older: Plan, newer: Plan) -> PlanDiff:
    """What each device must fetch when `newer` replaces `older`.

    A device is the same in both if it has the same host, the same place in it and the same type. Blocks counted in different row orders
    share no rows as far as the plans can tell, so such a table moves whole; so does a tier that is dealt out anew.
    """
    carried = carry(older, newer.task)
    task = newer.task
    moves: list[Move] = []
    changes = []
    for name in carried.shards:
        found = _moves_of(task, name, carried, newer.by_table[name])
        moved = sum(move.bytes for move in found)
        size = _bytes(task, name, sum(shard.area * len(shard.devices) for shard in newer.by_table[name]))
        changes.append(
            TableChange(name, older.sharding_type(name), newer.sharding_type(name), moved, max(0, size - moved))
        )
        moves += found
    made = sum(
        _bytes(task, name, sum(shard.area * len(shard.devices) for shard in newer.by_table[name]))
        for name in (*carried.new, *carried.changed)
    )
    return PlanDiff(
        tuple(moves),
        tuple(changes),
        added=carried.new,
        removed=carried.gone,
        changed=carried.changed,
        made_bytes=made,
        new_devices=carried.new_devices,
        gone_devices=carried.gone_devices,
    )


def moved_bytes(task: Task, carried: Carried, shards: Mapping[str, Sequence[Shard]]) -> int:
    """Bytes that devices must fetch for `shards` of a task, by table, where `carried` is what they hold."""
    return sum(move.bytes for name in carried.shards for move in _moves_of(task, name, carried, shards[name]))


def element_bytes(task: Task, table: Table) -> float:
    """Bytes of a weight with its part of the optimizer state."""
    return (row_bytes(table.dtype, table.dim) + optimizer_bytes(task.optimizer, 1, table.dim)) / table.dim


def _moves_of(task: Task, name: str, carried: Carried, shards: Sequence[Shard]) -> list[Move]:
    before, after = by_holder(carried.shards[name]), by_holder(shards)
    moves = []
    for rank in sorted(after):
        # Blocks of one plan are disjoint, so what stays is the plain sum of pairwise overlaps.
        kept = sum(new.common(old) for new in after[rank] for old in before.get(rank, []))
        elements = sum(shard.area for shard in after[rank]) - kept
        if elements:
            moves.append(Move(name, rank, elements, _bytes(task, name, elements)))
    return moves


def _bytes(task: Task, name: str, elements: int) -> int:
    return round(elements * element_bytes(task, task.table_by_name[name]))


def by_holder(shards: Iterable[Shard]) -> dict[int, list[Shard]]:
    """The blocks that each device holds."""
    held: dict[int, list[Shard]] = {}
    for shard in shards:
        for rank in shard.devices:
            held.setdefault(rank, []).append(shard)
    return held
