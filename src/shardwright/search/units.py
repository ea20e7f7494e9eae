"""Cuts of tables, and the units that strategies of whole tables place, each on an allowed device that has memory left.

A table stays whole if that is allowed and fits. Otherwise it is cut in the first way that its constraints allow and that fits: column
blocks, fewest first; row blocks over its devices; row blocks over the devices of one host; a replica everywhere;
column blocks with their rows over the devices of a host each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.errors import InfeasibleTask
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.ways import allowed_devices, dealt_ways, equal_blocks, unit_width
from shardwright.task.constraints import TableConstraint
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Table
from shardwright.task.task import Task

PLACEABLE = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel", "grid")


@dataclass(frozen=True)
class Unit:
    """Blocks that go to one device together.

    Attributes:
        blocks: shards whose devices are still to be chosen.
        allowed: `(devices,)` whether the pinning of its tables lets the unit go there.
        bytes: memory the unit takes.
    """

    blocks: tuple[Shard, ...]
    allowed: Bools
    bytes: int

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables the unit holds blocks of."""
        return tuple(dict.fromkeys(block.table for block in self.blocks))

    def on(self, device: int) -> list[Shard]:
        """The unit's shards when it is placed on `device`."""
        return [Shard(it.table, it.rows, it.columns, (device,), it.row_order, it.tier) for it in self.blocks]


@dataclass(frozen=True)
class Units:
    """A task taken apart into units to place and fixed shards.

    Attributes:
        free: units to place.
        fixed: shards whose devices follow from the way their table must be cut.
    """

    free: tuple[Unit, ...]
    fixed: tuple[Shard, ...]


def take_apart(task: Task, *, cut_large: bool = True) -> Units:
    """The units and fixed shards of a task.

    Args:
        task: the task.
        cut_large: whether to cut tables that fit no device; if not, they stay whole units, for a search that splits them.

    Raises:
        InfeasibleTask: a table fits no device in any allowed way, or colocated tables cannot stay whole.
    """
    memory = np.array(task.topology.memory_bytes)
    cuts = {table.name: _cut(task, table, memory, cut_large) for table in task.tables}
    free: list[Unit] = []
    grouped: set[str] = set()
    for group in task.constraints.colocated_groups():
        names = [table.name for table in task.tables if table.name in group]
        if all(cuts[name].free for name in names):
            free.append(_merge(task, names, cuts))
            grouped |= group
        elif len({frozenset(shard.devices for shard in cuts[name].fixed) for name in names}) > 1:
            raise InfeasibleTask(
                f"tables {', '.join(names)} are to be colocated but must be cut in different ways; give them the same sharding_types"
            )
    for name, cut in cuts.items():
        free += cut.free if name not in grouped else ()
    return Units(tuple(free), tuple(shard for cut in cuts.values() for shard in cut.fixed))


def halvings(task: Task, unit: Unit) -> Iterator[list[Shard]]:
    """The blocks of the whole unit, then of a half of it, of a quarter, and so on."""
    yield list(unit.blocks)
    if len(unit.blocks) > 1:
        return  # colocated tables stay together
    (block,) = unit.blocks
    limits = task.constraints.of(block.table)
    if limits.allows("column_wise") and limits.max_shards != 1:
        left, dim = block.columns[0], block.dim
        multiple = math.lcm(COLUMN_UNIT, limits.column_multiple or 1)
        # With `equal_columns`, halving some blocks only would leave unequal ones: a whole table may be halved once, its cut blocks never.
        narrowest = dim // (2 if dim == task.table_by_name[block.table].dim else 1) if limits.equal_columns else 1
        while dim % (2 * multiple) == 0 and dim // 2 >= max(limits.min_columns or 1, narrowest):
            dim //= 2
            yield [replace(block, columns=(left, left + dim))]


def _cut(task: Task, table: Table, memory: Ints, cut_large: bool) -> Units:
    limits = task.constraints.of(table.name)
    allowed = allowed_devices(task.topology, limits)
    if not cut_large and limits.allows("table_wise"):
        whole = Shard.whole(table, 0)
        return Units((Unit((whole,), allowed, shard_bytes(task, whole)),), ())
    largest = int(memory[allowed].max())
    tried = [kind for kind in PLACEABLE if limits.allows(kind)]
    single = {"table_wise": _whole, "column_wise": _column_blocks}
    for kind in tried:
        way = single[kind](task, table, allowed, largest) if kind in single else _on_many(task, table, kind)
        if way is not None:
            return way
    need = format_bytes(shard_bytes(task, Shard.whole(table, 0)))
    raise InfeasibleTask(
        f"table '{table.name}' needs {need}, the largest device it may use has {format_bytes(largest)}, and no way that its constraints "
        f"allow ({', '.join(tried)}) fits: {remedy_for(limits, task.topology.hosts)}"
    )


def remedy_for(limits: TableConstraint, hosts: int) -> str:
    """A remedy that gives a table more room; constraints are relaxed first."""
    cuts = ("row_wise", "table_row_wise") if hosts > 1 else ("row_wise",)
    closed = [kind for kind in cuts if not limits.allows(kind)]
    remedies = [
        (f"allow {' and '.join(closed)} for it", bool(closed)),
        (f"raise its max_shards of {limits.max_shards}", limits.max_shards is not None),
        ("let it use more devices", limits.devices is not None),
        (
            "drop equal_rows, which needs row blocks on all devices of the cluster or of one host",
            limits.equal_rows and not limits.as_torchrec,  # TorchRec runs no other row blocks
        ),
        ("use more devices, or devices with more memory", True),
    ]
    return ", or ".join(remedy for remedy, helps in remedies if helps)


def _whole(task: Task, table: Table, allowed: Bools, largest: int) -> Units | None:
    return _units(task, [Shard.whole(table, 0)], allowed, largest)


def _column_blocks(task: Task, table: Table, allowed: Bools, largest: int) -> Units | None:
    """The fewest column blocks that fit."""
    limits = task.constraints.of(table.name)
    narrowest = unit_width(table, limits)
    if limits.min_columns is not None:
        narrowest *= -(-limits.min_columns // narrowest)
    most = min(table.dim // narrowest, limits.max_shards or table.dim)
    for count in equal_blocks(table, limits) if limits.equal_columns else range(2, most + 1):
        if limits.equal_columns:
            narrowest = table.dim // count
        cuts = narrowest * (np.arange(count + 1) * (table.dim // narrowest) // count)
        cuts[-1] = table.dim
        shards = [Shard(table.name, (0, table.rows), (int(a), int(b)), (0,)) for a, b in pairwise(cuts)]
        if units := _units(task, shards, allowed, largest):
            return units
    return None


def _on_many(task: Task, table: Table, kind: str) -> Units | None:
    """The first way of a sharding type that uses many devices at once and fits; tables take turns over the hosts."""
    turn = [other.name for other in task.tables].index(table.name)
    memory = np.array(task.topology.memory_bytes)
    every = dealt_ways(table, task.constraints.of(table.name), task.topology, turn)
    ways = [way for way in every if way.kind(task.topology) == kind]
    if kind == "table_row_wise":
        ways.sort(key=lambda way: -way.devices.size)
    for way in ways:
        shards = way.shards(table)
        if all(way.per_device * shard_bytes(task, shard) <= memory[list(shard.devices)].min() for shard in shards):
            return Units((), tuple(shards))
    return None


def _units(task: Task, shards: list[Shard], allowed: Bools, largest: int) -> Units | None:
    """The shards as separate units; None if one of them does not fit the largest device."""
    units = [Unit((shard,), allowed, shard_bytes(task, shard)) for shard in shards]
    return Units(tuple(units), ()) if all(unit.bytes <= largest for unit in units) else None


def _merge(task: Task, names: list[str], cuts: dict[str, Units]) -> Unit:
    """One unit of all tables of a colocated group."""
    units = [unit for name in names for unit in cuts[name].free]
    allowed = np.logical_and.reduce([unit.allowed for unit in units])
    merged = Unit(tuple(block for unit in units for block in unit.blocks), allowed, sum(unit.bytes for unit in units))
    largest = max(np.array(task.topology.memory_bytes)[allowed])
    if merged.bytes > largest:
        raise InfeasibleTask(
            f"tables {', '.join(names)} are to be colocated and need {format_bytes(merged.bytes)} together; the largest device they may "
            f"use has {format_bytes(largest)}: split the group or use devices with more memory"
        )
    return merged


def rivals_of(task: Task, members: Sequence[Collection[str]]) -> Bools:
    """`(n, n)` which of n sets of tables may not share a device; `(0, 0)` if all may."""
    pairs = task.constraints.apart_pairs()
    holders: dict[str, list[int]] = {}
    for index, names in enumerate(members if pairs else ()):
        for name in names:
            holders.setdefault(name, []).append(index)
    rivals = np.zeros((len(members) if pairs else 0,) * 2, dtype=bool)
    for pair in pairs:
        left, right = (holders.get(name, []) for name in pair)
        rivals[np.ix_(left, right)] = rivals[np.ix_(right, left)] = True
    return rivals


def beside_fixed(task: Task, units: Units) -> Bools:
    """`(units, devices)` allowed devices, without those that hold a fixed shard of a table kept apart from a table of the unit."""
    allowed = np.array([unit.allowed for unit in units.free], dtype=bool).reshape(-1, task.topology.devices)
    pairs = task.constraints.apart_pairs()
    for shard in units.fixed if pairs else ():
        for row, unit in zip(allowed, units.free, strict=True):
            if any(frozenset((shard.table, name)) in pairs for name in unit.tables):
                row[list(shard.devices)] = False
    return allowed


Eligible = Ints


class PartialPlan:
    """Shards placed so far, their memory, and the devices that a further unit may go to."""

    def __init__(self, task: Task, units: Units) -> None:
        self._task = task
        self._limit = np.array(task.topology.memory_bytes, dtype=np.int64)
        self._apart: dict[str, set[str]] = {}
        for pair in task.constraints.apart_pairs():
            first, second = sorted(pair)
            self._apart.setdefault(first, set()).add(second)
            self._apart.setdefault(second, set()).add(first)
        self.shards: list[Shard] = list(units.fixed)
        self._used = memory_account(task, self.shards).total
        self._held: dict[str, set[int]] = {}
        for shard in self.shards:
            self._held.setdefault(shard.table, set()).update(shard.devices)
        self._check_fixed()

    def eligible(self, unit: Unit) -> Eligible:
        """Ranks that may take the unit.

        Raises:
            InfeasibleTask: no device may take it.
        """
        free = unit.allowed & (self._used + unit.bytes <= self._limit)
        for table in unit.tables:
            for other in self._apart.get(table, ()):
                free[list(self._held.get(other, ()))] = False
        ranks = np.flatnonzero(free)
        if ranks.size == 0:
            left = format_bytes(max(0, int((self._limit - self._used)[unit.allowed].max())))
            raise InfeasibleTask(
                f"no device is left for table '{', '.join(unit.tables)}', which needs {format_bytes(unit.bytes)}: the devices it may "
                f"use have at most {left} left, or are forbidden by constraints; allow column_wise or row_wise, or use more "
                "devices or memory"
            )
        return ranks

    def place(self, unit: Unit, device: int) -> None:
        """Put the unit on a device."""
        self.shards += unit.on(device)
        self._used[device] += unit.bytes
        for table in unit.tables:
            self._held.setdefault(table, set()).add(device)

    def _check_fixed(self) -> None:
        over = np.flatnonzero(self._used > self._limit)
        if over.size:
            rank = int(over[0])
            raise InfeasibleTask(
                f"rank {rank} has {format_bytes(self._limit[rank])}, and the tables that must be cut over all devices take "
                f"{format_bytes(self._used[rank])} there: allow table_wise or column_wise for some, or use more devices"
            )
        for table, others in self._apart.items():
            clash = next((o for o in others if self._held.get(o, set()) & self._held.get(table, set())), None)
            if clash:
                raise InfeasibleTask(
                    f"tables {table} and {clash} are to be kept apart, but both must be cut over the same devices; allow table_wise for one"
                )


def place_all(task: Task, units: Units, order: Iterable[int], choose: Callable[[int, Eligible], int]) -> list[Shard]:
    """Place all free units.

    Args:
        task: the task.
        units: its units.
        order: indices of `units.free`, in the order of placement.
        choose: returns the rank to place a unit on, from the unit's index and the eligible ranks.

    Raises:
        InfeasibleTask: a unit finds no device.
    """
    placement = PartialPlan(task, units)
    for index in order:
        unit = units.free[index]
        placement.place(unit, choose(index, placement.eligible(unit)))
    return placement.shards
