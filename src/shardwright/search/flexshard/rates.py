"""What a row of every kind of access costs in every tier: the coefficients of a plan's bytes and memory.

The rows between two points of an access profile are alike. For each such *segment* of each sequence table and each *way* to hold a row, the
bytes that all devices together send follow from `cost.sequences`, linear in the rows. A way is k copies on h hosts; the four extremes
are enough (see there), and with "cheaper" gradients each of them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.flows import ID_BYTES, VALUE_BYTES, Floats
from shardwright.sharding.memory import gradient_size, optimizer_bytes
from shardwright.task.table import Table, row_bytes
from shardwright.task.task import Task
from shardwright.task.topology import Topology

Ints: TypeAlias = npt.NDArray[np.int64]
Tier: TypeAlias = Literal["hot", "warm", "host", "cold"]


@dataclass(frozen=True)
class Way:
    """One way to hold a row.

    Attributes:
        tier: its name; "host" is on all devices of one host.
        hosts: hosts with a copy.
        copies: copies on all devices together.
        touched: whether only touched rows are exchanged by the copies.
    """

    tier: Tier
    hosts: int
    copies: int
    touched: bool = False


@dataclass(frozen=True, eq=False)
class Rates:
    """Coefficients of n segments and w ways.

    Attributes:
        tables: the sequence tables.
        ways: the ways.
        table: `(n,)` table of each segment; those of a table lie side by side, hottest first.
        rows: `(n,)` rows of each segment.
        ms: `(w, n, 4)` what a segment adds, held this way, to the mean device's time on its links: forward inside and between hosts,
            backward likewise.
        bytes: `(w, n)` memory of all devices together.
        each: `(w, n)` memory that it takes on every single device.
    """

    tables: tuple[Table, ...]
    ways: tuple[Way, ...]
    table: Ints
    rows: Floats
    ms: Floats
    bytes: Floats
    each: Floats

    def of_tier(self, tier: Tier) -> list[int]:
        """Numbers of the ways of a tier."""
        return [index for index, way in enumerate(self.ways) if way.tier == tier]


def row_memory(task: Task, table: Table) -> int:
    """Bytes of weights and optimizer state of a row of a table that is not cut into columns."""
    return row_bytes(table.dtype, table.dim) + optimizer_bytes(task.optimizer, 1, table.dim)


def gradient_memory(task: Task, table: Table) -> int:
    """Bytes of a row's gradient on each of several copies that reduce it whole."""
    return gradient_size(task, table.pooled, table.dtype) * table.dim


def ways_of(task: Task, tiers: Sequence[Tier]) -> tuple[Way, ...]:
    """The ways to hold a row in these tiers on the task's cluster, each once."""
    hosts, near = task.topology.hosts, task.topology.devices_per_host
    copies: dict[Tier, tuple[int, int]] = {
        "cold": (1, 1), "host": (1, near), "warm": (hosts, hosts), "hot": (hosts, hosts * near)
    }  # fmt: skip
    places: dict[tuple[int, int], Tier] = {}
    for tier in tiers:  # the first name of a place counts
        places.setdefault(copies[tier], tier)
    kinds = {"whole": (False,), "touched": (True,), "cheaper": (False, True)}[task.exchange.replica_gradients]
    return tuple(
        Way(tier, h, k, touched) for (h, k), tier in places.items() for touched in (kinds if k > 1 else (False,))
    )


def rates_of(task: Task, tables: Sequence[Table], tiers: Sequence[Tier] = ("cold", "hot", "warm")) -> Rates:
    """The coefficients of some sequence tables of a task in some tiers."""
    ways = ways_of(task, tiers)
    rows = np.concatenate([np.diff(table.access.rows) for table in tables])
    share = np.concatenate([np.diff(table.access.share) for table in tables])
    index = np.repeat(np.arange(len(tables)), [table.access.rows.size - 1 for table in tables])
    lookups = np.array([table.pooling for table in tables])[index] * task.batch_size / task.topology.devices
    dim = np.array([table.dim for table in tables], dtype=np.float64)[index]
    memory = rows * np.array([row_memory(task, table) for table in tables])[index]
    gradient = rows * np.array([gradient_memory(task, table) for table in tables])[index]
    copy = [memory + gradient if way.copies > 1 else memory for way in ways]
    asks = _Asks.of(task, rows, lookups * share / rows)
    ms = np.stack([_link_ms(task.topology, asks, way, dim) for way in ways])
    per_device = {"hot": 1.0, "warm": 1 / task.topology.devices_per_host}
    return Rates(
        tuple(tables), ways, index, rows, ms,
        np.stack([way.copies * held for way, held in zip(ways, copy, strict=True)]),
        np.stack([per_device.get(way.tier, 0.0) * held for way, held in zip(ways, copy, strict=True)]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Asks:
    """Rows of each segment that samples look up, `(n,)` each: of one device (distinct or not), distinct ones of a device, a host, all.

    Attributes:
        each: what a device asks of another one for its samples.
        far: what a device asks for between hosts; through proxies, what a host asks for.
        proxies: whether a host asks as one.
        rows: all rows of the segment.
        device: distinct rows of the samples of one device.
        host: of those of one host.
        all: of all samples.
    """

    each: Floats
    far: Floats
    proxies: bool
    rows: Floats
    device: Floats
    host: Floats
    all: Floats

    @classmethod
    def of(cls, task: Task, rows: Floats, mean: Floats) -> _Asks:
        near, devices = task.topology.devices_per_host, task.topology.devices
        device, host, everyone = (-rows * np.expm1(-count * mean) for count in (1, near, devices))
        none, proxies = task.exchange.deduplicate == "none", task.exchange.deduplicate == "host"
        each = rows * mean if none else device
        return cls(each, host if proxies else each, proxies, rows, device, host, everyone)


def _link_ms(topology: Topology, asks: _Asks, way: Way, dim: Floats) -> Floats:
    """`(n, 4)` ms of the mean device; see `cost.sequences`."""
    hosts, near, (h, k) = topology.hosts, topology.devices_per_host, (way.hosts, way.copies)
    value = VALUE_BYTES * dim
    inside = (h * near - k + (hosts - h) * (near - 1) * asks.proxies) * asks.each
    between = (hosts - h) * (1 if asks.proxies else near) * asks.far
    if way.touched:
        row = ID_BYTES + value
        agree = (k - h) * row * (asks.device + asks.all), (h - 1) * row * (asks.host + asks.all)
    else:
        agree = 2 * (k - h) * value * asks.rows, 2 * (h - 1) * value * asks.rows
    flows = [
        (value + ID_BYTES) * inside,
        (value + ID_BYTES) * between,
        value * inside + agree[0],
        value * between + agree[1],
    ]
    each = np.tile(1e3 / np.array(topology.link_bandwidth) / topology.devices, 2)
    return np.stack(flows, axis=1) * each
