"""Last checks of a sharding plan and of the process group, and planning on one rank for all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingType

from shardwright.errors import InvalidPlan
from shardwright.integrations.torchrec.conversion import check_complete, shard_of
from shardwright.integrations.torchrec.off_device import CACHED
from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem
from shardwright.sharding.checking import check_tiling
from shardwright.sharding.ways import most_columns

_Made = TypeVar("_Made")


def check_process_group(topology: TorchRecTopology, group: dist.ProcessGroup | None, *, whole: bool) -> None:
    """Check that a process group has as many ranks as the topology, or as several sharding groups of the topology's size.

    Args:
        topology: the topology.
        group: the process group.
        whole: whether the topology must be that of all ranks; if not, it may be that of a sharding group.

    Raises:
        PlannerError: the number of ranks does not fit, or there is no process group.
    """
    if group is None and not dist.is_initialized():
        raise PlannerError(
            "collective_plan needs a process group and none is initialised; call torch.distributed.init_process_group first, or plan()",
            PlannerErrorType.INPUT_VALIDATION,
        )
    size = dist.get_world_size(group)
    if size != topology.world_size and (whole or size % topology.world_size):
        parts = "" if whole else ", or for a sharding group of DMPCollection, which divides them"
        raise PlannerError(
            f"the topology has world_size {topology.world_size} and the process group {size} ranks; make it for the group's ranks{parts}",
            PlannerErrorType.INPUT_VALIDATION,
        )


def check_sharding_plan(plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Check that the plan has every table, tiled exactly by shards on existing ranks, with a sharding type and kernel that it may have.

    Raises:
        PlannerError: a rule is broken; the message names the tables.
    """
    try:
        check_complete(plan, problem)
    except InvalidPlan as error:
        raise PlannerError(str(error), PlannerErrorType.MISSING_MODULE_IN_PLAN) from None
    for name, place in problem.places.items():
        table: ParameterSharding = plan.plan[place.path][place.name]
        _check_kernel(place, table)
        _check_load_factor(place, table)
        _check_ranks(place, table, problem)
        if table.sharding_type != ShardingType.DATA_PARALLEL.value:
            _check_blocks(name, table, problem)
    _check_towers(plan, problem)


def returned_options(options: object, callback: object) -> list[ShardingOption]:
    """The sharding options that a callback returned.

    Raises:
        PlannerError: it returned something else.
    """
    if not isinstance(options, Sequence) or not all(isinstance(option, ShardingOption) for option in options):
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        raise PlannerError(
            f"the callback {name} returned a {type(options).__name__}, must return the list of sharding options to use",
            PlannerErrorType.OTHER,
        )
    return list(options)


def check_ranks_assigned(options: Sequence[ShardingOption]) -> None:
    """Check that every shard of sharding options has a rank. The check of the plan shows whether the ranks exist.

    Raises:
        PlannerError: a shard has no rank; the message names its table.
    """
    for option in options:
        if any(shard.rank is None or shard.rank < 0 for shard in option.shards):
            raise PlannerError(
                f"table '{option.fqn}' has a shard without a rank after the callbacks; callbacks must leave every shard on one",
                PlannerErrorType.INVALID_RANK_ASSIGNMENT,
            )


def _check_kernel(place: TablePlace, table: ParameterSharding) -> None:
    if (
        table.compute_kernel == EmbeddingComputeKernel.DENSE.value
        and table.sharding_type != ShardingType.DATA_PARALLEL.value
    ):
        raise PlannerError(
            f"table '{place.fqn}' is planned {table.sharding_type} with a dense kernel; dense kernels run data_parallel tables only",
            PlannerErrorType.INVALID_COMPUTE_KERNEL,
        )
    known = {kernel for kernels in place.kernels.values() for kernel in kernels}
    allowed = place.kernels.get(table.sharding_type, tuple(sorted(known)))
    if table.compute_kernel not in allowed:
        raise PlannerError(
            f"table '{place.fqn}' is planned {table.sharding_type} with kernel {table.compute_kernel}; it may have "
            f"{', '.join(allowed)}",
            PlannerErrorType.INVALID_COMPUTE_KERNEL,
        )


def _check_load_factor(place: TablePlace, table: ParameterSharding) -> None:
    factor = table.cache_params.load_factor if table.cache_params and table.compute_kernel in CACHED else None
    if factor is not None and not 0 < factor < 1:
        raise PlannerError(
            f"table '{place.fqn}' is planned with cache_load_factor {factor}, must be above 0 and below 1",
            PlannerErrorType.INVALID_COMPUTE_KERNEL,
        )


def _check_ranks(place: TablePlace, table: ParameterSharding, problem: TorchRecProblem) -> None:
    """Check that replicas and row blocks lie on all ranks, or those of a column block on all of a host.

    TorchRec finds the rank of a row by division.
    """
    kind, ranks, topology = table.sharding_type, table.ranks or [], problem.task.topology
    by_columns = [ranks]
    near = topology.devices
    if kind in (ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value):
        near, metadata = (
            topology.devices_per_host,
            table.sharding_spec.shards if table.sharding_spec is not None else [],
        )
        held: dict[int, list[int]] = {}
        for shard, rank in zip(metadata, ranks, strict=False):
            held.setdefault(shard.shard_offsets[1], []).append(rank)
        by_columns = list(held.values())
    elif kind not in (ShardingType.DATA_PARALLEL.value, ShardingType.ROW_WISE.value):
        return
    for of_columns in by_columns:
        first = of_columns[0] // near * near if of_columns else 0
        if of_columns != list(range(first, first + near)):
            raise PlannerError(
                f"table '{place.fqn}' is {kind} on ranks {of_columns}; it must lie on all {near} ranks from {first} on: plan anew for this "
                "topology",
                PlannerErrorType.INVALID_RANK_ASSIGNMENT,
            )


def _check_blocks(name: str, table: ParameterSharding, problem: TorchRecProblem) -> None:
    place, world = problem.places[name], problem.task.topology.devices
    metadata = table.sharding_spec.shards if table.sharding_spec is not None else []
    ranks = [shard.placement.rank() if shard.placement is not None else None for shard in metadata]
    if ranks != table.ranks or any(rank is None or not 0 <= rank < world for rank in ranks):
        raise PlannerError(
            f"table '{place.fqn}' has shards on ranks {ranks} and lists {table.ranks}; every shard needs one rank from 0 to {world - 1}",
            PlannerErrorType.INVALID_RANK_ASSIGNMENT,
        )
    shards = [shard_of(name, shard, place.unit) for shard in metadata if min(shard.shard_sizes) > 0]
    widest, most = max((shard.dim for shard in shards), default=0), most_columns(problem.compute_device)
    if most is not None and widest > most:
        raise PlannerError(
            f"table '{place.fqn}' has a block of {widest} columns, FBGEMM's kernels take at most {most}; cut it by columns",
            PlannerErrorType.INVALID_COMPUTE_KERNEL,
        )
    try:
        check_tiling(problem.task.table_by_name[name], shards)
    except InvalidPlan as error:
        raise PlannerError(str(error), PlannerErrorType.OTHER) from None


def _check_towers(plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Check that the tables of a tower lie on one host, as `ShardedEmbeddingTower` asserts."""
    hosts: dict[str, set[int]] = defaultdict(set)
    for place in problem.places.values():
        if place.table.tower is not None:
            ranks = plan.plan[place.path][place.name].ranks or ()
            hosts[place.table.tower] |= {problem.task.topology.host_of(rank) for rank in ranks}
    for tower, of_tower in hosts.items():
        if len(of_tower) > 1:
            raise PlannerError(
                f"tower '{tower}' is planned on hosts {sorted(of_tower)}; all tables of a tower lie on one host",
                PlannerErrorType.INVALID_RANK_ASSIGNMENT,
            )


def on_first_rank(make: Callable[[], _Made], group: dist.ProcessGroup | None) -> _Made:
    """Call `make` on the first rank of a process group, and return its result on all ranks of the group.

    If planning fails, TorchRec's planner leaves the other ranks waiting. Here they fail too, with the same message.

    Raises:
        PlannerError: `make` failed on the first rank; the first rank itself raises what `make` raised.
    """
    outcome: list[Any] = [None, None]
    failed: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            outcome[0] = make()
        except Exception as error:
            failed = error
            outcome[1] = (getattr(error, "error_type", PlannerErrorType.OTHER), str(error))
    first = dist.get_global_rank(group, 0) if group is not None else 0
    dist.broadcast_object_list(outcome, first, group=group)
    if failed is not None:
        raise failed
    made: _Made = outcome[0]
    if outcome[1] is not None:
        kind, why = outcome[1]
        raise PlannerError(f"planning failed on the first rank: {why}", kind)
    return made
