"""The predicted cost of a plan: kernels by a cost model, links by the communication model, memory by the account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.communication import communication_ms
from shardwright.cost.groups import NoKernels, with_groups
from shardwright.cost.model import CostModel, Floats
from shardwright.errors import ShardwrightError
from shardwright.sharding.calls import numbered_calls
from shardwright.sharding.costs import DeviceCost, PlanCost
from shardwright.sharding.memory import memory_account
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, ShardWorks
from shardwright.task.task import Task


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
    """The plan with its predicted cost and the cost model's name."""
    return replace(plan, cost=score(plan.task, plan.shards, cost_model), cost_model=cost_model.name)


def device_ms(model: CostModel, works: Sequence[ShardWork]) -> tuple[float, float]:
    """Predicted forward and backward kernel ms of a device with some shards, in any order: the sum of its fused calls."""
    call = numbered_calls(works)
    latents = model.encode(works)
    sums = np.zeros((max(call, default=-1) + 1, latents.shape[1]))
    np.add.at(sums, call, latents)
    forward, backward = model.pricing.devices(sums, np.ones(len(sums), dtype=bool))
    return float(forward), float(backward)


def compute_ms(task: Task, shards: Sequence[Shard], cost_model: CostModel) -> Floats:
    """`(devices, 2)` predicted forward and backward kernel ms, each the sum of the device's fused calls.

    A device without a shard costs 0. The synchronisation of groups is in them.
    """
    works, cost_model = ShardWorks(task), with_groups(cost_model, task)
    of_shard = [works.of(shard) for shard in shards]  # blocks of a tier are alike, and encoded once
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
    """`(devices, 2)` forward and backward ms that keeping sharding groups alike takes in a step; see `cost.groups`."""
    return compute_ms(task, shards, NoKernels())


def without_synchronisation(plan: Plan) -> Plan:
    """The plan with the predicted cost of its kernels and links alone, which is what can be measured on one group."""
    if plan.task.groups is None or plan.cost is None:
        return plan
    less = synchronisation_ms(plan.task, plan.shards).tolist()
    devices = (
        replace(one, forward_ms=one.forward_ms - forward, backward_ms=one.backward_ms - backward)
        for one, (forward, backward) in zip(plan.cost.devices, less, strict=True)
    )
    return replace(plan, cost=PlanCost(tuple(devices)), bound_ms=None)
