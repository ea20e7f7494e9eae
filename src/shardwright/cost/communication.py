r"""What the blocks of a plan send over the links, and how long that takes, from the topology alone.

The bytes are those of `cost.sequences`, by kind; with the default exchange (no de-duplication, whole gradients), in short:

Lookup traffic. The holder of a block sends the looked-up values of the samples of other devices: 4 C bytes a sample where it is
pooled (of a row block: the partial sums), 4 C bytes a lookup where it is not; the ids travel the other way, 8 bytes a lookup. A block
on one device serves every device; a block with replicas serves, on each of its hosts, the devices of that host (a replica serves
itself). The backward pass sends the gradients back: the same bytes without the ids.

Replica traffic. Replicas all-reduce the gradient of the whole block, 4 R C bytes, hierarchically: with p replicas a host on h hosts,
every replica sends 2 (p - 1) / p of it inside its host and 2 (h - 1) / h of a p-th of it between hosts.

Time. Links are full duplex and both classes work at the same time, so a collective takes on each device

    max over {inside a host, between hosts} of  latency + max(bytes sent, bytes received) / bandwidth

a maximum of functions that are linear in the blocks a device holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.flows import ID_BYTES, INTER, INTRA, KINDS, VALUE_BYTES, Floats, LinkTraffic
from shardwright.cost.holders import single_holders
from shardwright.cost.sequences import ByKind, add_lookups, add_replicas, book_lookups, traffic_by_kind
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks
from shardwright.task.task import Task

__all__ = ["INTER", "INTRA", "LinkTraffic", "Traffic", "communication_ms", "served_bytes", "traffic", "traffic_of"]


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
    return _by_pass(task, traffic_by_kind(task, shards))


def traffic_of(task: Task, held: Floats, replicated: Sequence[Shard]) -> Traffic:
    """The same, from what single holders serve, without de-duplication.

    Args:
        task: the task.
        held: `(2, devices)` bytes of values and of ids, as in `served_bytes`, of the blocks that one device holds alone.
        replicated: the other shards.
    """
    topology, works = task.topology, ShardWorks(task)
    flows = {key: LinkTraffic(topology.devices) for key in KINDS}
    if topology.devices > 1:
        part = held / topology.devices  # for the samples of one device
        cluster = topology.hosts, topology.devices_per_host
        book_lookups(flows, *(single_holders(*cluster, bytes_, bytes_, False) for bytes_ in part))
        add_lookups(task, replicated, works, flows)
        add_replicas(task, replicated, works, flows)
    return _by_pass(task, flows)


def communication_ms(task: Task, shards: Sequence[Shard]) -> tuple[Floats, Floats]:
    """`(devices,)` forward and `(devices,)` backward communication ms of a plan."""
    flows = traffic(task, shards)
    return flows.forward.milliseconds(task.topology), flows.backward.milliseconds(task.topology)


def served_bytes(work: ShardWork) -> tuple[float, float]:
    """Bytes of values and bytes of ids of all samples that one holder of a block serves, its own included; without de-duplication."""
    values = VALUE_BYTES * work.dim * (work.samples if work.pooled else work.lookups)
    return values, ID_BYTES * work.lookups


def _by_pass(task: Task, flows: ByKind) -> Traffic:
    passes = {phase: LinkTraffic(task.topology.devices) for phase in ("forward", "backward")}
    for (phase, _), flow in flows.items():
        passes[phase].add(flow.sent, flow.received)
    return Traffic(passes["forward"], passes["backward"])
