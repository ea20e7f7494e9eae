"""Which devices the equal row blocks of a table go to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.topology import Topology

Ints = npt.NDArray[np.int64]


def row_block_devices(table: Table, limits: TableConstraint, topology: Topology, devices: Ints) -> Ints | None:
    """The devices of a table's equal row blocks: as many of some devices as it may have blocks, the roomiest first.

    Where these devices are of several hosts the blocks lie on several too, however few they are: on one they would be table_row_wise.

    Args:
        table: the table.
        limits: its constraints, of which the sharding types are not looked at.
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
