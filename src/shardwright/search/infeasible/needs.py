"""The least that each table needs in any allowed way to shard it, and the devices on which it may lie.

Every number is a lower bound over all plans that the checker accepts, from any strategy: also those with column blocks of a single
column, row blocks of a single row, or several blocks of a table on one device. So a task that is impossible here is impossible for every
strategy. Colocated tables count as one group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwright.arrays import Bools
from shardwright.errors import InfeasibleTask
from shardwright.sharding.memory import block_bytes, gradient_size, optimizer_bytes
from shardwright.sharding.ways import allowed_devices
from shardwright.sharding.work import ShardWork
from shardwright.task.constraints import SHARDING_TYPES, TableConstraint
from shardwright.task.quantities import format_bytes
from shardwright.task.table import DTYPE_BYTES, Table
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Where:
    """A set of devices of a task.

    Attributes:
        mask: `(devices,)` whether each device is in the set.
        memory: their memory in bytes, largest first.
        hosts: how many hosts the devices belong to.
        everywhere: whether the set holds all devices of the task.
    """

    mask: Bools
    memory: tuple[int, ...]
    hosts: int
    everywhere: bool

    @property
    def count(self) -> int:
        """Number of devices in the set."""
        return len(self.memory)

    @cached_property
    def total(self) -> int:
        """Their memory together, in bytes."""
        return sum(self.memory)

    def __str__(self) -> str:
        ranks = np.flatnonzero(self.mask).tolist()
        if self.everywhere:
            return f"all {self.count} devices"
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        shown = ", ".join(map(str, ranks[:8]))
        return f"ranks {shown}" if len(ranks) <= 8 else f"{len(ranks)} devices (ranks {shown}, …)"


@dataclass(eq=False)
class Places:
    """The sets of devices of a task, made once each."""

    task: Task
    _known: dict[bytes, Where] = field(default_factory=dict)

    def of(self, mask: Bools) -> Where:
        """The set with this `(devices,)` mask."""
        key = mask.tobytes()
        if key not in self._known:
            ranks = np.flatnonzero(mask)
            memory = self.task.topology.memory_bytes
            self._known[key] = Where(
                mask=mask.copy(),
                memory=tuple(sorted((memory[rank] for rank in ranks), reverse=True)),
                hosts=int(np.unique(ranks // self.task.topology.devices_per_host).size),
                everywhere=bool(mask.all()),
            )
        return self._known[key]


def inside(sets: Sequence[Where]) -> list[list[int]]:
    """For each set, the indices of the sets that lie within it, itself included."""
    masks = np.array([where.mask for where in sets])
    outside = (
        masks.astype(np.float32) @ (~masks).astype(np.float32).T
    )  # (sets, sets): devices of one that are not in the other
    return [np.flatnonzero(column == 0).tolist() for column in outside.T]


def compared(need: int, have: int) -> tuple[str, str]:
    """Two sizes as text for people; in bytes if they would read the same otherwise."""
    told = format_bytes(need), format_bytes(have)
    return told if told[0] != told[1] else (f"{need} bytes", f"{have} bytes")


_ROUNDING = 1e-9  # share of the lookups by which the blocks' shares may miss the whole


@dataclass(frozen=True)
class Need:
    """The needs of a table that is sharded in one way.

    Attributes:
        kind: the sharding type.
        block_bytes: least memory of its largest block on one device.
        total_bytes: least memory of all its blocks on all devices.
        fewest: fewest devices it lies on.
        most: most devices it lies on.
        holders: devices that must each be able to take `block_bytes`.
    """

    kind: str
    block_bytes: int
    total_bytes: int
    fewest: int = 1
    most: int = 1
    holders: int = 1


@dataclass(frozen=True)
class Impossible:
    """Why a sharding type cannot be used at all.

    Attributes:
        kind: the sharding type.
        reason: the missing resource.
    """

    kind: str
    reason: str


def needs_of(task: Task, table: Table, where: Where) -> list[Need | Impossible]:
    """The needs of each allowed sharding type on the devices `where`; whether they fit the memory is not checked."""
    limits = task.constraints.of(table.name)
    return [_need(task, table, limits, where, kind) for kind in SHARDING_TYPES if limits.allows(kind)]


def _need(task: Task, table: Table, limits: TableConstraint, where: Where, kind: str) -> Need | Impossible:
    most_blocks = limits.max_shards or table.rows * table.dim
    if kind == "table_wise":
        size = _bytes_of(task, table, table.rows, table.dim)
        return Need(kind, size, size)
    if kind == "data_parallel":
        return _replicated(task, table, where)
    if kind == "column_wise":
        return _columns(task, table, where, min(most_blocks, table.dim))
    if kind in ("row_wise", "table_row_wise"):
        return _rows(task, table, where, min(most_blocks, table.rows), kind)
    if kind == "grid" and (min(table.rows, table.dim) < 2 or most_blocks < 3):
        return Impossible(kind, "needs at least 3 shards, 2 rows and 2 columns")
    # A block of any shape takes at least the weights of an equal part of the table.
    part = -(-table.rows * table.dim // most_blocks) * DTYPE_BYTES[table.dtype]
    return Need(kind, part, _whole_total(task, table), most=where.count)


def _replicated(task: Task, table: Table, where: Where) -> Need | Impossible:
    if where.count < 2:
        return Impossible("data_parallel", "needs at least 2 devices")
    # More replicas take more together, but each of them less: it serves a smaller part of the batch.
    state = table.weight_bytes + optimizer_bytes(task.optimizer, table.rows, table.dim)
    size = _bytes_of(task, table, table.rows, table.dim, replicas=where.count)
    gradients = 2 * gradient_size(task, table.pooled, table.dtype) * table.rows * table.dim
    total = _whole_total(task, table) + state + gradients
    return Need("data_parallel", size, total, fewest=2, most=where.count, holders=2)


def _columns(task: Task, table: Table, where: Where, blocks: int) -> Need | Impossible:
    if blocks < 2:
        return Impossible("column_wise", "needs at least 2 shards and 2 columns")
    size = _bytes_of(task, table, table.rows, -(-table.dim // blocks))
    twice = _input_bytes(task, table) + (4 * table.rows if task.optimizer == "rowwise_adagrad" else 0)
    return Need("column_wise", size, _whole_total(task, table) + twice, most=min(where.count, blocks))


def _rows(task: Task, table: Table, where: Where, blocks: int, kind: str) -> Need | Impossible:
    topology = task.topology
    if blocks < 2:
        return Impossible(kind, "needs at least 2 shards and 2 rows")
    if kind == "table_row_wise" and topology.hosts == 1:
        return Impossible(kind, "needs at least 2 hosts: on one host the same blocks are row_wise")
    if kind == "row_wise" and topology.hosts > 1 and where.hosts < 2:
        return Impossible(
            kind, "needs devices on at least 2 hosts: on one of several the same blocks are table_row_wise"
        )
    size = _bytes_of(task, table, -(-table.rows // blocks), table.dim)
    twice = 8 * (_bags(task, table) + 1) + (8 * table.dim * _bags(task, table) if table.pooled else 0)
    per_host = topology.devices_per_host if kind == "table_row_wise" else where.count
    fewest = 2 if kind == "row_wise" and topology.hosts > 1 else 1
    total = _whole_total(task, table) + twice
    return Need(kind, size, total, fewest=fewest, most=min(per_host, where.count, blocks))


def _bytes_of(task: Task, table: Table, rows: int, dim: int, replicas: int = 1) -> int:
    """Bytes of a block of `rows` rows, counted by id, on each of its devices."""
    samples = max(1, -(-task.batch_size // replicas))
    lookups = table.pooling * (rows / table.rows) * task.batch_size / replicas
    shares = table.feature_shares
    work = ShardWork(rows, dim, samples, lookups, table.pooled, table.access, table.dtype, feature_shares=shares)
    return block_bytes(task, work, replicas)


def _bags(task: Task, table: Table) -> int:
    """Bags of all samples and features."""
    return task.batch_size * len(table.poolings)


def _input_bytes(task: Task, table: Table) -> int:
    """Ids and offsets of all lookups and bags."""
    lookups = math.ceil(table.pooling * task.batch_size * (1 - _ROUNDING))
    return 8 * (lookups + _bags(task, table) + 1)


def _whole_total(task: Task, table: Table) -> int:
    """Least bytes of all blocks together: cutting and copying never take less than the whole table on one device.

    That is the weights and optimizer state of every element, the ids of every lookup once, and for every column the output of every
    bag (of every lookup if they are not pooled) with its gradient.
    """
    state = table.weight_bytes + optimizer_bytes(task.optimizer, table.rows, table.dim)
    outputs = table.dim * _bags(task, table)
    if not table.pooled:
        outputs = math.ceil(table.dim * table.pooling * task.batch_size * (1 - _ROUNDING))
    return state + _input_bytes(task, table) + 8 * outputs


@dataclass(frozen=True, eq=False)
class Group:
    """Colocated tables, or a single table.

    Attributes:
        tables: their names.
        where: devices they may lie on.
        bytes: least bytes on all devices together.
        fewest: fewest devices they lie on.
        single: whether all of them lie on one device.
    """

    tables: tuple[str, ...]
    where: Where
    bytes: int
    fewest: int
    single: bool


def groups_of(task: Task) -> list[Group]:
    """All tables in groups: colocated tables together, others alone.

    Raises:
        InfeasibleTask: a table or a group fits nowhere.
    """
    places = Places(task)
    colocated = {name: group for group in task.constraints.colocated_groups() for name in group}
    members: dict[object, list[Table]] = {}
    for table in task.tables:
        members.setdefault(colocated.get(table.name, table.name), []).append(table)
    return [_group(task, places, tables) for tables in members.values()]


def _group(task: Task, places: Places, tables: Sequence[Table]) -> Group:
    pinned = [limits for t in tables if (limits := task.constraints.of(t.name)).devices is not None]
    mask = np.ones(task.topology.devices, dtype=bool)
    for limits in pinned:
        mask &= allowed_devices(task.topology, limits)
    where = places.of(mask)
    needs = [_possible(task, table, where) for table in tables]
    names = tuple(table.name for table in tables)
    fewest = [min(need.fewest for need in of_table) for of_table in needs]
    most = [max(need.most for need in of_table) for of_table in needs]
    if max(fewest) > min(most):
        wide, narrow = names[fewest.index(max(fewest))], names[most.index(min(most))]
        raise InfeasibleTask(
            f"constraints contradict each other: tables {', '.join(names)} are to be colocated, but '{wide}' lies on at least "
            f"{max(fewest)} devices and '{narrow}' on at most {min(most)}; give them the same sharding_types"
        )
    size = sum(min(need.total_bytes for need in of_table) for of_table in needs)
    single = min(most) == 1 or where.count == 1
    if single and size > where.memory[0] and len(tables) > 1:
        needed, present = compared(size, where.memory[0])
        raise InfeasibleTask(
            f"tables {', '.join(names)} are to be colocated and lie on one device, where they need {needed} together; the "
            f"largest device they may use has {present}: split the group, allow column_wise or row_wise for all "
            "of them, or use devices with more memory"
        )
    return Group(names, where, size, max(fewest), single)


def _possible(task: Task, table: Table, where: Where) -> list[Need]:
    """The needs of a table's sharding types whose largest block fits some device."""
    of_types = needs_of(task, table, where)
    fitting = [
        need
        for need in of_types
        if isinstance(need, Need) and need.holders <= where.count and need.block_bytes <= where.memory[need.holders - 1]
    ]
    if not fitting:
        raise InfeasibleTask(_nowhere(task, table, where, of_types))
    return fitting


def _nowhere(task: Task, table: Table, where: Where, of_types: Sequence[Need | Impossible]) -> str:
    """The rule that keeps a table from every device, and a remedy."""
    limits = task.constraints.of(table.name)
    needs = [need for need in of_types if isinstance(need, Need)]
    barred = [f"{of_type.kind} {of_type.reason}" for of_type in of_types if isinstance(of_type, Impossible)]
    allowed = ", ".join(of_type.kind for of_type in of_types)
    more = [kind for kind in ("row_wise", "column_wise") if not limits.allows(kind)]
    help_with = [f"allow {' or '.join(more)} for it"] if more else []
    help_with += ["raise its max_shards"] if limits.max_shards is not None else []
    help_with += ["let it use more devices"] if not where.everywhere else []
    if not needs:
        return f"table '{table.name}' allows only {allowed}, and {'; '.join(barred)}: {', or '.join(help_with or ['use more devices'])}"
    least = min(needs, key=lambda need: need.block_bytes)
    on, which = ("one device", "largest") if least.holders == 1 else ("each of 2 devices", "second largest")
    needed, present = compared(least.block_bytes, where.memory[least.holders - 1])
    also = f" ({'; '.join(barred)})" if barred else ""
    return (
        f"table '{table.name}' needs {needed} on {on} in the smallest blocks that {allowed} allows, the {which} "
        f"device it may use has {present}{also}: {', or '.join([*help_with, 'use devices with more memory or a smaller batch'])}"
    )
