"""What sharding groups pay to synchronise tables in host memory; a search knows their cached rows only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.cost.groups import all_reduce_ms_per_byte
from shardwright.integrations.torchrec.caching import cached_share, held_bytes
from shardwright.integrations.torchrec.conversion import KernelChoice
from shardwright.integrations.torchrec.problem import TorchRecProblem
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.plan import Plan


def with_host_sync(plan: Plan, problem: TorchRecProblem, choices: Mapping[str, KernelChoice]) -> Plan:
    """The plan with the all-reduce of rows in host memory in its backward times, over the slower of link and bus.

    A bound stays one: it is below a step without that. Fully sharded groups leave such tables alone.

    Args:
        plan: a plan of the problem.
        problem: the problem.
        choices: kernels of the tables in host memory.
    """
    task, groups = problem.task, problem.task.groups
    if groups is None or groups.fully_sharded or plan.cost is None:
        return plan
    bus = 2 * (groups.count - 1) / groups.count / problem.topology.hbm_to_ddr_mem_bw  # whose unit is bytes per ms
    each = max(all_reduce_ms_per_byte(groups.replica_shape, task.topology), bus) / groups.sync_interval
    added = [0.0] * task.topology.devices
    for name in choices:
        table = task.table_by_name[name]
        missing = (1.0 - cached_share(problem, table, choices[name])) * held_bytes(task, table)
        for shard in plan.by_table[name]:
            added[shard.devices[0]] += missing * shard.row_count * shard.dim / (table.rows * table.dim) * each
    devices = (
        replace(one, backward_ms=one.backward_ms + more) for one, more in zip(plan.cost.devices, added, strict=True)
    )
    return replace(plan, cost=PlanCost(tuple(devices)))
