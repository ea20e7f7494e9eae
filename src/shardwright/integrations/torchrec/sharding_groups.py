"""2D parallelism with `DMPCollection`: plan a sharding group, for one size of the groups or for the best of all sizes.

A planner with the topology of the whole cluster plans each size by a separate planner with the topology of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, Storage
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan, ShardingStrategy

from shardwright.errors import InvalidInput
from shardwright.questions.group_sizes import GroupSize, GroupSizes, candidates, each_size
from shardwright.sharding.plan import Plan
from shardwright.task.sharding_groups import ShardingGroups

GroupSizeChoice: TypeAlias = int | Literal["auto"] | None
Planned: TypeAlias = tuple[ShardingPlan, Plan | None]

_LOADED = "it was loaded, not searched"


def group_candidates(
    topology: TorchRecTopology,
    size: int | Literal["auto"],
    sync_interval: int,
    use_inter_host_allreduce: bool,
    strategy: ShardingStrategy,
) -> list[ShardingGroups]:
    """The sharding groups that the ranks of a cluster may form, of one size or of every size.

    TorchRec's sharding strategies `DEFAULT` and `PER_MODULE` take the same time and memory.

    Raises:
        PlannerError: the size does not divide the ranks, or another option breaks a rule.
    """
    per_host = min(topology.intra_group_size, topology.world_size)
    try:
        if topology.world_size % per_host:
            raise InvalidInput(
                f"sharding_group_size: world_size {topology.world_size} is no multiple of the {per_host} ranks of a host; make hosts alike"
            )
        if isinstance(size, str) and size != "auto":
            raise InvalidInput(f"sharding_group_size is {size!r}, must be a number of ranks, or 'auto'")
        return candidates(
            topology.world_size // per_host,
            per_host,
            None if isinstance(size, str) else size,
            sync_interval=sync_interval,
            inter_host_allreduce=use_inter_host_allreduce,
            fully_sharded=strategy is ShardingStrategy.FULLY_SHARDED,
        )
    except InvalidInput as error:
        raise PlannerError(str(error), PlannerErrorType.INPUT_VALIDATION) from error


def group_topology(whole: TorchRecTopology, groups: ShardingGroups) -> TorchRecTopology:
    """TorchRec's topology of one of the groups of a cluster. Each rank has the least storage of its replicas."""
    result = TorchRecTopology(
        groups.size,
        whole.compute_device,
        local_world_size=groups.group_shape[1],
        hbm_mem_bw=whole.hbm_mem_bw,
        ddr_mem_bw=whole.ddr_mem_bw,
        ssd_mem_bw=whole.ssd_mem_bw,
        hbm_to_ddr_mem_bw=whole.hbm_to_ddr_mem_bw,
        bwd_compute_multiplier=whole.bwd_compute_multiplier,
        weighted_feature_bwd_compute_multiplier=whole.weighted_feature_bwd_compute_multiplier,
        uneven_sharding_perf_multiplier=whole.uneven_sharding_perf_multiplier,
        generalized_comms_bandwidths=whole.comms_bandwidths,
        created_by_factory=True,  # a copy: TorchRec has warned about the original
    )
    for rank, device in enumerate(result.devices):
        held = [whole.devices[replica].storage for replica in groups.replicas(rank)]
        device.storage = Storage(
            min(room.hbm for room in held), min(room.ddr for room in held), min(room.ssd for room in held)
        )
    return result


def best_size(
    sizes: list[ShardingGroups],
    search: Callable[[ShardingGroups, float | None], Planned],
    time_limit: float | None,
) -> tuple[GroupSizes, ShardingGroups, ShardingPlan]:
    """The group size with the shortest step. A size whose plan was loaded, not searched, comes first.

    Args:
        sizes: the sizes to plan.
        search: plans a group within given seconds; returns TorchRec's sharding plan, and our plan behind it.
        time_limit: seconds of all searches together.

    Returns:
        The results of all sizes, the groups of the best size, and their sharding plan.

    Raises:
        PlannerError: no size has a plan; the message has the reason for the largest.
    """
    plans: dict[int, ShardingPlan] = {}
    failed: list[PlannerError] = []

    def attempt(groups: ShardingGroups, limit: float | None) -> GroupSize:
        try:
            plans[groups.size], ours = search(groups, limit)
        except PlannerError as error:
            failed.append(error)
            return GroupSize(groups, why_not=str(error))
        return GroupSize(groups, ours, "" if ours else _LOADED)

    tried = each_size(sizes, time_limit, attempt)
    if not plans:
        raise failed[-1]
    best = next((size for size in tried if size.why_not == _LOADED), tried.best)
    return tried, best.groups, plans[best.groups.size]


def dmp_arguments(groups: ShardingGroups) -> dict[str, Any]:
    """The arguments with which `DMPCollection` makes the groups of a plan."""
    return {
        "world_size": groups.devices,
        "sharding_group_size": groups.size,
        "node_group_size": groups.group_shape[1],
        "use_inter_host_allreduce": groups.inter_host_allreduce,
        "sharding_strategy": ShardingStrategy.FULLY_SHARDED if groups.fully_sharded else ShardingStrategy.DEFAULT,
    }
