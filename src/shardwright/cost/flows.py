"""Bytes that the blocks of a plan send over the links, by kind: ids, values, gradients, and the gradients of replicas.

The cluster has H hosts with P devices each, D = H P; each device has B / D samples. A block has R rows and C columns. Its holders are the
devices S: p of them on each of h hosts. The samples of one device look up row r q_r times in expectation. The samples of n devices have

    lookups   l(n) = Σ_r n q_r                 distinct rows   u(n) = Σ_r 1 - exp(-n q_r)

*Lookups.* A device that holds the block asks itself. Another device asks the holders in its host in equal parts, or all holders in equal
parts if its host has none. For each row it sends an id, 8 bytes, and gets the value, 4 C bytes; in the backward pass it sends the gradient,
4 C bytes. *Through proxies*, a device in a host without a holder asks, inside its host, the device with the holder's local rank; this
proxy asks the holder on behalf of the whole host. The rows that a device asks for depend on `Exchange.deduplicate`:

    none      l(1) rows (a pooled table, whatever the exchange: l(1) ids, and one partial sum per sample and feature)
    device    u(1) rows; the gradients of a distinct row are summed before they are sent
    host      u(1) rows inside the host, from a holder or from a proxy; the proxy asks for u(P) rows between hosts

All devices together ask for this many rows:

    inside hosts    (h P - |S|) rows(1)      + (H - h) (P - 1) u(1) to proxies with "host"
    between hosts   (H - h) P rows(1), or      (H - h) u(P)         with "host"

*Replicas* agree on the gradient of a block in three steps. Inside each host, every replica sends its sums to the replica that owns the row
there. Then the owners of a row on all hosts send their sums to one of them. Then the sum goes back the same way. Each replica sends

    whole     inside: 2 (p - 1) / p · 4 R C                          between: 2 (h - 1) / h · 4 R C / p
    touched   inside: (p - 1) / p · (8 + 4 C) (u(n) + u(D))          between: (h - 1) / h · (8 + 4 C) (u(p n) + u(D)) / p

where the replica serves the samples of n devices, and the replicas of its host those of p n devices. These are whole numbers if all devices
hold the block, or one device of every host does; for other sets S, samples are shared out and this is an estimate. "cheaper" takes for each
block the way with fewer bytes between hosts, or inside the host if one host has all replicas. Since u(n) ≤ u(p n), the way with fewer
bytes between hosts also has fewer inside.

For a given row all of this is linear in h and |S|. (For "touched" a lower bound is linear: the one with n = 1 and p n = P, which is exact
for a replica on every device and for one on every host.) So at given prices of links and memory, the best place for a row is one of four:
one device (*cold*), all devices of one host, one device of every host (*warm*), or all devices (*hot*). `search.flexshard` relies on this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks
from shardwright.task.task import Task
from shardwright.task.topology import Topology

Phase: TypeAlias = Literal["forward", "backward"]
Kind: TypeAlias = Literal["ids", "values", "gradients", "replicas"]

VALUE_BYTES = 4
ID_BYTES = 8
INTRA, INTER = 0, 1

KINDS: tuple[tuple[Phase, Kind], ...] = (
    ("forward", "ids"),
    ("forward", "values"),
    ("backward", "gradients"),
    ("backward", "replicas"),
)
"""The traffic of a step: ids to the holders, values back, gradients of the values, and gradients that replicas all-reduce."""


@dataclass
class LinkTraffic:
    """Bytes of one pass over the links of each device.

    Attributes:
        sent: `(2, devices)` bytes sent inside the host, and between hosts.
        received: `(2, devices)` bytes received inside the host, and between hosts.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))

    def add(self, sent: Floats, received: Floats) -> None:
        """Add `(2, devices)` bytes sent and received."""
        self.sent += sent
        self.received += received

    def milliseconds(self, topology: Topology) -> Floats:
        """`(devices,)` ms that each device spends in the pass."""
        busiest = np.maximum(self.sent, self.received)
        bandwidth = np.array(topology.link_bandwidth)[:, None]
        latency = np.array([topology.intra_latency_ms, topology.inter_latency_ms])[:, None]
        time: Floats = np.where(busiest > 0, latency + busiest / bandwidth * 1e3, 0.0).max(axis=0)
        return time


@dataclass(frozen=True, eq=False)
class HoldingDevices:
    """The k devices that hold a block, and who asks them, in a cluster of `hosts` × `per_host` devices.

    Attributes:
        asks: `(2, devices)` how often each device asks others, by link class, in units of what the samples of one device ask for. Through
            proxies, the unit between hosts is what the samples of one host ask for.
        serves: `(2, devices)` how often each device is asked, in the same units.
        ranks: `(k,)` the holders.
        hosts: number of hosts with a holder.
        beside: `(k,)` number of holders in the host of each holder, itself included.
        served: `(k,)` number of devices whose samples each holder serves, itself included.
    """

    asks: Floats
    serves: Floats
    ranks: Ints
    hosts: int
    beside: Ints
    served: Floats


@lru_cache(maxsize=512)
def holders_of(hosts: int, per_host: int, devices: tuple[int, ...], proxies: bool) -> HoldingDevices:
    """The `HoldingDevices` for the holding `devices` in a cluster of `hosts` × `per_host` devices."""
    ranks = np.array(devices, dtype=np.int64)
    held = np.bincount(ranks // per_host, minlength=hosts)
    lacking, beside = held == 0, held[ranks // per_host]
    asks, serves = np.zeros((2, hosts, per_host)), np.zeros((2, hosts, per_host))
    asks[INTRA, ~lacking] = 1.0
    asks[INTRA, ranks // per_host, ranks % per_host] = 0.0
    serves[INTRA, ranks // per_host, ranks % per_host] = (per_host - beside) / beside
    share = np.bincount(ranks % per_host, minlength=per_host) / ranks.size  # share of the holders at each local rank
    far = float(lacking.sum())
    if proxies:
        asks[INTER, lacking] = share
        serves[INTRA, lacking] = (per_host - 1) * share
        asks[INTRA, lacking] = 1 - share
    else:
        asks[INTER, lacking] = 1.0
        far *= per_host
    serves[INTER, ranks // per_host, ranks % per_host] = far / ranks.size
    served = per_host / beside + per_host * float(lacking.sum()) / ranks.size
    return HoldingDevices(
        asks.reshape(2, -1), serves.reshape(2, -1), ranks, int(hosts - lacking.sum()), beside.astype(np.int64), served
    )


def single_holders(hosts: int, per_host: int, each: Floats, far: Floats, proxies: bool) -> tuple[Floats, Floats]:
    """Bytes over the links for blocks that have a single holder.

    Args:
        hosts: number of hosts.
        per_host: devices per host.
        each: `(devices,)` bytes that the samples of one device ask of each holder.
        far: `(devices,)` bytes that the samples of one device (through proxies: of one host) ask of each holder in another host.
        proxies: whether devices ask through proxies; see the module.

    Returns:
        `(2, devices)` bytes that each device asks for, and `(2, devices)` bytes that it serves, by link class.
    """
    each, far = each.reshape(hosts, per_host), far.reshape(hosts, per_host)
    if proxies:
        rail, far_rail = each.sum(axis=0), far.sum(axis=0)
        inside = np.broadcast_to(rail.sum() - rail, each.shape), np.broadcast_to((per_host - 1) * rail, each.shape)
        between = far_rail - far, (hosts - 1) * far
    else:
        host = each.sum(axis=1, keepdims=True)
        inside = host - each, (per_host - 1) * each
        between = np.broadcast_to(far.sum() - far.sum(axis=1, keepdims=True), far.shape), (hosts - 1) * per_host * far
    asked, served = (np.stack([inside[way].ravel(), between[way].ravel()]) for way in (0, 1))
    return asked, served


def distinct_rows(work: ShardWork, lookups: Floats) -> Floats:
    """`(m,)` expected distinct rows of a block among `(m,)` numbers of lookups.

    A row with access probability q is among n lookups with probability 1 - exp(-n q). Unlike the binomial
    form, this does not depend on how a table is cut: the distinct rows of two blocks add up to those of both together.
    """
    rows = np.diff(work.access.rows)
    mean = np.diff(work.access.share) / rows
    found: Floats = (-np.expm1(-np.multiply.outer(lookups, mean))) @ rows
    return found


def whole_bytes(holders: HoldingDevices, gradient: float) -> tuple[Floats, Floats]:
    """`(2, k)` bytes that each holder sends, and receives, to agree on a gradient of `gradient` bytes."""
    p, h = holders.beside, holders.hosts
    sent = np.stack([2 * (p - 1) / p * gradient, 2 * (h - 1) / h * gradient / p])
    return sent, sent


def touched_bytes(holders: HoldingDevices, topology: Topology, of: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """`(2, k)` bytes that each holder sends, and receives, to agree on the gradients of touched rows.

    Args:
        holders: the replicas.
        topology: their cluster.
        of: maps `(m,)` numbers of devices to `(m,)` bytes: ids and gradients of the distinct rows that the devices' samples touch.
    """
    p, h = holders.beside, holders.hosts
    own, index = np.unique(holders.served, return_inverse=True)
    by_host, host_index = np.unique(holders.served * p, return_inverse=True)
    found = of(np.concatenate([own, by_host, [topology.devices]]))
    mine, host, all_rows = found[index], found[own.size + host_index], found[-1]
    hosts_together = float((host / p).sum())  # each host counted once
    intra = (p - 1) / p * (mine + all_rows)  # holders in one host serve equally, so they send what they receive
    inter_sent = (h - 1) / h * (host + all_rows) / p
    inter_received = ((hosts_together - host) / h + (h - 1) / h * all_rows) / p
    return np.stack([intra, inter_sent]), np.stack([intra, inter_received])


def row_bytes(dim: int) -> int:
    """Bytes of a touched row: its id and its gradient."""
    return ID_BYTES + VALUE_BYTES * dim


ByKind = dict[tuple[Phase, Kind], LinkTraffic]


def traffic_by_kind(task: Task, shards: Sequence[Shard]) -> ByKind:
    """Expected bytes that the shards of a plan send per step, by phase, kind, device and link class."""
    flows: ByKind = {key: LinkTraffic(task.topology.devices) for key in KINDS}
    if task.topology.devices > 1:
        works = ShardWorks(task)
        add_lookups(task, shards, works, flows)
        replicated = [shard for shard in shards if len(shard.devices) > 1]
        add_replicas(task, replicated, works, flows)
    return flows


def replica_exchange(task: Task, shard: Shard) -> Literal["whole", "touched"]:
    """How the replicas of a shard exchange its gradient: as the task asks, or the cheaper way for this block."""
    return "touched" if _touched(task, shard, ShardWorks(task).of(shard)) else "whole"


def add_lookups(task: Task, shards: Sequence[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Add the bytes of ids, values and gradients."""
    topology = task.topology
    cluster = (topology.hosts, topology.devices_per_host)
    alone: dict[bool, Floats] = {}
    shared: dict[tuple[tuple[int, ...], bool], Floats] = {}
    asked: dict[object, Floats] = {}
    for shard in shards:
        proxies = task.exchange.deduplicate == "host" and not task.table_by_name[shard.table].pooled
        work = works.of(shard)
        key = (id(work), len(shard.devices))
        if key not in asked:
            asked[key] = asked_bytes(task, work, len(shard.devices))
        if len(shard.devices) == 1:
            if proxies not in alone:
                alone[proxies] = np.zeros((4, topology.devices))
            alone[proxies][:, shard.devices[0]] += asked[key]
        elif len(shard.devices) < topology.devices:
            shared[shard.devices, proxies] = shared.get((shard.devices, proxies), 0.0) + asked[key]
    for proxies, bytes_ in alone.items():
        values, ids = (single_holders(*cluster, bytes_[kind], bytes_[kind + 2], proxies) for kind in (0, 1))
        book_lookups(flows, values, ids)
    for (devices, proxies), bytes_ in shared.items():
        holders = holders_of(*cluster, devices, proxies)
        by_link = bytes_.reshape(2, 2, 1)  # link, then values and ids
        values, ids = ((holders.asks * by_link[:, kind], holders.serves * by_link[:, kind]) for kind in (0, 1))
        book_lookups(flows, values, ids)


def book_lookups(flows: ByKind, values: tuple[Floats, Floats], ids: tuple[Floats, Floats]) -> None:
    """Add `(2, devices)` bytes of values, and of ids, that each device asks for and that each device serves."""
    flows["forward", "ids"].add(*ids)
    flows["forward", "values"].add(values[1], values[0])
    flows["backward", "gradients"].add(*values)


def asked_bytes(task: Task, work: ShardWork, holders: int) -> Floats:
    """`(4,)` bytes that one device asks of each holder of a block: values and ids inside its host, then values and ids between hosts."""
    devices, each = task.topology.devices, holders / task.topology.devices
    if work.pooled or task.exchange.deduplicate == "none":
        values = VALUE_BYTES * work.dim * work.outputs * each
        return np.array([values, ID_BYTES * work.lookups * each] * 2)
    far = task.topology.devices_per_host if task.exchange.deduplicate == "host" else 1
    near_rows, far_rows = distinct_rows(work, np.array([1.0, far]) * work.lookups * holders / devices)
    value = VALUE_BYTES * work.dim
    return np.array([value * near_rows, ID_BYTES * near_rows, value * far_rows, ID_BYTES * far_rows])


def add_replicas(task: Task, replicated: Sequence[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Add the bytes of the gradients that replicas exchange."""
    topology, flow = task.topology, flows["backward", "replicas"]
    groups: dict[tuple[int, ...], list[Shard]] = {}
    for shard in replicated:
        groups.setdefault(shard.devices, []).append(shard)
    for devices, shards in groups.items():
        holders = holders_of(topology.hosts, topology.devices_per_host, devices, False)
        touched, gradient = [], 0.0
        for shard in shards:
            work = works.of(shard)
            if _touched(task, shard, work):
                touched.append(work)
            else:
                gradient += float(VALUE_BYTES * work.rows * work.dim)
        sent, received = whole_bytes(holders, gradient)
        if touched:
            more = touched_bytes(holders, topology, _row_bytes_of(task, touched, holders))
            sent, received = sent + more[0], received + more[1]
        flow.sent[:, holders.ranks] += sent
        flow.received[:, holders.ranks] += received


def _row_bytes_of(task: Task, works: Sequence[ShardWork], holders: HoldingDevices) -> Callable[[Floats], Floats]:
    """A function from numbers of devices to the bytes of ids and gradients of the rows that their samples touch in these blocks."""
    share = holders.ranks.size / task.topology.devices

    def of(devices: Floats) -> Floats:
        total = np.zeros(devices.size)
        for work in works:
            total += row_bytes(work.dim) * distinct_rows(work, devices * work.lookups * share)
        return total

    return of


def _touched(task: Task, shard: Shard, work: ShardWork) -> bool:
    """Whether replicas exchange touched rows; "cheaper" asks for fewer bytes between hosts, inside the host if there is one."""
    if work.pooled or len(shard.devices) == 1 or task.exchange.replica_gradients == "whole":
        return False
    if task.exchange.replica_gradients == "touched":
        return True
    topology = task.topology
    holders = holders_of(topology.hosts, topology.devices_per_host, shard.devices, False)
    whole, _ = whole_bytes(holders, float(VALUE_BYTES * work.rows * work.dim))
    touched, _ = touched_bytes(holders, topology, _row_bytes_of(task, [work], holders))
    link = INTER if holders.hosts > 1 else INTRA
    return bool(touched[link].sum() < whole[link].sum())
