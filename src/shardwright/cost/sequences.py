"""What every block of a plan sends over the links, by kind: ids, values, gradients, and the gradients of replicas.

H hosts of P devices, D = H P; each device has B / D samples. A block has R rows and C columns, and lies on the devices S: p of them on
each of h hosts. Its row r is looked up q_r times by the samples of one device, in expectation. Among the samples of n devices

    lookups   l(n) = Σ_r n q_r                 distinct rows   u(n) = Σ_r 1 - exp(-n q_r)

*Lookups.* A device asks itself if it holds the block, else the holders in its host in equal parts, else all holders in equal parts.
For each row it sends an id, 8 bytes, gets the value, 4 C bytes, and sends the gradient back in the backward pass, 4 C bytes. Rows a device
asks for, by `Exchange.deduplicate`:

    none      l(1) of whomever it asks (and of a pooled table one partial sum a sample, whatever the exchange, with l(1) ids)
    device    u(1) of whomever it asks; gradients are summed for each distinct row before they are sent
    host      u(1) in its host: of a holder, or of its proxy, the device with the local rank of the holder elsewhere;
              the proxy asks the holder for its whole host: u(P) between hosts

All devices together, in rows:

    inside hosts    (h P - |S|) rows(1)      + (H - h) (P - 1) u(1) to proxies with "host"
    between hosts   (H - h) P rows(1), or      (H - h) u(P)         with "host"

*Replicas* agree on the gradient of a block in three steps: inside each host every replica sends its sums to the replica that owns the
row there; the owners of a row in all hosts do the same with one of them; then the sum goes back the same way. Each replica sends

    whole     inside: 2 (p - 1) / p · 4 R C                          between: 2 (h - 1) / h · 4 R C / p
    touched   inside: (p - 1) / p · (8 + 4 C) (u(n) + u(D))          between: (h - 1) / h · (8 + 4 C) (u(p n) + u(D)) / p

where n is the number of devices whose samples the replica serves, p n that of its host (whole numbers where all devices, or one of every
host, hold the block; of other sets, whose samples are shared out, this is an estimate). "cheaper" takes, for each block, what is less
between hosts, or inside where all replicas lie on one host. Since u(n) ≤ u(p n), what is less between hosts is less inside too.

For a given row all of this is linear in h and |S| (of "touched" a lower bound is, with n = 1 and p n = P, that is exact for a replica on
every device and for one on every host): the best a row can do at given prices of links and memory is one of four things. It lies on
one device (*cold*), on all devices of one host, on one device of every host (*warm*), or on all devices (*hot*). `search.flexshard`
rests on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.flows import (
    ID_BYTES,
    INTER,
    INTRA,
    KINDS,
    VALUE_BYTES,
    Holders,
    Kind,
    LinkTraffic,
    Phase,
    holders_of,
    single_holders,
)
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks
from shardwright.task.task import Task
from shardwright.task.topology import Topology


def distinct_rows(work: ShardWork, lookups: Floats) -> Floats:
    """`(m,)` distinct rows of a block that are expected among `(m,)` numbers of lookups.

    A row of access probability q is in n lookups with probability 1 - exp(-n q). Other than the binomial
    form this does not depend on how a table is cut: the rows of two blocks are those of both together.
    """
    rows = np.diff(work.access.rows)
    mean = np.diff(work.access.share) / rows
    found: Floats = (-np.expm1(-np.multiply.outer(lookups, mean))) @ rows
    return found


def whole_bytes(holders: Holders, gradient: float) -> tuple[Floats, Floats]:
    """`(2, k)` bytes sent, and received, by each holder to agree on a gradient of so many bytes."""
    p, h = holders.beside, holders.hosts
    sent = np.stack([2 * (p - 1) / p * gradient, 2 * (h - 1) / h * gradient / p])
    return sent, sent


def touched_bytes(holders: Holders, topology: Topology, of: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """`(2, k)` bytes sent, and received, by each holder to agree on the touched rows.

    Args:
        holders: the replicas.
        topology: their cluster.
        of: from `(m,)` numbers of devices to the `(m,)` bytes of ids and gradients of the distinct rows that their samples touch.
    """
    p, h = holders.beside, holders.hosts
    own, index = np.unique(holders.served, return_inverse=True)
    by_host, host_index = np.unique(holders.served * p, return_inverse=True)
    found = of(np.concatenate([own, by_host, [topology.devices]]))
    mine, host, all_rows = found[index], found[own.size + host_index], found[-1]
    hosts_together = float((host / p).sum())  # each host counted once
    intra = (p - 1) / p * (mine + all_rows)  # the holders of a host serve alike, so they send and receive alike
    inter_sent = (h - 1) / h * (host + all_rows) / p
    inter_received = ((hosts_together - host) / h + (h - 1) / h * all_rows) / p
    return np.stack([intra, inter_sent]), np.stack([intra, inter_received])


def row_bytes(dim: int) -> int:
    """Bytes of a touched row: its id and its gradient."""
    return ID_BYTES + VALUE_BYTES * dim


def touched_is_cheaper(holders: Holders, topology: Topology, work: ShardWork, lookups: float) -> bool:
    """Whether the touched rows take fewer bytes than all on the link that the replicas wait for: between hosts, where they lie on several.

    Args:
        holders: the replicas.
        topology: their cluster.
        work: the block.
        lookups: of the samples of one device in the block.
    """
    link = INTER if holders.hosts > 1 else INTRA

    def touched(devices: Floats) -> Floats:
        return row_bytes(work.dim) * distinct_rows(work, devices * lookups)

    whole, _ = whole_bytes(holders, float(VALUE_BYTES * work.rows * work.dim))
    return bool(touched_bytes(holders, topology, touched)[0][link].sum() < whole[link].sum())


ByKind = dict[tuple[Phase, Kind], LinkTraffic]


def traffic_by_kind(task: Task, shards: Sequence[Shard]) -> ByKind:
    """Bytes that the shards of a plan send per step, in expectation, by phase, kind, device and link class."""
    flows: ByKind = {key: LinkTraffic(task.topology.devices) for key in KINDS}
    if task.topology.devices > 1:
        works = ShardWorks(task)
        add_lookups(task, shards, works, flows)
        replicated = [shard for shard in shards if len(shard.devices) > 1]
        add_replicas(task, replicated, works, flows)
    return flows


def replica_exchange(task: Task, shard: Shard) -> Literal["whole", "touched"]:
    """How the replicas of a shard agree on its gradient in each step: what the task asks for, or what is cheaper for this block."""
    return "touched" if _touched(task, shard, ShardWorks(task).of(shard)) else "whole"


def add_lookups(task: Task, shards: Sequence[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Book ids, values and gradients."""
    topology = task.topology
    cluster = (topology.hosts, topology.devices_per_host)
    alone: dict[bool, Floats] = {}
    shared: dict[tuple[tuple[int, ...], bool], Floats] = {}
    asked: dict[object, Floats] = {}
    for shard in shards:
        proxies = _proxies(task, shard)
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
    """Book `(2, devices)` bytes of values, and of ids, that each device asks for and that each serves."""
    flows["forward", "ids"].add(*ids)
    flows["forward", "values"].add(values[1], values[0])
    flows["backward", "gradients"].add(*values)


def asked_bytes(task: Task, work: ShardWork, holders: int) -> Floats:
    """`(4,)` bytes of values and of ids that one device asks of the holders of a block inside its host, then likewise between hosts."""
    devices, each = task.topology.devices, holders / task.topology.devices
    if work.pooled or task.exchange.deduplicate == "none":
        values = VALUE_BYTES * work.dim * (work.samples if work.pooled else work.lookups) * each
        return np.array([values, ID_BYTES * work.lookups * each] * 2)
    far = task.topology.devices_per_host if task.exchange.deduplicate == "host" else 1
    near_rows, far_rows = distinct_rows(work, np.array([1.0, far]) * work.lookups * holders / devices)
    value = VALUE_BYTES * work.dim
    return np.array([value * near_rows, ID_BYTES * near_rows, value * far_rows, ID_BYTES * far_rows])


def add_replicas(task: Task, replicated: Sequence[Shard], works: ShardWorks, flows: ByKind) -> None:
    """Book the gradients that replicas agree on."""
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


def _row_bytes_of(task: Task, works: Sequence[ShardWork], holders: Holders) -> Callable[[Floats], Floats]:
    """From numbers of devices to the bytes of ids and gradients of all rows of some blocks that their samples touch."""
    share = holders.ranks.size / task.topology.devices

    def of(devices: Floats) -> Floats:
        total = np.zeros(devices.size)
        for work in works:
            total += row_bytes(work.dim) * distinct_rows(work, devices * work.lookups * share)
        return total

    return of


def _touched(task: Task, shard: Shard, work: ShardWork) -> bool:
    if work.pooled or len(shard.devices) == 1 or task.exchange.replica_gradients == "whole":
        return False
    if task.exchange.replica_gradients == "touched":
        return True
    topology = task.topology
    holders = holders_of(topology.hosts, topology.devices_per_host, shard.devices, False)
    lookups = work.lookups * len(shard.devices) / topology.devices
    return touched_is_cheaper(holders, topology, work, lookups)


def _proxies(task: Task, shard: Shard) -> bool:
    return task.exchange.deduplicate == "host" and not task.table_by_name[shard.table].pooled
