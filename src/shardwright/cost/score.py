"""The predicted cost of a plan: kernels by a cost model, links by the topology, memory by the memory account.

`cost.flows` gives the bytes on the links. Links are full duplex, and both link classes work at the same time. So a
collective takes on each device

    max over {inside a host, between hosts} of  latency + max(bytes sent, bytes received) / bandwidth

which is a maximum of functions that are linear in the blocks of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.flows import (
    ID_BYTES,
    KINDS,
    VALUE_BYTES,
    ByKind,
    LinkTraffic,
    add_lookups,
    add_replicas,
    book_lookups,
    single_holders,
    traffic_by_kind,
)
from shardwright.cost.groups import NoKernels, with_groups
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.sharding.costs import DeviceCost, PlanCost
from shardwright.sharding.memory import memory_account
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks, numbered_calls
from shardwright.task.task import Task


@dataclass(frozen=True)
class Traffic:
    """Traffic of a plan by pass.

    Attributes:
        forward: ids to the holders, and values back.
        backward: gradients of the values to the holders, and the all-reduce of replicated blocks.
    """

    forward: LinkTraffic
    backward: LinkTraffic


def traffic(task: Task, shards: Sequence[Shard]) -> Traffic:
    """Bytes that the shards of a plan send per step, by pass, device and link class."""
    return _by_pass(task, traffic_by_kind(task, shards))


def traffic_of(task: Task, held: Floats, replicated: Sequence[Shard]) -> Traffic:
    """Like `traffic`, but from the bytes that single holders serve; without de-duplication.

    Args:
        task: the task.
        held: `(2, devices)` bytes of values and of ids, as in `served_bytes`, of the blocks that a device holds alone.
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
    """Bytes of values and of ids that one holder of a block serves, its own samples included; without de-duplication."""
    return VALUE_BYTES * work.dim * work.outputs, ID_BYTES * work.lookups


def _by_pass(task: Task, flows: ByKind) -> Traffic:
    passes = {phase: LinkTraffic(task.topology.devices) for phase in ("forward", "backward")}
    for (phase, _), flow in flows.items():
        passes[phase].add(flow.sent, flow.received)
    return Traffic(passes["forward"], passes["backward"])


def score(task: Task, shards: Sequence[Shard], cost_model: CostModel) -> PlanCost:
    """Predicted cost of the shards of a plan on every device.

    Raises:
        ShardwrightError: the cost model predicted NaN.
    """
    compute = compute_ms(task, shards, cost_model)
    forward, backward = communication_ms(task, shards)
    memory = memory_account(task, shards).total
    return PlanCost(
        tuple(
            DeviceCost(
                rank=rank,
                forward_ms=float(compute[rank, 0]),
                forward_communication_ms=float(forward[rank]),
                backward_communication_ms=float(backward[rank]),
                backward_ms=float(compute[rank, 1]),
                memory_bytes=int(memory[rank]),
            )
            for rank in range(task.topology.devices)
        )
    )


def scored(plan: Plan, cost_model: CostModel) -> Plan:
    """A copy of the plan with its predicted cost and the cost model's name."""
    return replace(plan, cost=score(plan.task, plan.shards, cost_model), cost_model=cost_model.name)


def device_ms(model: CostModel, works: Sequence[ShardWork]) -> tuple[float, float]:
    """Predicted forward and backward kernel ms of a device with these shards, in any order: the sum over its fused calls."""
    call = numbered_calls(works)
    latents = model.encode(works)
    sums = np.zeros((max(call, default=-1) + 1, latents.shape[1]))
    np.add.at(sums, call, latents)
    forward, backward = model.pricing.devices(sums, np.ones(len(sums), dtype=bool))
    return float(forward), float(backward)


def compute_ms(task: Task, shards: Sequence[Shard], cost_model: CostModel) -> Floats:
    """`(devices, 2)` predicted forward and backward kernel ms, each the sum over the device's fused calls.

    A device without shards costs 0. The synchronisation of sharding groups is included.
    """
    works, cost_model = ShardWorks(task), with_groups(cost_model, task)
    of_shard = [works.of(shard) for shard in shards]  # equal blocks of a tier share one work, which is encoded once
    distinct = {id(work): work for work in of_shard}
    number = {key: index for index, key in enumerate(distinct)}
    latents, call = cost_model.encode(list(distinct.values())), numbered_calls(distinct.values())
    sums = np.zeros((task.topology.devices, max(call, default=-1) + 1, latents.shape[1]))
    present = np.zeros(sums.shape[:2], dtype=bool)
    for work, shard in zip(of_shard, shards, strict=True):
        index = number[id(work)]
        sums[list(shard.devices), call[index]] += latents[index]
        present[list(shard.devices), call[index]] = True
    times = cost_model.pricing.devices(sums, present)
    if np.isnan(times).any():
        raise ShardwrightError(
            f"cost model {cost_model.name} predicted NaN; it must predict finite times: train it again"
        )
    return times


def synchronisation_ms(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(devices, 2)` forward and backward ms to synchronise sharding groups in a step; see `cost.groups`."""
    return compute_ms(task, shards, NoKernels())


def without_synchronisation(plan: Plan) -> Plan:
    """The plan with the predicted cost of only its kernels and links, as one group alone can measure them."""
    if plan.task.groups is None or plan.cost is None:
        return plan
    less = synchronisation_ms(plan.task, plan.shards).tolist()
    devices = (
        replace(one, forward_ms=one.forward_ms - forward, backward_ms=one.backward_ms - backward)
        for one, (forward, backward) in zip(plan.cost.devices, less, strict=True)
    )
    return replace(plan, cost=PlanCost(tuple(devices)), bound_ms=None)
