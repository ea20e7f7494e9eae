"""The time of a plan's collectives, without de-duplication and with whole gradients, block by block, independent of `cost.collectives`.

Blocks on single devices, and replicas on some devices, are asked by all-to-alls. Row blocks of a pooled table on all devices, or on all of
one host, are reduced by collectives, if none is larger than equal ones must be. Those of a sequence table on all devices travel by a set of
collectives of their own. If all tables share collectives, row blocks send their sums to every device, and one set carries everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
import numpy.typing as npt

from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.links import Collective
from shardwright.task.task import Task
from shardwright.task.topology import Topology

Floats = npt.NDArray[np.float64]

_VALUE_BYTES = 4
_ID_BYTES, _SHORT_ID_BYTES = 8, 4
INTRA, INTER = 0, 1


@dataclass
class LinkTraffic:
    """All-to-alls of one pass, and its other collectives.

    Attributes:
        sent: `(2, devices)` bytes that all-to-alls send inside the host and between hosts.
        received: `(2, devices)` bytes received likewise.
        apart: `(devices,)` ms of the other collectives.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)
    apart: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.apart = np.zeros(self.devices)
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))


@dataclass(frozen=True)
class Traffic:
    """Traffic of a plan.

    Attributes:
        forward: ids to the holders, values back.
        backward: gradients of the values to the holders, and all-reduce of replicated blocks.
        ids: the part of `forward` that is ids.
        reduced: `(2, devices)` bytes that replicas send, inside the host and between hosts, in one exchange for all of them.
    """

    forward: LinkTraffic
    backward: LinkTraffic
    ids: LinkTraffic
    reduced: Floats


def traffic(task: Task, shards: Sequence[Shard]) -> Traffic:
    """Bytes that the shards of a plan send per step, by pass, device and link class."""
    topology, held = task.topology, np.zeros((3, task.topology.devices))
    result = Traffic(*(LinkTraffic(topology.devices) for _ in range(3)), np.zeros((2, topology.devices)))
    blocks: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in shards:
        blocks.setdefault((shard.table, shard.columns), []).append(shard)
    for way in blocks.values() if topology.devices > 1 else ():
        kind = outputs_of(task, way)
        near, far = {"rows": (0.0, 0.0), "host rows": (0.0, 1 / topology.devices_per_host)}.get(kind, (1.0, 1.0))
        for shard in way:
            if len(shard.devices) > 1:
                _add_replicated(task, shard, result)
                continue
            values, ids = served_bytes(task, shard)
            held[:, shard.devices[0]] += near * values, far * values, ids
            for flow, ms in zip((result.forward, result.backward), reduction_ms(topology, kind), strict=True):
                flow.apart[shard.devices[0]] += values * ms
    if topology.devices > 1:
        _add_single_holders(topology, held, result)
    result.backward.apart += 1e3 * (result.reduced.T / topology.bandwidth_of("all_reduce")).max(axis=1)
    return result


def beside_dense(times: tuple[Floats, ...], hidden: Sequence[float]) -> Floats:
    """Forward and backward ms that dense layers do not hide, on the last axis.

    Args:
        times: ms of values alone, of ids alone, of both, and of the backward pass.
        hidden: ms of the dense layers behind which values, ids and gradients travel.
    """
    values, ids, both, backward = times
    of_values, of_ids, of_gradients = hidden
    left = np.stack([values - of_values, ids - of_ids, both - of_values - of_ids, np.zeros_like(both)])
    return np.stack([left.max(axis=0), np.maximum(0.0, backward - of_gradients)], axis=-1)


def communication_ms(task: Task, shards: Sequence[Shard]) -> tuple[Floats, Floats]:
    """`(devices,)` forward and `(devices,)` backward communication ms of a plan."""
    flows, topology = traffic(task, shards), task.topology
    blocks: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in shards:
        blocks.setdefault((shard.table, shard.columns), []).append(shard)
    kinds = set()
    for (name, _), way in blocks.items():
        pooled = task.table_by_name[name].pooled
        whole = [shard for shard in way if len(shard.devices) == topology.devices]
        if len(whole) < len(way):
            kinds.add((outputs_of(task, [shard for shard in way if shard not in whole]), pooled))
        if any(len(shard.devices) > 1 for shard in way):
            kinds.add(("copies", pooled))
    waits = np.array([latencies(task, kind) for kind in kinds]).reshape(-1, 3).sum(axis=0)
    zeros = np.zeros(topology.devices)
    values, ids, both, backward = (
        all_to_all_ms(task, sent, received) + apart + wait
        for sent, received, apart, wait in (
            (
                flows.forward.sent - flows.ids.sent,
                flows.forward.received - flows.ids.received,
                flows.forward.apart,
                waits[0] - waits[2],
            ),
            (flows.ids.sent, flows.ids.received, zeros, waits[2]),
            (flows.forward.sent, flows.forward.received, flows.forward.apart, waits[0]),
            (flows.backward.sent, flows.backward.received, flows.backward.apart, waits[1]),
        )
    )
    exposed = beside_dense((values, ids, both, backward), astuple(task.exchange.hidden))
    return exposed[:, 0], exposed[:, 1]


def all_to_all_ms(task: Task, sent: Floats, received: Floats) -> Floats:
    """`(devices,)` ms; links that are faster for a device alone also take the mean device's bytes at the speed of all at once."""
    times, topology, collective = [], task.topology, task.exchange.collective
    speeds = topology.bandwidth_of(collective), topology.alone_of(collective)
    for link, (together, alone) in enumerate(zip(*speeds, strict=True)):
        times.append(np.maximum(sent[link], received[link]) / alone)
        if alone > together:
            sharing = topology.devices_per_host if topology.devices_per_host > 1 else topology.devices
            for way in (sent[link], received[link]):
                mean = way.reshape(-1, sharing).mean(axis=1).repeat(sharing)
                times[-1] = np.maximum(times[-1], mean / together)
    return np.array(times).max(axis=0) * 1e3


SETS = tuple(
    (kind, pooled) for pooled in (True, False) for kind in ("alone", "rows", "host rows", "sequence rows", "copies")
)
"""Kinds of outputs of pooled tables and of sequence tables, which have collectives of their own."""


def outputs_of(task: Task, way: Sequence[Shard]) -> str:
    """How the outputs of blocks with the same columns reach the devices."""
    table, topology = task.table_by_name[way[0].table], task.topology
    if len(way) == 1 and len(way[0].devices) == topology.devices > 1:
        return "copies"
    ranks = sorted(shard.devices[0] for shard in way)
    rows = sorted(shard.row_count for shard in way)
    near = topology.devices_per_host
    on_one = (
        topology.hosts > 1
        and near > 1
        and ranks == list(range(ranks[0] // near * near, ranks[0] // near * near + near))
    )
    everywhere = ranks == list(range(topology.devices))
    alike = rows[-1] <= -(-table.rows // len(rows))  # no larger than equal ones must be
    single = all(len(shard.devices) == 1 for shard in way)
    if (
        len(way) < 2
        or not single
        or task.exchange.collectives == "shared"
        or sum(rows) != table.rows
        or not alike
        or not ((on_one and table.pooled) or everywhere)
    ):
        return "alone"
    if not table.pooled:
        return "sequence rows"
    return "rows" if everywhere else "host rows"


def reduction_ms(topology: Topology, kind: str) -> Floats:
    """`(2,)` ms of the reduce-scatter and of the all-gather of a byte of sums on each device."""
    intra, inter = np.transpose([topology.bandwidth_of("reduce_scatter"), topology.bandwidth_of("all_gather")])
    devices, near = topology.devices, topology.devices_per_host
    inside, share = (near - 1) / near / intra, (devices - 1) / devices
    across = np.maximum(share / intra, share / near / inter if topology.hosts > 1 else 0.0)
    return {"rows": across, "host rows": inside}.get(kind, np.zeros(2)) * 1e3


def all_reduce_ms(topology: Topology) -> float:
    """Ms of an all-reduce of a byte that every device has."""
    (intra, inter), near, hosts = topology.bandwidth_of("all_reduce"), topology.devices_per_host, topology.hosts
    return 2e3 * max((near - 1) / near / intra, (hosts - 1) / hosts / near / inter)


def latencies(task: Task, kind: tuple[str, bool]) -> Floats:
    """`(3,)` ms of the latencies of a set of collectives: forward, backward, and those of ids, which are among the forward ones."""
    topology, (outputs, pooled), shared = task.topology, kind, task.exchange.collectives == "shared"
    if topology.devices == 1:
        return np.zeros(3)

    def latency(collective: Collective, far: bool = True) -> float:
        intra, inter = topology.latency_of(collective)
        return max(intra * (topology.devices_per_host > 1), inter * (far and topology.hosts > 1))

    if outputs == "copies":
        return np.array([0.0, latency("all_reduce"), 0.0])
    if shared and not pooled and any(table.pooled for table in task.tables):
        return np.zeros(3)  # in the messages of the pooled tables
    one = latency(task.exchange.collective)
    ids = (2 if shared else 3) * one
    forward, backward = {
        "rows": (latency("reduce_scatter"), latency("all_gather")),
        "host rows": (one + latency("reduce_scatter", False), one + latency("all_gather", False)),
    }.get(outputs, (one, one))
    modules = 1 if pooled or shared else len({table.dim for table in task.tables if not table.pooled})
    return modules * np.array([ids + forward, backward, ids])


def served_bytes(task: Task, shard: Shard) -> tuple[float, float]:
    """Bytes of values and bytes of ids of all samples that one holder of a block serves, its own included."""
    work = shard_work(task, shard)
    bags = work.samples * len(work.feature_shares)
    if task.exchange.collectives == "shared":  # no sums of bags without lookups, short ids, and no lengths
        values = _VALUE_BYTES * work.dim * (min(bags, work.lookups) if work.pooled else work.lookups)
        return values, (_SHORT_ID_BYTES if work.pooled else _ID_BYTES) * work.lookups
    values = _VALUE_BYTES * work.dim * (bags if work.pooled else work.lookups)
    return values, _ID_BYTES * (work.lookups + bags * work.pooled)


def _add_single_holders(topology: Topology, held: Floats, result: Traffic) -> None:
    """Blocks on one device: everything the device holds goes, in equal parts, to all devices."""
    part = held / topology.devices  # for the samples of one device
    peers = np.array([topology.devices_per_host - 1, topology.devices - topology.devices_per_host])[:, None]
    host_part = part.reshape(3, topology.hosts, -1).sum(axis=2).repeat(topology.devices_per_host, axis=1)
    others = host_part - part, part.sum(axis=1, keepdims=True) - host_part
    values_in, ids_out = (np.stack([others[0][kind], others[1][place]]) for kind, place in ((0, 1), (2, 2)))
    _add(result, part[:2] * peers, values_in, part[2] * peers, ids_out)


def _add_replicated(task: Task, shard: Shard, result: Traffic) -> None:
    """A block on several devices: each sample is served by itself, else inside its host, else from anywhere."""
    topology = task.topology
    work = shard_work(task, shard)
    if len(shard.devices) == topology.devices:
        _add_reduction(topology, list(range(topology.hosts)), shard, work, result)
        return
    values, ids = (
        size * len(shard.devices) / topology.devices for size in served_bytes(task, shard)
    )  # of one device's samples
    flow = np.zeros((2, 2, topology.devices))  # out and in of the values, by link
    by_host = {h: [d for d in shard.devices if topology.host_of(d) == h] for h in range(topology.hosts)}
    for device in range(topology.devices):
        if device in shard.devices:
            continue
        near = by_host[topology.host_of(device)]
        servers, link = (near, INTRA) if near else (list(shard.devices), INTER)
        flow[1, link, device] += 1
        flow[0, link, servers] += 1 / len(servers)
    _add(result, flow[0] * values, flow[1] * values, flow[0] * ids, flow[1] * ids)
    replica_hosts = [host for host, devices in by_host.items() if devices]
    _add_reduction(topology, replica_hosts, shard, work, result)


def _add_reduction(topology: Topology, hosts: list[int], shard: Shard, work: ShardWork, result: Traffic) -> None:
    """All-reduce of the gradient of a block whose replicas lie on the hosts."""
    gradient = _VALUE_BYTES * work.rows * work.dim
    ranks = np.array(shard.devices)
    replicas = np.bincount(ranks // topology.devices_per_host, minlength=topology.hosts)[
        ranks // topology.devices_per_host
    ]
    near, far = 2 * (replicas - 1) / replicas * gradient, 2 * (len(hosts) - 1) / len(hosts) * gradient / replicas
    result.reduced[INTRA, ranks] += near
    result.reduced[INTER, ranks] += far


def _add(result: Traffic, values_out: Floats, values_in: Floats, ids_in: Floats, ids_out: Floats) -> None:
    """Book `(2, devices)` bytes of values that leave their holders and arrive, and of the ids that come to the holders."""
    result.forward.sent += values_out + ids_out
    result.forward.received += values_in + ids_in
    result.ids.sent += ids_out
    result.ids.received += ids_in
    result.backward.sent += values_in
    result.backward.received += values_out
