"""Bytes that the blocks of a plan send over the links, by kind: ids, values or sums, their gradients, and the gradients of replicas.

The cluster has H hosts with P devices each, D = H P; each device has B / D samples. A block has R rows and C columns. Its holders are the
devices S: p of them on each of h hosts. The samples of one device look up row r q_r times in expectation. The samples of n devices have

    lookups   l(n) = Σ_r n q_r                 distinct rows   u(n) = Σ_r 1 - exp(-n q_r)

*Lookups.* A device that holds the block asks itself. Another device asks the holders in its host in equal parts, or all holders in equal
parts if its host has none. For each row it sends an id, 8 bytes, and gets the value, 4 C bytes; in the backward pass it sends the gradient,
4 C bytes (`Exchange.values` and `Exchange.gradients` make them narrower). Weights and the lengths of bags travel with ids. *Through
proxies*, a device in a host without a holder asks, inside its host, the device with the holder's local rank; this proxy asks the holder on
behalf of the whole host. The rows that a device asks for depend on `Exchange.deduplicate`:

    none      l(1) rows
    device    u(1) rows; the gradients of a distinct row are summed before they are sent
    host      u(1) rows inside the host, from a holder or from a proxy; the proxy asks for u(P) rows between hosts

Pooled tables send l(1) ids in any exchange, and get one partial sum per sample and feature.

Rows of a pooled table that are dealt to all devices, or to one host, are reduced by collectives: `cost.collectives`.

All devices together ask for this many rows:

    inside hosts    (h P - |S|) rows(1)      + (H - h) (P - 1) u(1) to proxies with "host"
    between hosts   (H - h) P rows(1), or      (H - h) u(P)         with "host"

*Replicas* reduce the gradient of a block in three steps. Inside each host, every replica sends its sums to the replica that owns the row
there. Then the owners of a row on all hosts send their sums to one of them. Then the sum goes back the same way. Each replica sends

    whole     inside: 2 (p - 1) / p · 4 R C                          between: 2 (h - 1) / h · 4 R C / p
    touched   inside: (p - 1) / p · (8 + 4 C) (u(n) + u(D))          between: (h - 1) / h · (8 + 4 C) (u(p n) + u(D)) / p

where the replica serves the samples of n devices, and the replicas of its host those of p n devices. These are whole numbers if all devices
hold the block, or one device of every host does; for other sets S, samples are shared out and this is an estimate. "cheaper" takes for each
block the way with fewer bytes between hosts, or inside the host if one host has all replicas. Since u(n) ≤ u(p n), the way with fewer
bytes between hosts also has fewer inside.

For a given row all of this is linear in h and |S|. (For "touched" only a lower bound is linear: n = 1 and p n = P. It is exact for replicas
on every device, or one on every host.) So at given prices of links and memory, the best place for a row is one of four: one device
(*cold*), all devices of one host, one device of every host (*warm*), or all devices (*hot*). `search.flexshard` relies on this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import Way, by_columns, prices_of, way_of
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ID_BYTES, ShardWork, ShardWorks
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES, Topology

Phase: TypeAlias = Literal["forward", "backward"]
Kind: TypeAlias = Literal["ids", "values", "sums", "gradients", "sum_gradients", "replicas"]

SHORT_ID_BYTES = 4
"""Bytes of an id of a pooled table, and of its weight, if all tables travel in the same messages."""
GRADIENT_BYTES = 4
"""Bytes of a weight's gradient that replicas exchange."""
INTRA, INTER = 0, 1

KINDS: tuple[tuple[Phase, Kind], ...] = (
    ("forward", "ids"),
    ("forward", "values"),
    ("forward", "sums"),
    ("backward", "gradients"),
    ("backward", "sum_gradients"),
    ("backward", "replicas"),
)
"""The traffic of a step: ids to the holders, values back by all-to-alls or sums by reduce-scatters, their gradients, and gradients that
replicas all-reduce."""
SHARED: frozenset[Kind] = frozenset({"ids", "values", "gradients"})
"""Kinds of traffic by all-to-alls, which share the links of a pass; the other kinds use separate collectives."""


@dataclass
class LinkTraffic:
    """Traffic of one kind, or of one pass.

    Attributes:
        sent: `(2, devices)` bytes sent inside the host, and between hosts.
        received: `(2, devices)` bytes received inside the host, and between hosts.
        apart: `(devices,)` ms of separate collectives, whose bytes are not among `sent` and `received`.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)
    apart: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))
        self.apart = np.zeros(self.devices)

    def add(self, sent: Floats, received: Floats) -> None:
        """Add `(2, devices)` bytes sent and received."""
        self.sent += sent
        self.received += received

    def without(self, part: LinkTraffic) -> LinkTraffic:
        """The traffic without a part of it."""
        rest = LinkTraffic(self.devices)
        rest.sent, rest.received = self.sent - part.sent, self.received - part.received
        rest.apart = self.apart - part.apart
        return rest

    def mean(self, per_host: int) -> Floats:
        """`(2, devices)` bytes of the busier direction of the mean device of each device's host; of all hosts, if a host has one device."""
        together = per_host if per_host > 1 else self.devices
        means = (way.reshape(2, -1, together).mean(axis=2) for way in (self.sent, self.received))
        mean: Floats = np.maximum(*means).repeat(together, axis=1)
        return mean

    @property
    def busiest(self) -> Floats:
        """`(2, devices)` bytes of the busier direction."""
        bytes_: Floats = np.maximum(self.sent, self.received)
        return bytes_


@dataclass(frozen=True, eq=False)
class HoldingDevices:
    """The k devices that hold a block, and the devices that ask them, in a cluster of `hosts` × `per_host` devices.

    Attributes:
        asks: `(2, devices)` how often each device asks others, by link class, in units of the requests of one device's samples. Through
            proxies, the unit between hosts is the requests of one host's samples.
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
    distinct: Floats = (-np.expm1(-np.multiply.outer(lookups, mean))) @ rows
    return distinct


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
    touched = of(np.concatenate([own, by_host, [topology.devices]]))
    mine, host, all_rows = touched[index], touched[own.size + host_index], touched[-1]
    hosts_together = float((host / p).sum())  # each host counted once
    intra = (p - 1) / p * (mine + all_rows)  # holders in one host serve equally, so they send what they receive
    inter_sent = (h - 1) / h * (host + all_rows) / p
    inter_received = ((hosts_together - host) / h + (h - 1) / h * all_rows) / p
    return np.stack([intra, inter_sent]), np.stack([intra, inter_received])


def row_bytes(dim: int) -> int:
    """Bytes of a touched row: its id and its gradient."""
    return ID_BYTES + GRADIENT_BYTES * dim


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
    """How the replicas of a shard exchange its gradient: as the task's `Exchange` states, or the cheaper way for this block."""
    return "touched" if _touched(task, shard, ShardWorks(task).of(shard)) else "whole"


def add_lookups(task: Task, shards: Sequence[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Add the bytes of ids, values or sums, and their gradients."""
    topology = task.topology
    cluster = (topology.hosts, topology.devices_per_host)
    alone: dict[bool, Floats] = {}
    shared: dict[tuple[tuple[int, ...], bool], Floats] = {}
    asked: dict[object, Floats] = {}
    add_dealt(task, shards, works, flows)
    dealt = shares_of_all_to_alls(task, shards)
    for shard in shards:
        proxies = task.exchange.deduplicate == "host" and not task.table_by_name[shard.table].pooled
        work = works.of(shard)
        key = (id(work), len(shard.devices))
        if key not in asked:
            asked[key] = asked_bytes(task, work, len(shard.devices))
        if len(shard.devices) == 1:
            if proxies not in alone:
                alone[proxies] = np.zeros((4, topology.devices))
            alone[proxies][:, shard.devices[0]] += asked[key] * dealt.get(id(shard), _ALL)
        elif len(shard.devices) < topology.devices:
            shared[shard.devices, proxies] = shared.get((shard.devices, proxies), 0.0) + asked[key]
    narrower = VALUE_BYTES[task.exchange.gradients] / VALUE_BYTES[task.exchange.values]
    for proxies, bytes_ in alone.items():
        values, ids = (single_holders(*cluster, bytes_[kind], bytes_[kind + 2], proxies) for kind in (0, 1))
        book_lookups(flows, values, ids, narrower)
    for (devices, proxies), bytes_ in shared.items():
        holders = holders_of(*cluster, devices, proxies)
        by_link = bytes_.reshape(2, 2, 1)  # link, then values and ids
        values, ids = ((holders.asks * by_link[:, kind], holders.serves * by_link[:, kind]) for kind in (0, 1))
        book_lookups(flows, values, ids, narrower)


def add_dealt(task: Task, shards: Iterable[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Add the sums of rows that are dealt to all devices or to one host, which collectives reduce."""
    topology, prices = task.topology, prices_of(task)
    devices, per_host = topology.devices, topology.devices_per_host
    for way, blocks in _dealt(task, shards):
        inside = way == "table_row_wise"
        ranks = [block.devices[0] for block in blocks]
        values = value_bytes(task, works.of(blocks[0]))
        share = (per_host - 1) / per_host if inside else (devices - 1) / devices
        sent = values * share * np.array([[per_host > 1], [topology.hosts > 1 and not inside]]) / [[1], [per_host]]
        for (phase, kind), ms in zip(_OF_SUMS, prices.dealt[int(inside)], strict=True):
            flow = flows[phase, kind]
            flow.sent[:, ranks] += sent
            flow.received[:, ranks] += sent
            flow.apart[ranks] += values * ms


def shares_of_all_to_alls(task: Task, shards: Iterable[Shard]) -> dict[int, Floats]:
    """The part of `asked_bytes` that all-to-alls carry for shards whose rows are dealt: `(4,)` factors by the shards' ids.

    If rows are dealt to one host, each of its devices sends an equal part of their sums to the other hosts.
    """
    across = np.array([0.0, 1.0, 1.0 / task.topology.devices_per_host, 1.0])
    left = {"row_wise": np.array([0.0, 1.0, 0.0, 1.0]), "table_row_wise": across}
    return {id(block): left[way] for way, blocks in _dealt(task, shards) for block in blocks}


def _dealt(task: Task, shards: Iterable[Shard]) -> list[tuple[Way, list[Shard]]]:
    """Groups of blocks with the same columns whose rows are dealt, each with its way."""
    several = (blocks for blocks in by_columns(shards).values() if len(blocks) > 1)
    with_ways = [(way_of(task, blocks), blocks) for blocks in several]
    return [(way, blocks) for way, blocks in with_ways if way in ("row_wise", "table_row_wise")]


_ALL = np.ones(4)
_OF_SUMS: tuple[tuple[Phase, Kind], ...] = (("forward", "sums"), ("backward", "sum_gradients"))


def book_lookups(flows: ByKind, values: tuple[Floats, Floats], ids: tuple[Floats, Floats], narrower: float) -> None:
    """Add `(2, devices)` bytes of values, and of ids, that each device asks for and that each device serves.

    `narrower`: bytes of a gradient for each byte of a value.
    """
    flows["forward", "ids"].add(*ids)
    flows["forward", "values"].add(values[1], values[0])
    flows["backward", "gradients"].add(narrower * values[0], narrower * values[1])


def value_bytes(task: Task, work: ShardWork) -> float:
    """Bytes of the values that a holder of a block gives for its lookups; shared collectives carry no sums of empty bags."""
    outputs = min(work.outputs, work.lookups) if task.exchange.collectives == "shared" else work.outputs
    return VALUE_BYTES[task.exchange.values] * work.dim * outputs


def id_bytes(task: Task, work: ShardWork) -> float:
    """Bytes of the ids that a holder of a block gets, with weights and lengths."""
    if work.pooled and task.exchange.collectives == "shared":
        return SHORT_ID_BYTES * (1 + work.weighted) * work.lookups
    return work.id_bytes


def asked_bytes(task: Task, work: ShardWork, holders: int) -> Floats:
    """`(4,)` bytes that one device asks of each holder of a block: values and ids inside its host, then values and ids between hosts."""
    devices, each = task.topology.devices, holders / task.topology.devices
    if work.pooled or task.exchange.deduplicate == "none":
        return np.array([value_bytes(task, work) * each, id_bytes(task, work) * each] * 2)
    far = task.topology.devices_per_host if task.exchange.deduplicate == "host" else 1
    near_rows, far_rows = distinct_rows(work, np.array([1.0, far]) * work.lookups * holders / devices)
    value = VALUE_BYTES[task.exchange.values] * work.dim
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
                gradient += float(GRADIENT_BYTES * work.rows * work.dim)
        sent, received = whole_bytes(holders, gradient)
        if touched:
            more = touched_bytes(holders, topology, _row_bytes_of(task, touched, holders))
            sent, received = sent + more[0], received + more[1]
        flow.sent[:, holders.ranks] += sent
        flow.received[:, holders.ranks] += received
    flow.apart = (flow.busiest.T / np.array(topology.bandwidth_of("all_reduce"))).max(axis=1) * 1e3


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
    """Whether replicas exchange touched rows. "cheaper" compares the bytes between hosts, or inside the host if there is only one."""
    if work.pooled or len(shard.devices) == 1 or task.exchange.replica_gradients == "whole":
        return False
    if task.exchange.replica_gradients == "touched":
        return True
    topology = task.topology
    holders = holders_of(topology.hosts, topology.devices_per_host, shard.devices, False)
    whole, _ = whole_bytes(holders, float(GRADIENT_BYTES * work.rows * work.dim))
    touched, _ = touched_bytes(holders, topology, _row_bytes_of(task, [work], holders))
    link = INTER if holders.hosts > 1 else INTRA
    return bool(touched[link].sum() < whole[link].sum())
