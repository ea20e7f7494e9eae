"""The ways in which a table may lie, under its constraints: how many column blocks, of which widths, and on which places.

A *place* is a device; a host, the rows dealt evenly to its devices; or all devices, the rows dealt or replicated. Column blocks on single
devices, rows dealt to a host or to all devices, and column blocks whose rows are each dealt to a host (`grid`) are TorchRec's sharding
types. If constraints do not ask for equal blocks, columns of several widths and row blocks of any sizes on any devices are possible too.
The engine's catalog, `exact`, the bound and the baselines read the rules here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.errors import InfeasibleTask
from shardwright.sharding.shard import COLUMN_UNIT, Shard, even_cuts
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology


def allowed_devices(topology: Topology, limits: TableConstraint) -> Bools:
    """`(devices,)` whether a table's pinning lets it go there."""
    allowed = np.ones(topology.devices, dtype=bool)
    if limits.devices is not None:
        allowed[:] = False
        allowed[list(limits.devices)] = True
    return allowed


def unit_width(table: Table, limits: TableConstraint) -> int:
    """The unit of columns: widths of column blocks are its multiples; the whole dim if the table cannot be cut into columns.

    The unit is 4, or 1 if the dim is no multiple of 4, and a multiple of the constraint's `column_multiple`. Fused kernels take no block
    narrower than 4 columns, so a table of 4 columns is cut only if its constraints forbid leaving it whole.
    """
    narrow = table.dim == COLUMN_UNIT and not limits.allows("table_wise")
    width = math.lcm(1 if table.dim % COLUMN_UNIT or narrow else COLUMN_UNIT, limits.column_multiple or 1)
    return width if table.dim % width == 0 else table.dim


def equal_blocks(table: Table, limits: TableConstraint) -> list[int]:
    """Numbers of column blocks, all of one width, that a table may be cut into under `equal_columns`, ascending.

    The numbers divide the units of the dim, are at most `max_shards`, and leave blocks of at least `min_columns` and at most
    `max_columns`. The list is empty if the table may not be cut by columns.
    """
    return _equal_counts(table, limits, 1) if limits.allows("column_wise") else []


def _equal_counts(table: Table, limits: TableConstraint, shards: int) -> list[int]:
    """Numbers of column blocks of one width, each in so many shards."""
    units = table.dim // unit_width(table, limits)
    most = min(units, table.dim // max(limits.min_columns or 1, 1), (limits.max_shards or units * shards) // shards)
    fewest = max(2, -(-table.dim // (limits.max_columns or table.dim)))
    return [count for count in range(fewest, most + 1) if units % count == 0]


MOST_COLUMNS = 2048
"""Most columns of a block in FBGEMM's GPU kernels (`max_embedding_dim`). Its CPU kernels take any number."""


def most_columns(device: str) -> int | None:
    """Most columns of a block that FBGEMM's kernels take on a type of device; None for no limit."""
    return None if device == "cpu" else MOST_COLUMNS


def within_kernels(table: Table, limits: TableConstraint, device: str) -> TableConstraint:
    """The limits of a table, narrowed to the widest block of FBGEMM's kernels.

    A wider table is cut into columns; a device may hold several of its blocks.

    Args:
        table: the table.
        limits: its constraints; their `max_columns` counts if it is below the limit of the kernels.
        device: type of the devices.

    Raises:
        InfeasibleTask: the constraints allow no blocks that are narrow enough.
    """
    most = most_columns(device)
    if most is None or table.dim <= (most := min(most, limits.max_columns or most)):
        return limits
    kinds = tuple(kind for kind in ("column_wise", "grid") if limits.allows(kind))
    cut = replace(limits, max_columns=most, equal_columns=True)
    if not kinds or not _equal_counts(table, cut, 1):
        raise InfeasibleTask(
            f"table '{table.name}' has {table.dim} columns, FBGEMM's kernels take blocks of at most {most}, and its constraints allow no "
            f"equal column blocks as narrow: allow column_wise with max_shards and min_columns that leave at most {most} columns, or "
            "choose a dim with more divisors"
        )
    return replace(cut, sharding_types=kinds)


@dataclass(frozen=True, eq=False)
class Dealt:
    """A way that uses many devices at once: rows dealt to them, a copy on each, or column blocks with their rows each dealt to a host.

    Attributes:
        devices: ranks, ascending.
        columns: column blocks, of one width.
        hosts: hosts that share the column blocks out; 1 for one column block, whose rows are dealt to all the devices.
        copies: whether every device has all rows.
    """

    devices: Ints
    columns: int = 1
    hosts: int = 1
    copies: bool = False

    @property
    def per_device(self) -> int:
        """Column blocks of which each device has rows."""
        return self.columns // self.hosts

    def kind(self, topology: Topology) -> str:
        """The sharding type."""
        if self.copies:
            return "data_parallel"
        if self.columns > 1:
            return "grid"
        first, last = topology.host_of(int(self.devices[0])), topology.host_of(int(self.devices[-1]))
        return "table_row_wise" if first == last and topology.hosts > 1 else "row_wise"

    def block_rows(self, table: Table) -> int:
        """Rows of the largest block."""
        return table.rows if self.copies else -(-table.rows * self.hosts // self.devices.size)

    def shards(self, table: Table) -> list[Shard]:
        """The shards of a table: the first column blocks on the first host."""
        if self.copies:
            return [Shard.whole(table, *self.devices.tolist())]
        of_host = self.devices.reshape(self.hosts, -1)
        rows, width = list(pairwise(even_cuts(table.rows, of_host.shape[1]))), table.dim // self.columns
        return [
            Shard(table.name, part, (block * width, (block + 1) * width), (rank,))
            for block in range(self.columns)
            for part, rank in zip(rows, of_host[block // self.per_device].tolist(), strict=True)
        ]


_PLACES = 8  # hosts, or sets of hosts, to choose from for a table's dealt rows: enough to balance, few enough for 1,000 devices


def some_hosts(hosts: Ints, wide: int, turn: int) -> list[Ints]:
    """Sets of `wide` hosts, enough that tables that take turns use all hosts together."""
    sets = min(_PLACES, -(-hosts.size // wide))
    first = wide * (turn * sets + np.arange(sets))
    return list(np.sort(hosts[(first[:, None] + np.arange(wide)) % hosts.size], axis=1))


def free_grid_counts(table: Table, limits: TableConstraint) -> list[int]:
    """Numbers of column blocks, ascending, that a table may have if some of them have row blocks of any sizes on any devices."""
    if limits.equal_rows or not limits.allows("grid") or table.rows < 2:
        return []
    return [
        count for count in _equal_counts(table, limits, 1) if limits.max_shards is None or count < limits.max_shards
    ]


def grid_counts(table: Table, limits: TableConstraint, topology: Topology) -> list[int]:
    """Numbers of column blocks of a table's grids on hosts, ascending; none for sequence tables, whose grids TorchRec does not run."""
    near = topology.devices_per_host
    if not table.pooled or not limits.allows("grid") or near < 2 or table.rows < near:
        return []
    return _equal_counts(table, limits, near)


def grids_of(table: Table, limits: TableConstraint, topology: Topology, turn: int) -> Iterator[Dealt]:
    """Grids of a table, fewest column blocks first: each block on a separate host, or several on each if there are too few hosts.

    Args:
        table: the table.
        limits: its constraints.
        topology: the cluster.
        turn: number of the table, for taking turns over the hosts.
    """
    counts = grid_counts(table, limits, topology)
    if not counts:
        return
    by_host = allowed_devices(topology, limits).reshape(topology.hosts, -1)
    hosts, ranks = np.flatnonzero(by_host.all(axis=1)), np.arange(topology.devices).reshape(topology.hosts, -1)
    counts = counts if hosts.size else []
    wide = {count: max(n for n in range(1, hosts.size + 1) if count % n == 0) for count in counts}
    apart = [count for count in counts if wide[count] == count]
    for count in apart or counts[:1]:
        for chosen in some_hosts(hosts, wide[count], turn):
            yield Dealt(ranks[chosen].ravel(), count, wide[count])


def dealt_ways(table: Table, limits: TableConstraint, topology: Topology, turn: int) -> Iterator[Dealt]:
    """The ways of a table that use many devices at once, from which searches choose; arguments as for `grids_of`."""
    devices = np.flatnonzero(allowed_devices(topology, limits))
    by_host = devices // topology.devices_per_host
    hosts = np.unique(by_host)
    one_host = topology.hosts > 1 and hosts.size == 1
    sets = [devices] if limits.allows("table_row_wise" if one_host else "row_wise") else []
    # Rows of a pooled table that are dealt to one host are reduced there; single row blocks of other tables may lie anywhere anyhow.
    on_one = limits.allows("table_row_wise") and (table.pooled or limits.equal_rows or not limits.allows("row_wise"))
    if topology.hosts > 1 and on_one and not one_host:
        some = some_hosts(hosts, 1, turn) if limits.equal_rows or limits.allows("row_wise") else hosts[:, None]
        sets += [devices[by_host == host[0]] for host in some]
    for among in sets:
        ranks = row_block_devices(table, limits, topology, among)
        if ranks is not None:
            yield Dealt(ranks)
    if limits.allows("data_parallel") and devices.size == topology.devices > 1:
        yield Dealt(devices, copies=True)
    yield from grids_of(table, limits, topology, turn)


def columns_on_all(table: Table, limits: TableConstraint, topology: Topology) -> Iterator[Dealt]:
    """Equal column blocks, as many on each of a table's devices or on each of a host: for colocated tables, which share devices."""
    devices, counts = np.flatnonzero(allowed_devices(topology, limits)), equal_blocks(table, limits)
    by_host = devices // topology.devices_per_host
    hosts = np.unique(by_host)
    for place in (devices, *([devices[by_host == host] for host in hosts] if hosts.size > 1 else [])):
        count = next((count for count in counts if count % place.size == 0), None)
        if place.size > 1 and count is not None:
            yield Dealt(place, count, place.size)


def column_units(table: Table, limits: TableConstraint) -> list[int]:
    """Units of columns in each possible form of a table; one form of one unit if the table may not be cut."""
    if not limits.allows("column_wise") or (limits.max_shards or 2) < 2:
        return [1]
    if limits.equal_columns:
        return equal_blocks(table, limits) or [1]
    return [table.dim // unit_width(table, limits)]


def row_block_devices(table: Table, limits: TableConstraint, topology: Topology, devices: Ints) -> Ints | None:
    """The devices for a table's equal row blocks: as many of `devices` as it may have blocks, the roomiest first.

    If `devices` lie on several hosts, so do the blocks, even if there are two: on one host they would be table_row_wise.

    Args:
        table: the table.
        limits: its constraints; their sharding types are ignored.
        topology: the cluster.
        devices: ranks to choose from, ascending.

    Returns:
        Ranks, ascending; None if there are fewer than two blocks, or `equal_rows` forbids blocks of that size.
    """
    most = min(devices.size, table.rows, limits.max_shards or devices.size)
    if most < 2:
        return None
    chosen = devices if most == devices.size else _roomiest(topology, devices, most)
    return None if limits.equal_rows and not _as_torchrec(table, topology, chosen) else chosen


ROW_UNITS = 16
_FEWEST_ROWS = 64  # fewest rows of a row unit: blocks that differ by a row then cost the same to 2%


def row_units(rows: int) -> int:
    """Number of parts from which row blocks are made: 16, or 2 if a difference of one row is too large a share of finer parts."""
    return ROW_UNITS if rows >= ROW_UNITS * _FEWEST_ROWS else 2


RowPlace: TypeAlias = Literal["anywhere", "several hosts", "one host"]
"""Places of single row blocks of a table: on any devices, not all on one host, or all on the same host."""


def row_place(limits: TableConstraint, topology: Topology, devices: Ints) -> RowPlace | None:
    """The places of single row blocks on different devices of `devices`, ascending; None if the table may not be cut into row blocks.

    Row blocks on one of several hosts are table_row_wise, all others row_wise. If both types are allowed, or the devices leave no choice,
    the blocks may lie anywhere.
    """
    if limits.equal_rows or limits.max_shards == 1 or devices.size < 2:
        return None
    _, on_host = np.unique(devices // topology.devices_per_host, return_counts=True)
    several = topology.hosts > 1
    across = limits.allows("row_wise") and (not several or on_host.size > 1)
    within = limits.allows("table_row_wise") and several and on_host.max() > 1
    if across and not within:
        return "several hosts" if several and on_host.max() > 1 else "anywhere"
    if within and not across:
        return "one host" if on_host.size > 1 else "anywhere"
    return "anywhere" if across else None


def row_counts(task: Task, table: Table, limits: TableConstraint) -> list[int]:
    """Numbers of equal row blocks: 2, 4, 8, …, the devices, the devices of a host, and the devices that the table is pinned to."""
    devices, pinned = task.topology.devices, int(allowed_devices(task.topology, limits).sum())
    most = min(devices, table.rows, limits.max_shards or devices)
    counts = {2**power for power in range(1, most.bit_length())}
    counts |= {min(most, wide) for wide in (devices, task.topology.devices_per_host, pinned)}
    return sorted(count for count in counts if 2 <= count <= most)


def _roomiest(topology: Topology, devices: Ints, count: int) -> Ints:
    """`count` of the devices: the roomiest of each host, then the second of each, and so on."""
    by_memory = devices[np.argsort(-np.array(topology.memory_bytes)[devices], kind="stable")]
    hosts = by_memory // topology.devices_per_host
    turn = np.empty_like(hosts)
    for host in np.unique(hosts):
        turn[hosts == host] = np.arange(np.count_nonzero(hosts == host))
    return np.sort(by_memory[np.argsort(turn, kind="stable")[:count]])


def _as_torchrec(table: Table, topology: Topology, devices: Ints) -> bool:
    """Whether blocks on these devices are as large as TorchRec's: on all devices of the cluster, or on all of one host."""
    first, last = int(devices[0]), int(devices[-1])
    parts = topology.devices_per_host if topology.host_of(first) == topology.host_of(last) else topology.devices
    return -(-table.rows // devices.size) <= -(-table.rows // parts)
