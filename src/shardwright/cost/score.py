"""The predicted cost of a plan: kernels by a cost model, links by the topology, memory by the memory account.

`cost.flows` gives the bytes on the links, `cost.collectives` the collectives. A pass takes on each device

    the latencies of every set of collectives in use
    + max over {inside a host, between hosts} of max(bytes sent, bytes received) / bandwidth       for the all-to-alls, of links
      that carry as much for all devices at once as for one; others: `cost.collectives`
    + the time of reduce-scatters, all-gathers and all-reduces

which is a maximum of functions that are linear in the blocks, and constants.

*Overlap.* Dense layers hide values for v ms, the next batch's ids for i ms and gradients for g ms (`Exchange.hidden`). Let V and I be the
times of values and of ids alone, and J that of both. Then the passes count

    forward    max(0, V - v, I - i, J - v - i)        backward    max(0, time - g)

which are maxima of such functions too.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.collectives import prices_of, sets_of, waits_of
from shardwright.cost.flows import (
    SHARED,
    ByKind,
    LinkTraffic,
    book_lookups,
    id_bytes,
    single_holders,
    traffic_by_kind,
    value_bytes,
)
from shardwright.cost.for_task import for_task
from shardwright.cost.ledger import EncodedBlocks
from shardwright.cost.model import CostModel
from shardwright.cost.modules import without_modules
from shardwright.cost.synchronisation import NoKernels
from shardwright.sharding.costs import DeviceCost, PlanCost
from shardwright.sharding.memory import memory_account
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES


@dataclass(frozen=True)
class Traffic:
    """Traffic of a plan by pass.

    Attributes:
        forward: ids to the holders, and values or sums back.
        backward: their gradients to the holders, and the all-reduce of replicated blocks.
        ids: the part of `forward` that is ids.
        waits: `(2,)` ms of latencies, forward and backward.
        wait_of_ids: the part of the forward latencies that belongs to the exchange of ids.
    """

    forward: LinkTraffic
    backward: LinkTraffic
    ids: LinkTraffic
    waits: Floats
    wait_of_ids: float

    def milliseconds(self, task: Task) -> tuple[Floats, Floats]:
        """`(devices,)` ms that each device waits in the forward and in the backward pass, less the time hidden behind dense layers."""

        def taken(flow: LinkTraffic, wait: float) -> Floats:
            ms: Floats = all_to_all_ms(task, flow) + flow.apart + wait
            return ms

        hidden = task.exchange.hidden
        forward = taken(self.forward, self.waits[0]) - (hidden.values + hidden.ids)
        if hidden.values:
            forward = np.maximum(forward, taken(self.ids, self.wait_of_ids) - hidden.ids)
        if hidden.ids:
            values = taken(self.forward.without(self.ids), self.waits[0] - self.wait_of_ids)
            forward = np.maximum(forward, values - hidden.values)
        return np.maximum(forward, 0.0), np.maximum(taken(self.backward, self.waits[1]) - hidden.gradients, 0.0)


def all_to_all_ms(task: Task, flow: LinkTraffic) -> Floats:
    """`(devices,)` ms of the all-to-alls of a pass, by the prices of the forward pass."""
    ms: Floats = class_ms(task, flow).max(axis=0)
    return ms


def class_ms(task: Task, flow: LinkTraffic) -> Floats:
    """`(2, devices)` ms of the all-to-alls of a pass inside hosts and between hosts."""
    prices = prices_of(task)
    own = flow.busiest * prices.forward[:, None]
    ms: Floats = np.maximum(own, flow.mean(task.topology.devices_per_host) * prices.mean[0, :, None])
    return ms


def traffic(task: Task, shards: Sequence[Shard]) -> Traffic:
    """Bytes that the shards of a plan send per step, by pass, device and link class."""
    return _by_pass(task, traffic_by_kind(task, shards), sets_of(task, shards))


def traffic_of(task: Task, held: Floats, settled: ByKind, sets: Collection[int]) -> Traffic:
    """Like `traffic`, but from the bytes that single holders serve; without de-duplication.

    Args:
        task: the task.
        held: `(2, devices)` bytes of values and of ids, as in `served_bytes`, of blocks that a device holds alone.
        settled: traffic of the other shards.
        sets: the sets of collectives in use.
    """
    topology = task.topology
    flows = {key: copy.deepcopy(flow) for key, flow in settled.items()}
    if topology.devices > 1:
        cluster = topology.hosts, topology.devices_per_host
        narrower = VALUE_BYTES[task.exchange.gradients] / VALUE_BYTES[task.exchange.values]
        values, ids = (single_holders(*cluster, bytes_, bytes_, False) for bytes_ in held / topology.devices)
        book_lookups(flows, values, ids, narrower)
    return _by_pass(task, flows, sets)


def communication_ms(task: Task, shards: Sequence[Shard]) -> tuple[Floats, Floats]:
    """`(devices,)` forward and `(devices,)` backward communication ms of a plan."""
    return traffic(task, shards).milliseconds(task)


def served_bytes(task: Task, work: ShardWork) -> tuple[float, float]:
    """Bytes of values and of ids that one holder of a block serves, its own samples included; without de-duplication."""
    return value_bytes(task, work), id_bytes(task, work)


def _by_pass(task: Task, flows: ByKind, sets: Collection[int]) -> Traffic:
    return timed(task, *passes_of(task, flows), flows["forward", "ids"], sets)


def timed(task: Task, forward: LinkTraffic, backward: LinkTraffic, ids: LinkTraffic, sets: Collection[int]) -> Traffic:
    """Traffic with the latencies of the sets of collectives in use."""
    prices = prices_of(task)
    return Traffic(forward, backward, ids, waits_of(prices, sets), float(prices.inputs[sorted(set(sets))].sum()))


def passes_of(task: Task, flows: ByKind) -> tuple[LinkTraffic, LinkTraffic]:
    """Traffic of the forward and of the backward pass, from traffic by kind."""
    forward, backward = (LinkTraffic(task.topology.devices) for _ in range(2))
    for (phase, kind), flow in flows.items():
        total = forward if phase == "forward" else backward
        if kind in SHARED:
            total.add(flow.sent, flow.received)
        else:
            total.apart += flow.apart
    return forward, backward


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
    ledger = EncodedBlocks.of(model, works).ledger(1)
    ledger.add(np.zeros(len(works), dtype=np.int64), np.arange(len(works)))
    forward, backward = ledger.times()[0].tolist()
    return forward, backward


def compute_ms(task: Task, shards: Sequence[Shard], cost_model: CostModel) -> Floats:
    """`(devices, 2)` predicted forward and backward kernel ms, each the sum over the device's fused calls.

    A device without shards costs 0. Codecs and the synchronisation of sharding groups are included.
    """
    works, cost_model = ShardWorks(task), for_task(cost_model, task)
    of_shard = [works.of(shard) for shard in shards]  # equal blocks of a tier share one work, which is encoded once
    distinct = {id(work): work for work in of_shard}
    number = {key: index for index, key in enumerate(distinct)}
    ledger = EncodedBlocks.of(cost_model, list(distinct.values())).ledger(task.topology.devices)
    devices = np.array([rank for shard in shards for rank in shard.devices], dtype=np.int64)
    block = np.array([number[id(work)] for work in of_shard], dtype=np.int64)
    ledger.add(devices, block.repeat([len(shard.devices) for shard in shards]))
    return ledger.times()


def beside_kernels_ms(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(devices, 2)` forward and backward ms of codecs, modules and the synchronisation of sharding groups; see `cost.for_task`."""
    return compute_ms(task, shards, NoKernels())


def synchronisation_ms(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(devices, 2)` forward and backward ms to synchronise sharding groups in a step; see `cost.synchronisation`."""
    return beside_kernels_ms(
        replace(without_modules(task), exchange=replace(task.exchange, conversion="kernel")), shards
    )


def kernels_and_links(plan: Plan, *, modules: bool = False) -> Plan:
    """The plan with the predicted cost of its kernels and links alone, which a measurement of one group without codecs covers.

    Args:
        plan: the plan.
        modules: whether to include the time of modules, as in whole steps.
    """
    task = without_modules(plan.task) if modules else plan.task
    if plan.cost is None or isinstance(for_task(NoKernels(), task), NoKernels):
        return plan
    less = beside_kernels_ms(task, plan.shards).tolist()
    devices = (
        replace(device, forward_ms=device.forward_ms - forward, backward_ms=device.backward_ms - backward)
        for device, (forward, backward) in zip(plan.cost.devices, less, strict=True)
    )
    return replace(plan, cost=PlanCost(tuple(devices)), bound_ms=None)
