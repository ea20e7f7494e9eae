"""Turn a model with its optimizer, its sharders and a topology into a task."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torchrec.distributed.planner.constants import BATCH_SIZE, KV_CACHING_RATIO
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams, CommOp

from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec.choices import (
    kernels_by_type,
    limits_of,
    narrowest_columns,
    needs_host,
    searched_types,
    variable_batches,
)
from shardwright.integrations.torchrec.enumerators import Listed, kernels_listed
from shardwright.integrations.torchrec.hosts import chosen_hosts
from shardwright.integrations.torchrec.modules import Kernels, ShardableTable, Sharder, shardable_tables
from shardwright.integrations.torchrec.off_device import VIRTUAL, bucket_counts, possible_kernels
from shardwright.integrations.torchrec.profiles import Profiles, id_shares_of, profiles_by_name, statistics_of
from shardwright.integrations.torchrec.requirements import most_columns_here
from shardwright.integrations.torchrec.topology import KnownLinks, topology_of
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.table import MAX_ELEMENTS, Dtype, Table
from shardwright.task.task import OPTIMIZERS, Optimizer, Task
from shardwright.task.topology import VALUE_BYTES, Exchange, Pipeline, Topology, WireType

_MEGABYTE = 1 << 20
NO_TABLE = "the model has no table that one of the sharders may shard; pass the sharders of its modules"
_BY_STATE: tuple[tuple[str, Optimizer], ...] = (
    ("rowwiseadagrad", "rowwise_adagrad"),
    ("adagrad", "adagrad"),
    ("adam", "adam"),  # counts too much state if one moment has only one value per row
    ("lamb", "adam"),
    ("sgd", "sgd"),
    ("lars", "adagrad"),  # one momentum for each weight
)


def optimizer_of(tables: Iterable[ShardableTable]) -> Optimizer:
    """The optimizer with the most state among those of the tables; FBGEMM's default, SGD, if none is named."""
    largest: Optimizer = "sgd"
    for name in {(table.optimizer or "sgd").lower().replace("_", "") for table in tables}:
        kind: Optimizer = next((ours for part, ours in _BY_STATE if part in name), "adam")
        if OPTIMIZERS.index(kind) > OPTIMIZERS.index(largest):
            largest = kind
    return largest


@dataclass(frozen=True, eq=False)
class TablePlace:
    """The place of a table in the model, and the ways in which TorchRec may shard it.

    Attributes:
        path: path of the table's module, a key of `ShardingPlan.plan`.
        name: name of the parameter in that module's part of a sharding plan.
        kernels: compute kernels by sharding type (TorchRec's names), fastest first; types in order of preference.
        given: the user's constraints on the table; None if there are none.
        table: the table in the model: weights, module, sharder, features.
        buckets: number of buckets of a zero-collision-hashing table, each on one rank; None for other tables.
        unit: rows of the parameter per row of the task's table: a bucket's rows if a virtual table has too many rows, else 1.
        narrowed: whether constraints or an enumerator leave fewer types and kernels than the sharder offers.
    """

    path: str
    name: str
    kernels: Kernels
    given: ParameterConstraints | None
    table: ShardableTable
    buckets: int | None = None
    unit: int = 1
    narrowed: bool = False

    @property
    def cache(self) -> CacheParams:
        """Cache parameters of the kernel: those of the constraints, else those of the sharder."""
        given = (self.given.cache_params if self.given else None) or CacheParams()
        fused = self.table.fused
        return replace(
            given,
            load_factor=fused.get("cache_load_factor") if given.load_factor is None else given.load_factor,
            prefetch_pipeline=fused.get("prefetch_pipeline")
            if given.prefetch_pipeline is None
            else given.prefetch_pipeline,
        )

    @property
    def store_cache_bytes(self) -> int:
        """Bytes of device memory that each shard takes as cache of a key-value store; the same for shards of any size."""
        params, fused = self.given.key_value_params if self.given else None, self.table.fused
        megabytes = (params.max_l1_cache_size if params else None) or fused.get("max_l1_cache_size") or 0
        share, tensor = float(fused.get("cache_load_factor", KV_CACHING_RATIO)), self.table.tensor
        return min(int(megabytes) * _MEGABYTE, math.ceil(tensor.numel() * tensor.element_size() * share))

    @property
    def types(self) -> tuple[str, ...]:
        """TorchRec's sharding types that the table may take, in order of preference."""
        return tuple(self.kernels)

    @property
    def rows(self) -> int:
        """Rows of the parameter."""
        return int(self.table.tensor.shape[0])

    @property
    def fqn(self) -> str:
        """Path and name of the table, joined by a dot."""
        return f"{self.path}.{self.name}"


@dataclass(frozen=True, eq=False)
class TorchRecProblem:
    """A model to shard, as a task, and the way back to TorchRec.

    Attributes:
        task: tables under unique names; memory is the rest that the storage reservation leaves, and the batch size is that of all ranks
            together.
        places: place in the model of each table of the task, in the task's order.
        topology: TorchRec's topology as given.
        reserved: TorchRec's topology with the storage left for embeddings.
        batch_size: samples of a step on each rank.
    """

    task: Task
    places: Mapping[str, TablePlace]
    topology: TorchRecTopology
    reserved: TorchRecTopology
    batch_size: int

    @property
    def compute_device(self) -> str:
        """The type of the devices: "cpu", "cuda" or "mtia"."""
        return str(self.topology.compute_device)

    @property
    def name_of(self) -> dict[tuple[str, str], str]:
        """A table's name in the task, by module path and parameter name."""
        return {(place.path, place.name): name for name, place in self.places.items()}


def problem_of(
    module: nn.Module,
    sharders: Sequence[Sharder],
    topology: TorchRecTopology,
    batch_size: int | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    storage_reservation: StorageReservation | None = None,
    profiles: Profiles = None,
) -> TorchRecProblem:
    """Build the task behind the inputs of TorchRec's planner.

    Args:
        module: the model, on any device; only shapes and types are read.
        sharders: TorchRec's sharders, one for each type of module.
        topology: devices, their storage and bandwidths.
        batch_size: samples of a step on each rank; TorchRec's default, 512, if None.
        constraints: constraints by name of the parameter.
        storage_reservation: reserves storage for the rest of the model; None to leave all of it to embeddings.
        profiles: tables with access profiles and pooling factors named like features, or the path of a tables.yaml that
            `shardwright profile` wrote.

    Raises:
        PlannerError: no sharding type is left for a table, or no device has memory.
        InvalidInput: the model has no table to shard, or a value breaks a rule.
    """
    size = BATCH_SIZE if batch_size is None else batch_size
    shardable = shardable_tables(module, sharders, topology.compute_device, constraints)
    if not shardable:
        raise InvalidInput(NO_TABLE)
    warn_of_unknown(module, sharders, shardable, constraints)
    reserved = topology
    if storage_reservation is not None:
        reserved = storage_reservation.reserve(
            topology=topology,
            batch_size=size,
            module=module,
            sharders=list(sharders),
            constraints=None if constraints is None else dict(constraints),
        )
    return problem_of_tables(shardable, topology, reserved, size, constraints, profiles)


def problem_of_tables(
    shardable: Sequence[ShardableTable],
    topology: TorchRecTopology,
    reserved: TorchRecTopology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    profiles: Profiles = None,
    known_links: KnownLinks | None = None,
    listed: Listed | None = None,
    pipeline: Pipeline = "none",
) -> TorchRecProblem:
    """Build the problem from tables that are already found and storage that is already reserved.

    Args:
        shardable: the tables.
        topology: devices, their storage and bandwidths.
        reserved: the same with the storage that is left.
        batch_size: samples of a step on each rank.
        constraints: constraints by name of the parameter.
        profiles: access profiles and pooling factors.
        known_links: speeds of links that the topology lacks.
        listed: the types and kernels that a user's enumerator lists.
        pipeline: the training pipeline that the user's storage estimator counts with.
    """
    counts = Counter(table.name for table in shardable)
    known, ours = profiles_by_name(profiles), topology_of(topology, reserved, known_links)
    variable = variable_batches([(constraints or {}).get(table.name) for table in shardable], batch_size)
    places, tables = {}, []
    for table, buckets in zip(shardable, bucket_counts(shardable, topology.world_size), strict=True):
        given = (constraints or {}).get(table.name)
        offered = kernels_by_type(table, given, topology, variable_batches=variable)
        kernels = possible_kernels(offered, table, topology, buckets)
        kernels = kernels if listed is None else kernels_listed(kernels, table, listed)
        name = table.name if counts[table.name] == 1 else f"{table.path}.{table.name}"
        unit = _unit(table, kernels, buckets)
        narrowed = listed is not None or bool(
            given and (given.sharding_types or given.compute_kernels or given.min_partition)
        )
        places[name] = TablePlace(table.path, table.name, kernels, given, table, buckets, unit, narrowed)
        tables.append(_table(name, table, given, batch_size, known, unit))
    limits = _limits(places, tables, ours)
    task = Task(
        tables,
        ours,
        batch_size * ours.devices,
        optimizer=optimizer_of(shardable),
        constraints=Constraints(tables=limits),
        exchange=replace(
            exchange_of(shardable, constraints),
            pipeline="prefetch" if any(place.cache.prefetch_pipeline for place in places.values()) else pipeline,
        ),
    )
    return TorchRecProblem(task, places, topology, reserved, batch_size)


def warn_of_unknown(
    module: nn.Module,
    sharders: Sequence[Sharder],
    tables: Sequence[ShardableTable],
    constraints: Mapping[str, ParameterConstraints] | None,
) -> None:
    """Warn once of constraints for tables that the model lacks. They are ignored, because models may share constraints."""
    unknown = set(constraints or {}) - {table.name for table in tables}
    if unknown:  # `tables` lacks tables of other device groups
        unknown -= {table.name for table in shardable_tables(module, sharders, "", None)}
    if unknown:
        names = sorted(map(str, unknown))
        warnings.warn(
            f"constraints for {', '.join(names[:10])}{', …' if len(names) > 10 else ''} are ignored: the model has no such "
            "table that the sharders may shard",
            stacklevel=4,
        )


def warn_without_optimizer(tables: Sequence[ShardableTable]) -> None:
    """Warn once if no table names the optimizer that trains it, because its state then counts 0 bytes."""
    if not any(table.quantised or table.optimizer for table in tables):
        warnings.warn(
            "no table names an embedding optimizer, so plans leave no room for its state: call apply_optimizer_in_backward before "
            "planning, or name it in the sharders' fused_params (EmbOptimType.EXACT_SGD has no state)",
            stacklevel=4,
        )


def _limits(
    places: Mapping[str, TablePlace], tables: Sequence[Table], topology: Topology
) -> dict[str, TableConstraint]:
    by_module: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        by_module[places[table.name].path].append(table)
    narrowest = {
        table.name: least
        for of_module in by_module.values()
        for table, least in zip(
            of_module, narrowest_columns([(table, places[table.name].given) for table in of_module]), strict=True
        )
    }
    towers = {
        name: (place.path, place.table.tower) if place.table.tower is not None else (name, name)
        for name, place in places.items()
        if place.table.tower is not None or needs_host(place.types)
    }
    hosts = chosen_hosts(tables, towers, topology)
    widest = None if topology.device == "cpu" else most_columns_here()
    return {
        table.name: limits_of(
            table,
            searched_types(places[table.name].table, places[table.name].given, places[table.name].types),
            places[table.name].given,
            topology,
            narrowest=narrowest[table.name],
            widest=widest,
            host=hosts.get(table.name, 0),
            bound=places[table.name].table.tower is not None,
        )
        for table in tables
    }


def _unit(table: ShardableTable, kernels: Kernels, buckets: int | None) -> int:
    """Parameter rows per planned row: a bucket's for virtual tables, which may have 2**50 rows, most of them never created."""
    rows, virtual = int(table.tensor.shape[0]), all(kernel in VIRTUAL for some in kernels.values() for kernel in some)
    return rows // buckets if virtual and buckets is not None and table.tensor.numel() > MAX_ELEMENTS else 1


def _table(
    name: str,
    table: ShardableTable,
    given: ParameterConstraints | None,
    batch_size: int,
    known: Mapping[str, Table],
    unit: int,
) -> Table:
    rows, dim = int(table.tensor.shape[0]) // unit, int(table.tensor.shape[1])
    pooling, access = statistics_of(table.name, rows, table.features, given, batch_size, known)
    weighted = table.weighted or bool(given and given.is_weighted)
    shares = id_shares_of(table.name, rows * unit, table.features, known)
    return Table(
        name, rows, dim, pooling, table.pooled, access, _dtype(table.tensor.dtype), weighted=weighted, id_shares=shares
    )


_WIRE: dict[torch.dtype, WireType] = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.uint8: "int8"}


def exchange_of(
    tables: Sequence[ShardableTable], constraints: Mapping[str, ParameterConstraints] | None = None
) -> Exchange:
    """The types on the wire: those of the sharders' codecs, else those of outputs; the widest if tables differ."""
    given = constraints or {}
    types = [_codec_types(table) or _output_types(table, given.get(table.name)) for table in tables]
    values, gradients = (max(of_tables, key=VALUE_BYTES.__getitem__) for of_tables in zip(*types, strict=True))
    by_kernel = (values, gradients) != ("fp32", "fp32") and not any(map(_codec_types, tables))
    return Exchange(values=values, gradients=gradients, conversion="kernel" if by_kernel else "codec")


def _codec_types(table: ShardableTable) -> tuple[WireType, WireType] | None:
    """Types of values and of gradients; None without codecs. Reduce-scatters use the same types except fp8, which cannot be summed."""
    operation = CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL if table.pooled else CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL
    codecs = (getattr(table.sharder, "qcomm_codecs_registry", None) or {}).get(operation.name)
    if codecs is None:
        return None
    types = (getattr(codec, "quantized_dtype", torch.float32) for codec in (codecs.forward, codecs.backward))
    values, gradients = (_WIRE.get(dtype, "fp32") for dtype in types)
    return values, gradients


def _output_types(table: ShardableTable, given: ParameterConstraints | None) -> tuple[WireType, WireType]:
    output = given.output_dtype if given and given.output_dtype is not None else table.fused.get("output_dtype")
    plain: WireType = next(
        (kind for kind in _WIRE.values() if kind == str(getattr(output, "value", output)).lower()), "fp32"
    )
    return plain, plain


def _dtype(dtype: torch.dtype) -> Dtype:
    """Our type for the size of a weight. A quantised table's width includes scale and bias, so the memory account counts them twice."""
    if dtype.itemsize == 1:
        return "int8"
    return "fp16" if dtype.itemsize == 2 else "fp32"
