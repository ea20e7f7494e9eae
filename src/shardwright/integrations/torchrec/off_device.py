"""Compute kernels that keep a table's rows off device memory: storage, bandwidth and cache.

- `fused_uvm_caching`, `fused_uvm` and their `quant_` twins: rows lie in host memory; the first has a cache of `load_factor` × the rows.
- `key_value`: rows lie on SSD. Virtual tables: rows are created at their first lookup, in host memory (`dram_virtual_table`), on
  SSD (`ssd_virtual_table`) or both. Their number is unknown, so no memory is reserved for them. If the user gives a size, each
  shard has a cache: `max_l1_cache_size` MB of device memory, at most `cache_load_factor` (TorchRec's: 0.2) of the table.

Bandwidths are those that the topology states, used for the same kernels as in TorchRec: `ssd_mem_bw` for `key_value`,
`hbm_to_ddr_mem_bw` for all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from shardwright.integrations.torchrec.modules import Kernels, ShardableTable, kernels_where

CACHED = (EmbeddingComputeKernel.FUSED_UVM_CACHING.value, EmbeddingComputeKernel.QUANT_UVM_CACHING.value)
UNCACHED = (EmbeddingComputeKernel.FUSED_UVM.value, EmbeddingComputeKernel.QUANT_UVM.value)
KEY_VALUE = EmbeddingComputeKernel.KEY_VALUE.value
VIRTUAL = (
    EmbeddingComputeKernel.DRAM_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.SSD_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.DRAM_SSD_VIRTUAL_TABLE.value,
)
OFF_DEVICE = (*CACHED, *UNCACHED, *VIRTUAL, KEY_VALUE)
STORES = (*VIRTUAL, KEY_VALUE)
"""Kernels of FBGEMM's key-value stores."""

_ROWS = ShardingType.ROW_WISE.value
_HOST_ROWS = (ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value)

FOUND_MS = 2.4e-6
"""Time in ms to find the row of one lookup in a cache on the device.

Published forward passes on an H100 take this much longer with a cache than without: 2.2 to 2.9 ns per lookup if a million rows are
looked up and all are cached, by `benchmarks/published_costs.py`.
"""


def bandwidth_of(kernel: str, topology: TorchRecTopology) -> float:
    """Bytes per ms at which a device gets rows that it does not hold."""
    return float(topology.ssd_mem_bw if kernel == KEY_VALUE else topology.hbm_to_ddr_mem_bw)


def bucket_counts(tables: Sequence[ShardableTable], world_size: int) -> list[int | None]:
    """Number of buckets of each zero-collision-hashing table; None for other tables. A bucket lies on one rank.

    Raises:
        PlannerError: the buckets do not divide the rows, or a managed collision module's buckets do not divide evenly among the ranks.
    """
    stated = {
        id(module): _stated_buckets(module) for module in {id(table.module): table.module for table in tables}.values()
    }
    counts = [stated[id(table.module)].get(table.name) for table in tables]
    for table, buckets in zip(tables, counts, strict=True):
        if buckets is None:
            continue
        if isinstance(table.module, BaseManagedCollisionEmbeddingCollection) and buckets % world_size:
            raise _bad_buckets(table, buckets, f"but managed collision modules need a multiple of {world_size} ranks")
        if buckets < 1 or table.tensor.shape[0] % buckets:
            raise _bad_buckets(table, buckets, f"which do not divide its {table.tensor.shape[0]} rows")
    return counts


def possible_kernels(
    kernels: Kernels, table: ShardableTable, topology: TorchRecTopology, buckets: int | None
) -> dict[str, tuple[str, ...]]:
    """The kernels of each sharding type that this topology and the table's buckets allow.

    `key_value` needs an SSD. Virtual tables find their buckets by rank and world size, so they are row-wise if their types allow it. They
    are chosen only if the table may have no other kernel. Row blocks on one host must be whole buckets.

    Raises:
        PlannerError: no kernel is left, or there are fewer buckets than ranks.
    """
    possible = dict(kernels)
    if not any(device.storage.ssd > 0 for device in topology.devices):
        possible = kernels_where(lambda _, kernel: kernel != KEY_VALUE, possible)
    others = kernels_where(lambda _, kernel: kernel not in VIRTUAL, possible)
    if others:
        possible = others
    elif _ROWS in possible:
        possible = {_ROWS: possible[_ROWS]}
    rows, per_host = int(table.tensor.shape[0]), min(topology.intra_group_size, topology.world_size)
    if buckets is not None and -(-rows // per_host) % (rows // buckets):
        possible = {kind: some for kind, some in possible.items() if kind not in _HOST_ROWS}
    if not possible:
        raise PlannerError(
            f"table '{table.path}.{table.name}': its kernels {sorted({k for some in kernels.values() for k in some})} cannot run here: "
            "key_value needs a topology with ssd_cap above 0, and buckets cannot be cut; widen the constraints",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    if buckets is not None and _ROWS in possible and buckets < topology.world_size:
        raise _bad_buckets(table, buckets, f"but row-wise sharding needs one for each of {topology.world_size} ranks")
    return possible


def bucket_cuts(rows: int, buckets: int, ranks: int) -> list[int]:
    """Rows where the ranks' blocks start and end: whole buckets, one more on the first ranks if they do not divide evenly."""
    each, more = divmod(buckets, ranks)
    return [(each * rank + min(rank, more)) * (rows // buckets) for rank in range(ranks + 1)]


def _stated_buckets(module: nn.Module) -> dict[str, int | None]:
    """Number of buckets by table. In embedding collections, TorchRec looks at virtual tables only."""
    if isinstance(module, BaseManagedCollisionEmbeddingCollection):
        return dict(module._managed_collision_collection.table_to_number_buckets())
    configs: Sequence[BaseEmbeddingConfig] = ()
    if isinstance(module, EmbeddingBagCollection):
        configs = module.embedding_bag_configs()
    elif isinstance(module, EmbeddingCollection):
        configs = module.embedding_configs()
    return {config.name: config.total_num_buckets for config in configs if config.use_virtual_table}


def _bad_buckets(table: ShardableTable, buckets: int, rule: str) -> PlannerError:
    return PlannerError(
        f"table '{table.path}.{table.name}' has {buckets} buckets, {rule}; choose a number of buckets that fits",
        PlannerErrorType.INPUT_VALIDATION,
    )
