"""The sharding types and kernels that sharder and constraints allow for each table in TorchRec, as limits of our tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.fused_params import is_fused_param_quant_state_dict_split_scale_bias
from torchrec.distributed.planner.constants import MIN_CW_DIM, kernel_bw_lookup
from torchrec.distributed.planner.enumerators import GUARDED_COMPUTE_KERNELS, GUARDED_SHARDING_TYPES_FOR_FP_MODULES
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingType
from torchrec.quant.embedding_modules import MODULE_ATTR_QUANT_STATE_DICT_SPLIT_SCALE_BIAS

from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.integrations.torchrec.modules import ShardableTable, kernels_where
from shardwright.integrations.torchrec.off_device import OFF_DEVICE
from shardwright.sharding.ways import most_columns, within_kernels
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.topology import Topology

_WHOLE = ShardingType.TABLE_WISE.value
_COLUMNS = ShardingType.COLUMN_WISE.value
_HOST_COLUMNS = ShardingType.TABLE_COLUMN_WISE.value
_ROWS = ShardingType.ROW_WISE.value
_HOST_ROWS = ShardingType.TABLE_ROW_WISE.value
_GRID = ShardingType.GRID_SHARD.value
_REPLICAS = ShardingType.DATA_PARALLEL.value
_OF_SINGLE_DEVICES = {_HOST_ROWS: (_WHOLE,), _GRID: (_WHOLE, _COLUMNS)}
"""What types come to on hosts of one device."""

PREFERENCE = (_WHOLE, _COLUMNS, _ROWS, _HOST_ROWS, _REPLICAS, _HOST_COLUMNS, _GRID)
"""Sharding types in order of preference: a pattern of blocks that fits several types gets the first as its name."""

_DENSE = EmbeddingComputeKernel.DENSE.value
_TRITON = "fused_triton"  # of pooled tables; TorchRec 1.8 has it, 1.6 does not
_RUNNABLE = (EmbeddingComputeKernel.FUSED.value, _TRITON, _DENSE, EmbeddingComputeKernel.QUANT.value, *OFF_DEVICE)
"""Compute kernels that plans may use, fastest first."""
_QUANTISED = {kernel for kernel in _RUNNABLE if kernel.startswith("quant")}


def variable_batches(constraints: Iterable[ParameterConstraints | None], batch_size: int) -> bool:
    """Whether some feature has a separate batch size. All features of a batch then come as a variable batch (TorchRec's VBE)."""
    return any(size != batch_size for given in constraints if given for size in given.batch_sizes or ())


def searched_types(table: ShardableTable, given: ParameterConstraints | None, types: Sequence[str]) -> tuple[str, ...]:
    """The sharding types that a search may choose for a table, among those that it may take.

    TorchRec trains replicas with the model's dense optimizer, even if the table names another one. A table that names one has replicas only
    if its constraints name data_parallel, or no other type is left.
    """
    asked = given is not None and _REPLICAS in (given.sharding_types or ())
    others = tuple(kind for kind in types if kind != _REPLICAS)
    return others if table.optimizer and others and not asked else tuple(types)


def kernels_by_type(
    table: ShardableTable,
    given: ParameterConstraints | None,
    topology: TorchRecTopology,
    *,
    variable_batches: bool = False,
) -> dict[str, tuple[str, ...]]:
    """The compute kernels of each sharding type that a table may take: types in order of preference, kernels fastest first.

    Dense kernels run replicas only. Quantised tables whose rows hold their scale and bias stay whole. If the last host has fewer ranks
    than the others, TorchRec cannot make the process groups that row blocks of a host need.

    Raises:
        PlannerError: sharder and constraints leave no type with a kernel.
    """
    device = topology.compute_device
    offered = table.sharder.sharding_types(device)
    types = _types(offered, given, table)
    if table.quantised and not _scales_apart(table):
        types &= {_WHOLE}
    if topology.world_size % min(topology.intra_group_size, topology.world_size):
        types -= {_HOST_ROWS, _GRID}
    # On CPUs, FBGEMM's dense kernel always pools, and takes one batch size only.
    dense = device != "cpu" or (table.pooled and not variable_batches)
    asked = {kind: _kernels(table, kind, given, device, dense=dense) for kind in PREFERENCE if kind in types}
    usable = kernels_where(lambda kind, kernel: kernel != _DENSE or kind == _REPLICAS, asked)
    if not usable:
        only_dense = any(asked.values())
        raise PlannerError(
            f"table '{table.path}.{table.name}': sharder {type(table.sharder).__name__} offers sharding types {sorted(offered)} on "
            f"{device}, the constraints allow {_said(given)}: no sharding type with a compute kernel that can run is left "
            "(dense kernels run data_parallel tables only, on CPUs pooled ones of one batch size only; UVM and stores need GPUs; row "
            "blocks of a host need hosts of equal size; quantised tables stay whole unless quant_state_dict_split_scale_bias is on; pooled "
            f"tables whose dim, here {table.tensor.shape[1]}, is no multiple of {NARROWEST} run data_parallel only); "
            "widen the constraints, or use another sharder",
            PlannerErrorType.INVALID_COMPUTE_KERNEL if only_dense else PlannerErrorType.STRICT_CONSTRAINTS,
        )
    return usable


def _scales_apart(table: ShardableTable) -> bool:
    """Whether a quantised module keeps scales and biases apart from its rows. TorchRec cuts no others."""
    split = is_fused_param_quant_state_dict_split_scale_bias(getattr(table.sharder, "fused_params", None))
    attribute = MODULE_ATTR_QUANT_STATE_DICT_SPLIT_SCALE_BIAS
    return split or any(getattr(part, attribute, False) for part in table.module.modules())


def _types(offered: list[str], given: ParameterConstraints | None, table: ShardableTable) -> set[str]:
    if given is not None and given.sharding_types:
        return set(given.sharding_types) & set(offered)
    types = set(offered)
    if "FeatureProcessedEmbeddingBagCollection" in table.sharder_key:
        types -= GUARDED_SHARDING_TYPES_FOR_FP_MODULES
    return types if table.pooled else types - {_GRID}


def _kernels(
    table: ShardableTable, kind: str, given: ParameterConstraints | None, compute_device: str, *, dense: bool
) -> tuple[str, ...]:
    offered = set(table.sharder.compute_kernels(kind, compute_device))
    if not dense:
        offered.discard(_DENSE)
    if not table.pooled:
        offered.discard(_TRITON)
    if table.tensor.shape[1] % NARROWEST:  # TorchRec's other kernels refuse such dims
        offered &= {_DENSE, *_QUANTISED}
    if given is not None and given.compute_kernels:
        offered &= set(given.compute_kernels)
    else:
        offered -= {kernel.value for kernel in GUARDED_COMPUTE_KERNELS}
    return tuple(kernel for kernel in _RUNNABLE if kernel in offered and _runs_on(compute_device, kernel))


def _runs_on(compute_device: str, kernel: str) -> bool:
    """Whether a device has the kernel: TorchRec's planner knows a bandwidth for it, and refuses all others."""
    return kernel_bw_lookup(compute_device, kernel, 1.0, 1.0, 1.0) is not None


def _said(given: ParameterConstraints | None) -> str:
    if given is None:
        return "all"
    return f"sharding types {given.sharding_types or 'any'} with compute kernels {given.compute_kernels or 'any'}"


NARROWEST = 4  # columns: FBGEMM's kernels load vectors of 4
_SEQUENCE_PARTS = 4  # most column blocks that a sequence table is cut into, unless kernels take no blocks that wide
_TAKEN_BY_ALL = 1024  # columns of a block that the kernels of every release take


def limits_of(
    table: Table,
    types: Sequence[str],
    given: ParameterConstraints | None,
    topology: Topology,
    *,
    narrowest: int = NARROWEST,
    widest: int | None = None,
    host: int = 0,
    bound: bool = False,
) -> TableConstraint:
    """The limits within which TorchRec can run a plan's shards of a table.

    Column blocks have one width: a divisor of the dim and a multiple of 4, at least `narrowest`. Row blocks are equal and cover all
    ranks, or those of one host. A table that may only have column blocks inside one host is pinned to a host. A grid on one host is
    planned only if nothing else is allowed.

    Args:
        table: the table.
        types: TorchRec's sharding types that the table may take.
        given: the user's constraints.
        topology: our topology.
        narrowest: fewest columns of a block; see `narrowest_columns`.
        widest: most columns of a block that the installed FBGEMM takes on GPUs; None for those of its newest release.
        host: the host that the table is pinned to if it must lie on one; see `hosts`.
        bound: whether it must lie on one host because it belongs to a tower.

    Raises:
        PlannerError: the table must lie on one host, and none of its types does; or it is wider than the kernels' blocks, and may not be
            cut into narrower ones.
    """
    if topology.devices == 1 and table.dim <= (widest or most_columns(topology.device) or table.dim):
        return TableConstraint(("table_wise",), equal_rows=True)
    bound = bound and topology.hosts > 1
    if bound and not {_HOST_ROWS, _HOST_COLUMNS} & set(types):
        raise PlannerError(
            f"table '{table.name}' is of a tower, which runs on one host, and may be sharded {', '.join(types)}; "
            f"allow {_HOST_ROWS} or {_HOST_COLUMNS}",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    types = [kind for kind in types if not bound or kind in (_HOST_ROWS, _HOST_COLUMNS)]
    if topology.devices_per_host == 1:  # the rows of a host are those of its only device
        types = [kind for given_type in types for kind in _OF_SINGLE_DEVICES.get(given_type, (given_type,))]
    of_one = _host(topology, host)
    kinds, devices = set(_single_blocks(table, types, given, narrowest)), of_one if bound else None
    kinds |= {"data_parallel"} if _REPLICAS in types else set()
    cuttable = _may_cut(table.dim, narrowest)
    if cuttable and (_COLUMNS in types or (_HOST_COLUMNS in types and (bound or topology.hosts == 1))):
        kinds.add("column_wise")
    kinds |= _row_kinds(table, types, topology, alone=not kinds)
    of_host = topology.devices_per_host
    filled = table.rows >= of_host and (topology.device != "cpu" or _blocks_with_rows(table.rows, of_host) == of_host)
    if cuttable and _GRID in types and filled and (topology.hosts > 1 or not kinds):
        kinds.add("grid")
    if not kinds and cuttable and _HOST_COLUMNS in types:
        kinds, devices = {"column_wise"}, of_one
    if not kinds and table.rows == 1:  # all but one of its row blocks are empty
        firsts = of_one[:1] if bound else tuple(range(0, topology.devices, topology.devices_per_host))
        kinds, devices = {"table_wise"}, (0,) if _ROWS in types else firsts
    if not kinds:  # a grid with one range of columns is row blocks, on one host
        kinds = {"grid", "table_row_wise"} | ({"row_wise"} if _ROWS in types or topology.hosts == 1 else set())
    limits = TableConstraint(
        tuple(sorted(kinds)),
        devices,
        min_columns=min(narrowest, table.dim),
        column_multiple=NARROWEST if table.pooled else block_width(table.dim, narrowest),  # see `conversion`
        equal_rows=True,
        equal_columns=True,
        max_columns=widest,
    )
    try:
        return within_kernels(table, limits, topology.device)
    except InfeasibleTask as error:
        raise PlannerError(str(error), PlannerErrorType.STRICT_CONSTRAINTS) from error


def needs_host(types: Sequence[str]) -> bool:
    """Whether a table of these types may have to be pinned to a host to be cut into columns."""
    return _HOST_COLUMNS in types and not {_WHOLE, _COLUMNS} & set(types)


def narrowest_columns(tables: Sequence[tuple[Table, ParameterConstraints | None]]) -> list[int]:
    """Fewest columns of a block, for each table of a module: `min_partition`, else 4.

    All blocks of sequence tables must have one width (see `conversion`), so the largest minimum counts for all of them. Their blocks are at
    least a quarter of the dim, so that a rank with several blocks still holds few.

    Raises:
        InvalidInput: a `min_partition` is negative.
    """
    for table, given in tables:
        if given and given.min_partition is not None and given.min_partition < 0:
            raise InvalidInput(
                f"constraints of table '{table.name}': min_partition is {given.min_partition}, must be at least 0; leave it out for blocks "
                f"of at least {NARROWEST} columns"
            )
    asked = [max(given.min_partition if given and given.min_partition else NARROWEST, NARROWEST) for _, given in tables]
    of_sequences = [least for least, (table, _) in zip(asked, tables, strict=True) if not table.pooled]
    return [
        least if table.pooled else max(*of_sequences, min(-(-table.dim // _SEQUENCE_PARTS), _TAKEN_BY_ALL), NARROWEST)
        for least, (table, _) in zip(asked, tables, strict=True)
    ]


def _single_blocks(
    table: Table, types: Sequence[str], given: ParameterConstraints | None, narrowest: int
) -> tuple[str, ...]:
    """The type for a whole table, if it may stay whole: it may be table-wise, or TorchRec too makes one column block of it."""
    if _WHOLE in types:
        return ("table_wise",)
    asked = given.min_partition if given and given.min_partition else MIN_CW_DIM
    uncut = not _may_cut(table.dim, narrowest) or not _may_cut(table.dim, asked)
    return ("table_wise",) if uncut and {_COLUMNS, _HOST_COLUMNS} & set(types) else ()


def _may_cut(dim: int, least: int) -> bool:
    """Whether a dim has a smaller divisor that is a multiple of 4 and at least `least`."""
    return block_width(dim, least) < dim


def block_width(dim: int, least: int) -> int:
    """The narrowest divisor of a dim that is a multiple of 4 and at least `least`; the dim itself if there is none."""
    fine = (width for width in range(least, dim) if dim % width == 0 and width % NARROWEST == 0)
    return next(fine, dim)


def _row_kinds(table: Table, types: Sequence[str], topology: Topology, *, alone: bool) -> set[str]:
    """The types with row blocks. Few rows on several hosts may all lie on the first host; only a table without other types does this.

    On CPUs, only such a table may leave a rank without rows, because FBGEMM mistakes empty weights for weights on a GPU.
    """
    if table.rows == 1:
        return set()
    kinds: set[str] = set()
    used = _blocks_with_rows(table.rows, topology.devices)
    on_one_host = topology.hosts > 1 and used <= topology.devices_per_host
    may_be_empty = alone or topology.device != "cpu"
    if _ROWS in types and not on_one_host and (may_be_empty or used == topology.devices):
        kinds.add("row_wise")
    elif _ROWS in types and alone:
        kinds |= {"row_wise", "table_row_wise"}
    per_host = topology.devices_per_host
    if _HOST_ROWS in types and (may_be_empty or _blocks_with_rows(table.rows, per_host) == per_host):
        kinds.add("table_row_wise" if topology.hosts > 1 else "row_wise")
    return kinds


def _blocks_with_rows(rows: int, ranks: int) -> int:
    """Number of TorchRec's row blocks that have rows."""
    return -(-rows // -(-rows // ranks))


def _host(topology: Topology, host: int) -> tuple[int, ...]:
    return tuple(range(host * topology.devices_per_host, (host + 1) * topology.devices_per_host))
