"""Compare two plans: which bytes move and which stay, and which blocks survive a change of tables or devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The shards of an older plan that the devices of a newer task still hold.

    Attributes:
        shards: for each table that plan and task have in the same shape, the blocks that a device still holds, by the task's ranks.
        lost: tables in `shards` with a block that no device holds any more.
        new: tables that the plan does not have.
        changed: tables whose rows, dim or weight type differ in the plan.
        gone: tables that only the plan has.
        new_devices: number of devices that the plan did not have.
        gone_devices: number of the plan's devices that no longer exist.
    """

    shards: dict[str, list[Shard]]
    lost: frozenset[str]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    new_devices: int
    gone_devices: int

    def why_no_plan(self, task: Task) -> str | None:
        """Return why the surviving blocks are not a valid plan for the task; None if they are."""
        missing = [
            _counted(len(self.new), "table", "new"),
            _counted(len(self.changed), "table", "of another shape"),
            _counted(self.gone_devices if self.lost else 0, "device", "gone"),
        ]
        reasons = ", ".join(text for text in missing if text)
        if reasons:
            return reasons
        try:
            Plan(task, self.all_shards()).check()
        except InvalidPlan as error:
            return str(error)
        return None

    def all_shards(self) -> tuple[Shard, ...]:
        """The blocks of all tables."""
        return tuple(shard for shards in self.shards.values() for shard in shards)


def carry(plan: Plan, task: Task) -> Carried:
    """Return the part of a plan that another task can keep."""
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
    """Map each rank of the older topology that still exists to its rank in the newer one.

    A device is the same if it has the same type, the same host and the same place on that host.
    """
    if older.device != newer.device:
        return {}
    per_host = min(older.devices_per_host, newer.devices_per_host)
    return {
        host * older.devices_per_host + place: host * newer.devices_per_host + place
        for host in range(min(older.hosts, newer.hosts))
        for place in range(per_host)
    }


def same_shape(older: Table, newer: Table) -> bool:
    """Whether one table can take over the weights of the other: same rows, dim and type."""
    return (older.rows, older.dim, older.dtype) == (newer.rows, newer.dim, newer.dtype)


def _surviving(shards: Sequence[Shard], same: dict[int, int]) -> list[Shard]:
    moved = [(shard, tuple(sorted(same[rank] for rank in shard.devices if rank in same))) for shard in shards]
    return [replace(shard, devices=ranks) for shard, ranks in moved if ranks]


def _counted(count: int, what: str, how: str) -> str:
    """A count in words, such as "3 tables are new"; empty if the count is 0."""
    return f"{count} {what}{'s are' if count > 1 else ' is'} {how}" if count else ""


@dataclass(frozen=True)
class Move:
    """The part of one table that one device must fetch.

    Attributes:
        table: the table.
        device: the rank that receives.
        elements: weights that the device holds in the newer plan but not in the older one.
        bytes: bytes of these weights and of their optimizer state.
    """

    table: str
    device: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class TableChange:
    """The change of a table that both plans have.

    Attributes:
        table: its name.
        before: its sharding type in the older plan.
        after: its sharding type in the newer plan.
        moved_bytes: bytes that devices must fetch.
        kept_bytes: bytes that stay on their devices.
    """

    table: str
    before: str
    after: str
    moved_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class PlanDiff:
    """Difference of two plans.

    Bytes cover weights and optimizer state, counted once for each device that holds them.

    Attributes:
        moves: the fetches of each device, in the newer plan's order of tables and ranks.
        tables: how each table that both plans have changes, in the newer plan's order.
        added: tables only the newer plan has; their weights are initialised, not moved.
        removed: tables only the older plan has.
        changed: tables whose rows, dim or weight type differ; they are initialised anew, not moved.
        made_bytes: bytes of the added and changed tables.
        new_devices: number of devices that only the newer plan has.
        gone_devices: number of devices that only the older plan has.
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
        """Bytes that stay on their devices."""
        return sum(change.kept_bytes for change in self.tables)

    @property
    def moved_tables(self) -> tuple[str, ...]:
        """Tables that move, whole or in part."""
        return tuple(dict.fromkeys(move.table for move in self.moves))


def diff_plans(older: Plan, newer: Plan) -> PlanDiff:
    """Return the blocks that each device must fetch when `newer` replaces `older`.

    A device is the same in both plans if it has the same type, the same host and the same place on that host. A table moves whole if its
    row order changes, because the plans do not say which rows its blocks share. A tier also moves whole if it is cut into other ranges.
    """
    carried = carry(older, newer.task)
    task = newer.task
    moves: list[Move] = []
    changes = []
    for name in carried.shards:
        of_table = _moves_of(task, name, carried, newer.by_table[name])
        moved = sum(move.bytes for move in of_table)
        size = _held_bytes(newer, name)
        changes.append(
            TableChange(name, older.sharding_type(name), newer.sharding_type(name), moved, max(0, size - moved))
        )
        moves += of_table
    return PlanDiff(
        tuple(moves),
        tuple(changes),
        added=carried.new,
        removed=carried.gone,
        changed=carried.changed,
        made_bytes=sum(_held_bytes(newer, name) for name in (*carried.new, *carried.changed)),
        new_devices=carried.new_devices,
        gone_devices=carried.gone_devices,
    )


def moved_bytes(task: Task, carried: Carried, shards: Mapping[str, Sequence[Shard]]) -> int:
    """Bytes that devices must fetch to hold `shards` (by table) when they hold `carried`."""
    tables = (
        (element_bytes(task, task.table_by_name[name]), old, shards[name]) for name, old in carried.shards.items()
    )
    return sum(round(elements * size) for size, old, new in tables for _, elements in _fetched(old, new))


def element_bytes(task: Task, table: Table) -> float:
    """Bytes of one weight and its part of the optimizer state."""
    return (row_bytes(table.dtype, table.dim) + optimizer_bytes(task.optimizer, 1, table.dim)) / table.dim


def _moves_of(task: Task, name: str, carried: Carried, shards: Sequence[Shard]) -> list[Move]:
    size = element_bytes(task, task.table_by_name[name])
    fetched = _fetched(carried.shards[name], shards)
    return [Move(name, rank, elements, round(elements * size)) for rank, elements in fetched]


def _fetched(older: Iterable[Shard], newer: Iterable[Shard]) -> Iterator[tuple[int, int]]:
    """Each device that must fetch elements of a table, by rank, and how many."""
    before, missing = by_holder(older), defaultdict[int, int](int)
    for new in newer:
        area, kept = new.area, dict[int, int]()  # each pair of blocks is compared once, also if both have replicas
        for rank in new.devices:
            missing[rank] += area
            for old in before.get(rank, ()):
                if id(old) not in kept:
                    kept[id(old)] = new.common(old)
                # Blocks of one plan are disjoint, so the sum of pairwise overlaps counts the elements that stay.
                missing[rank] -= kept[id(old)]
    yield from sorted((rank, elements) for rank, elements in missing.items() if elements)


def _held_bytes(plan: Plan, name: str) -> int:
    """Bytes of a table over all devices that hold a part of it."""
    return _bytes(plan.task, name, sum(shard.area * len(shard.devices) for shard in plan.by_table[name]))


def _bytes(task: Task, name: str, elements: int) -> int:
    return round(elements * element_bytes(task, task.table_by_name[name]))


def by_holder(shards: Iterable[Shard]) -> dict[int, list[Shard]]:
    """The blocks that each device holds, by rank."""
    held: dict[int, list[Shard]] = {}
    for shard in shards:
        for rank in shard.devices:
            held.setdefault(rank, []).append(shard)
    return held
