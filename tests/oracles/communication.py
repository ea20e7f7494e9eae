"""The bytes of plans without de-duplication and with whole gradients, block by block: what `cost.score` was before exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.task import Task
from shardwright.task.topology import Topology

Floats = npt.NDArray[np.float64]

_VALUE_BYTES = 4
_ID_BYTES = 8
INTRA, INTER = 0, 1


@dataclass
class LinkTraffic:
    """Bytes of one pass over the links of each device.

    Attributes:
        sent: `(2, devices)` bytes sent inside the host and between hosts.
        received: `(2, devices)` bytes received likewise.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))

    def milliseconds(self, topology: Topology) -> Floats:
        """`(devices,)` ms that each device spends in the pass."""
        busiest = np.maximum(self.sent, self.received)
        bandwidth = np.array(topology.link_bandwidth)[:, None]
        latency = np.array([topology.intra_latency_ms, topology.inter_latency_ms])[:, None]
        time: Floats = np.where(busiest > 0, latency + busiest / bandwidth * 1e3, 0.0).max(axis=0)
        return time


@dataclass(frozen=True)
class Traffic:
    """Traffic of a plan.

    Attributes:
        forward: ids to the holders, values back.
        backward: gradients of the values to the holders, and all-reduce of replicated blocks.
    """

    forward: LinkTraffic
    backward: LinkTraffic


def traffic(task: Task, shards: Sequence[Shard]) -> Traffic:
    """Bytes that the shards of a plan send per step, by pass, device and link class."""
    held = np.zeros((2, task.topology.devices))
    for shard in shards:
        if len(shard.devices) == 1:
            held[:, shard.devices[0]] += served_bytes(shard_work(task, shard))
    return traffic_of(task, held, [shard for shard in shards if len(shard.devices) > 1])


def traffic_of(task: Task, held: Floats, replicated: Sequence[Shard]) -> Traffic:
    """The same, from what single holders serve.

    Args:
        task: the task.
        held: `(2, devices)` bytes of values and of ids, as in `served_bytes`, of the blocks that one device holds alone.
        replicated: the other shards.
    """
    devices = task.topology.devices
    result = Traffic(LinkTraffic(devices), LinkTraffic(devices))
    if devices > 1:
        _add_single_holders(task.topology, held, result)
        for shard in replicated:
            _add_replicated(task, shard, result)
    return result


def communication_ms(task: Task, shards: Sequence[Shard]) -> tuple[Floats, Floats]:
    """`(devices,)` forward and `(devices,)` backward communication ms of a plan."""
    flows = traffic(task, shards)
    return flows.forward.milliseconds(task.topology), flows.backward.milliseconds(task.topology)


def served_bytes(work: ShardWork) -> tuple[float, float]:
    """Bytes of values and bytes of ids of all samples that one holder of a block serves, its own included."""
    bags = work.samples * len(work.feature_shares)
    values = _VALUE_BYTES * work.dim * (bags if work.pooled else work.lookups)
    return values, _ID_BYTES * work.lookups


def _add_single_holders(topology: Topology, held: Floats, result: Traffic) -> None:
    """Blocks on one device: everything the device holds goes, in equal parts, to all devices."""
    part = held / topology.devices  # for the samples of one device
    host_part = part.reshape(2, topology.hosts, -1).sum(axis=2).repeat(topology.devices_per_host, axis=1)
    peers = np.array([topology.devices_per_host - 1, topology.devices - topology.devices_per_host])[:, None]
    (values_out, ids_in), (values_in, ids_out) = ((p * peers for p in part), _from_others(part, host_part))
    _add(result, values_out, values_in, ids_in, ids_out)


def _from_others(part: Floats, host_part: Floats) -> tuple[Floats, Floats]:
    """`(2 links, devices)` values and ids that each device exchanges with the holders other than itself."""
    total = part.sum(axis=1)
    values, ids = (np.stack([host_part[kind] - part[kind], total[kind] - host_part[kind]]) for kind in (0, 1))
    return values, ids


def _add_replicated(task: Task, shard: Shard, result: Traffic) -> None:
    """A block on several devices: each sample is served by itself, else inside its host, else from anywhere."""
    topology = task.topology
    work = shard_work(task, shard)
    if len(shard.devices) == topology.devices:
        _add_reduction(topology, list(range(topology.hosts)), shard, work, result)
        return
    values, ids = (
        size * len(shard.devices) / topology.devices for size in served_bytes(work)
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
    for flow in (result.backward.sent, result.backward.received):
        flow[INTRA, ranks] += near
        flow[INTER, ranks] += far


def _add(result: Traffic, values_out: Floats, values_in: Floats, ids_in: Floats, ids_out: Floats) -> None:
    """Book `(2, devices)` bytes of values that leave their holders and arrive, and of the ids that come to the holders."""
    result.forward.sent += values_out + ids_out
    result.forward.received += values_in + ids_in
    result.backward.sent += values_in
    result.backward.received += values_out
