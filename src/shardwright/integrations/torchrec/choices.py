"""How TorchRec lets each table be sharded: the sharding types and compute kernels that sharder and constraints leave."""

from __future__ import annotations

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.enumerators import GUARDED_COMPUTE_KERNELS, GUARDED_SHARDING_TYPES_FOR_FP_MODULES
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingType

from shardwright.integrations.torchrec.modules import ShardableTable

PREFERENCE = tuple(
    kind.value
    for kind in (
        ShardingType.TABLE_WISE,
        ShardingType.COLUMN_WISE,
        ShardingType.ROW_WISE,
        ShardingType.TABLE_ROW_WISE,
        ShardingType.DATA_PARALLEL,
        ShardingType.TABLE_COLUMN_WISE,
        ShardingType.GRID_SHARD,
    )
)
"""Sharding types in the order in which a pattern of blocks that is several of them gets its name."""

_REPLICAS, _DENSE = ShardingType.DATA_PARALLEL.value, EmbeddingComputeKernel.DENSE.value
_ROWS_OF_HOSTS = frozenset({ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value})
_RUNNABLE = tuple(
    kernel.value
    for kernel in (
        EmbeddingComputeKernel.FUSED,
        EmbeddingComputeKernel.DENSE,
        EmbeddingComputeKernel.QUANT,
        EmbeddingComputeKernel.FUSED_UVM_CACHING,
        EmbeddingComputeKernel.QUANT_UVM_CACHING,
        EmbeddingComputeKernel.FUSED_UVM,
        EmbeddingComputeKernel.QUANT_UVM,
        EmbeddingComputeKernel.DRAM_VIRTUAL_TABLE,
        EmbeddingComputeKernel.SSD_VIRTUAL_TABLE,
        EmbeddingComputeKernel.DRAM_SSD_VIRTUAL_TABLE,
        EmbeddingComputeKernel.KEY_VALUE,
    )
)
"""Compute kernels that plans may use, fastest first."""


def kernels_by_type(
    table: ShardableTable, given: ParameterConstraints | None, topology: TorchRecTopology
) -> dict[str, tuple[str, ...]]:
    """The compute kernels of each sharding type that a table may take, fastest first; types in order of preference.

    Dense kernels run replicas only. Where the last host has fewer ranks than the others, TorchRec cannot make the process groups that row
    blocks of a host need.

    Raises:
        PlannerError: sharder and constraints leave nothing.
    """
    device = topology.compute_device
    offered = table.sharder.sharding_types(device)
    types = _types(offered, given, table.sharder_key)
    if topology.world_size % min(topology.intra_group_size, topology.world_size):
        types -= _ROWS_OF_HOSTS
    asked = {kind: _kernels(table, kind, given, device) for kind in PREFERENCE if kind in types}
    found = {
        kind: tuple(kernel for kernel in kernels if kernel != _DENSE or kind == _REPLICAS)
        for kind, kernels in asked.items()
    }
    found = {kind: kernels for kind, kernels in found.items() if kernels}
    if not found:
        dense = any(asked.values())
        raise PlannerError(
            f"table '{table.path}.{table.name}': sharder {type(table.sharder).__name__} offers sharding types {sorted(offered)} on "
            f"{device}, the constraints allow {_said(given)}: no sharding type with a compute kernel that can run is left "
            "(dense kernels run data_parallel tables only, on CPUs pooled ones only; row blocks of a host need "
            "hosts of equal size); widen the constraints or use another sharder",
            PlannerErrorType.INVALID_COMPUTE_KERNEL if dense else PlannerErrorType.STRICT_CONSTRAINTS,
        )
    return found


def _types(offered: list[str], given: ParameterConstraints | None, sharder_key: str) -> set[str]:
    if given is not None and given.sharding_types:
        return set(given.sharding_types) & set(offered)
    types = set(offered)
    if "FeatureProcessedEmbeddingBagCollection" in sharder_key:
        types -= GUARDED_SHARDING_TYPES_FOR_FP_MODULES
    return types - {ShardingType.GRID_SHARD.value}


def _kernels(
    table: ShardableTable, kind: str, given: ParameterConstraints | None, compute_device: str
) -> tuple[str, ...]:
    offered = set(table.sharder.compute_kernels(kind, compute_device))
    if compute_device == "cpu" and not table.pooled:
        offered.discard(EmbeddingComputeKernel.DENSE.value)  # FBGEMM's pools whatever it is told, on CPUs
    if given is not None and given.compute_kernels:
        offered &= set(given.compute_kernels)
    else:
        offered -= {kernel.value for kernel in GUARDED_COMPUTE_KERNELS}
    return tuple(kernel for kernel in _RUNNABLE if kernel in offered)


def _said(given: ParameterConstraints | None) -> str:
    if given is None:
        return "all but grid_shard"
    return f"sharding types {given.sharding_types or 'any'} with compute kernels {given.compute_kernels or 'any'}"
