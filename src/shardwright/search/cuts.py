"""How tables may be cut: the widths of column blocks, and the devices that equal row blocks go to."""

from __future__ import annotations

import math

import numpy as np

from shardwright.arrays import Ints
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.topology import Topology

UNIT = 4  # columns; narrower blocks waste vector units and are not aligned to 16 bytes


def unit_width(table: Table, limits: TableConstraint) -> int:
    """Columns that the widths of blocks are multiples of; the whole dim where it cannot be cut into columns.

    They are 4, or 1 where the dim is no multiple of 4, and a multiple of the constraint's `column_multiple`. Fused kernels take no block
    narrower than 4 columns, so a table of 4 is cut only if its constraints forbid to leave it whole.
    """
    narrow = table.dim == UNIT and not limits.allows("table_wise")
    width = math.lcm(1 if table.dim % UNIT or narrow else UNIT, limits.column_multiple or 1)
    return width if table.dim % width == 0 else table.dim


def equal_blocks(table: Table, limits: TableConstraint) -> list[int]:
    """Numbers of blocks that a table may be cut into by columns, ascending, where `equal_columns` wants blocks of one width.

    They divide the units of the dim, and leave blocks of at least `min_columns`, at most `max_shards` of them; none where the table may not
    be cut by columns.
    """
    if not limits.allows("column_wise"):
        return []
    units = table.dim // unit_width(table, limits)
    most = min(units, table.dim // max(limits.min_columns or 1, 1), limits.max_shards or units)
    return [count for count in range(2, most + 1) if units % count == 0]


def row_block_devices(table: Table, limits: TableConstraint, topology: Topology, devices: Ints) -> Ints | None:
    """The devices of a table's equal row blocks: as many of some devices as it may have blocks, the roomiest first.

    Where these devices are of several hosts the blocks lie on several too, however few they are: on one they would be table_row_wise.

    Args:
        table: the table.
        limits: its constraints; their sharding types are ignored.
        topology: the cluster.
        devices: ranks to choose from, ascending.

    Returns:
        Ranks, ascending; None where there are no two blocks, or `equal_rows` forbids blocks of that size.
    """
    most = min(devices.size, table.rows, limits.max_shards or devices.size)
    if most < 2:
        return None
    chosen = devices if most == devices.size else _roomiest(topology, devices, most)
    return None if limits.equal_rows and not _as_torchrec(table, topology, chosen) else chosen


def _roomiest(topology: Topology, devices: Ints, count: int) -> Ints:
    """So many of the devices: the roomiest of each host, then the second of each, and so on."""
    by_memory = devices[np.argsort(-np.array(topology.memory_bytes)[devices], kind="stable")]
    hosts = by_memory // topology.devices_per_host
    turn = np.empty_like(hosts)
    for host in np.unique(hosts):
        turn[hosts == host] = np.arange(np.count_nonzero(hosts == host))
    return np.sort(by_memory[np.argsort(turn, kind="stable")[:count]])


def _as_torchrec(table: Table, topology: Topology, devices: Ints) -> bool:
    """Whether blocks on these devices are as large as on all devices of the cluster, or of one host."""
    first, last = int(devices[0]), int(devices[-1])
    parts = topology.devices_per_host if topology.host_of(first) == topology.host_of(last) else topology.devices
    return -(-table.rows // devices.size) <= -(-table.rows // parts)
