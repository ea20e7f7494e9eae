"""TorchRec's sharding plans as JSON files, with caches and key-value stores. TorchRec itself writes plans only as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from torch import nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    KeyValueParams,
    MultiPassPrefetchConfig,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import DataType

from shardwright.errors import InvalidInput, InvalidPlan, some_of
from shardwright.files import dump_document, parse_document, write_atomically
from shardwright.integrations.torchrec.modules import shardable_tables
from shardwright.schema import Place, check_format, convert

E = TypeVar("E", bound=Enum)


class CacheFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """TorchRec's `CacheParams` in a file. Members of enumerations are stored by name."""

    algorithm: str | None = None
    load_factor: float | None = None
    reserved_memory: float | None = None
    precision: str | None = None
    prefetch_pipeline: bool | None = None
    multipass_prefetch: tuple[int, int] | None = None


def cache_to_file(name: str, cache: CacheParams) -> CacheFile:
    """Convert cache parameters to plain data.

    Raises:
        InvalidInput: the parameters hold a statistics object.
    """
    if cache.stats is not None:
        raise InvalidInput(
            f"table '{name}': cache_params.stats is an object, which a plan file cannot hold; leave it out before saving"
        )
    config = cache.multipass_prefetch_config
    return CacheFile(
        cache.algorithm.name if cache.algorithm is not None else None,
        cache.load_factor,
        cache.reserved_memory,
        cache.precision.name if cache.precision is not None else None,
        cache.prefetch_pipeline,
        (config.num_passes, config.min_splitable_pass_size) if config is not None else None,
    )


def cache_from_file(cache: CacheFile, place: Place) -> CacheParams:
    """Read cache parameters from plain data.

    Raises:
        InvalidInput: an enumeration has no such member.
    """
    return CacheParams(
        member(CacheAlgorithm, cache.algorithm, place.at("algorithm")),
        cache.load_factor,
        cache.reserved_memory,
        member(DataType, cache.precision, place.at("precision")),
        cache.prefetch_pipeline,
        multipass_prefetch_config=MultiPassPrefetchConfig(*cache.multipass_prefetch)
        if cache.multipass_prefetch
        else None,
    )


def store_to_file(name: str, params: KeyValueParams) -> dict[str, Any]:
    """Convert parameters of a key-value store to plain data, without those that are None.

    Raises:
        InvalidInput: the parameters hold an object of a user's class, such as a reporter of statistics.
    """
    content: dict[str, Any] = {}
    try:
        content = msgspec.to_builtins(params)
        whole = msgspec.convert(content, KeyValueParams) == params
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise InvalidInput(
            f"table '{name}': key_value_params hold an object that a plan file cannot hold; use TorchRec's and FBGEMM's own classes for "
            "stats_reporter_config and kvzch_tbe_config, or leave them out before saving"
        )
    return {field: value for field, value in content.items() if value is not None}


def store_from_file(content: Mapping[str, Any], place: Place) -> KeyValueParams:
    """Read parameters of a key-value store from plain data.

    Raises:
        InvalidInput: a field is unknown, or a value has a wrong type.
    """
    unknown = set(content) - {field.name for field in fields(KeyValueParams)}
    if unknown:
        raise InvalidInput(
            f"{place}: unknown field {sorted(unknown)[0]!r}; TorchRec's KeyValueParams have none of that name"
        )
    try:
        return msgspec.convert(content, KeyValueParams)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{place}: {error}") from None


def member(kind: type[E], name: str | None, place: Place) -> E | None:
    """The member of an enumeration by name; None if the name is None.

    Raises:
        InvalidInput: there is no such member.
    """
    if name is None:
        return None
    if name not in kind.__members__:
        raise InvalidInput(f"{place}: must be one of {', '.join(kind.__members__)}, got {name!r}")
    return kind[name]


FORMAT = 1


class _ShardFile(msgspec.Struct, forbid_unknown_fields=True):
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    placement: str


class _TableFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    sharding_type: str
    compute_kernel: str
    ranks: list[int] | None = None
    shards: list[_ShardFile] | None = None
    cache_params: CacheFile | None = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: str | None = None
    output_dtype: str | None = None
    key_value_params: dict[str, Any] | None = None


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    sharding_plan: dict[str, Any]
    context_hash: str | None = None


@dataclass(frozen=True)
class SavedPlan:
    """The content of a plan file.

    Attributes:
        plan: the sharding plan.
        context_hash: hash of the planner's inputs; None if the file has none.
    """

    plan: ShardingPlan
    context_hash: str | None


def save_sharding_plan(plan: ShardingPlan, path: str | Path, context_hash: str | None = None) -> None:
    """Write a sharding plan as JSON, atomically.

    Args:
        plan: a sharding plan of any planner.
        path: the file.
        context_hash: `hash_planner_context_inputs_str()` of the planner; a planner that loads the plan compares it with its own hash.

    Raises:
        InvalidInput: the plan holds objects that no file can hold: statistics, or an object of a user's class.
    """
    modules = {
        module: {
            name: _table_to_file(f"{module}.{name}", cast(ParameterSharding, table))
            for name, table in cast(EmbeddingModuleShardingPlan, of_module).items()
        }
        for module, of_module in plan.plan.items()
    }
    content = msgspec.to_builtins(_PlanFile(FORMAT, modules, context_hash))
    write_atomically(path, dump_document(content, Path(path).with_suffix(".json")))


def load_sharding_plan(path: str | Path, model: nn.Module | None = None) -> ShardingPlan:
    """Read a sharding plan that `save_sharding_plan` or `shardwright plan --export torchrec` wrote.

    Args:
        path: the file.
        model: the model. A plan that was exported knows no modules: its tables are found in the model by their names. With None, they are
            left under one module without a name.

    Raises:
        InvalidInput: the file cannot be read, is of another format version, or breaks a rule; the message names file and field.
        InvalidPlan: the tables of the model are not those of an exported plan.
    """
    plan = load_saved_plan(path).plan
    return plan if model is None or list(plan.plan) != [""] else _in_model(plan, model, str(path))


def _in_model(plan: ShardingPlan, model: nn.Module, where: str) -> ShardingPlan:
    """The plan with each table under the module that holds it; tables of one name in several modules have the module's path as a prefix."""
    exported = cast(EmbeddingModuleShardingPlan, plan.plan[""])
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    waiting = set(exported)
    for table in shardable_tables(model, get_default_sharders(), "cuda"):
        name = table.name if table.name in exported else f"{table.path}.{table.name}"
        if name not in exported:
            raise InvalidPlan(
                f"{where}: the model's table '{table.path}.{table.name}' is not in this plan; plan this model"
            )
        modules.setdefault(table.path, EmbeddingModuleShardingPlan())[table.name] = exported[name]
        waiting.discard(name)
    if waiting:
        raise InvalidPlan(f"{where}: the model has no table {some_of(sorted(waiting))}; plan this model")
    return ShardingPlan(dict(modules))


def load_saved_plan(path: str | Path) -> SavedPlan:
    """Read a saved sharding plan and the hash that was saved with it."""
    document = parse_document(path, "sharding plan file")
    place = Place(str(path))
    if not isinstance(document, dict) or "sharding_plan" not in document:
        raise InvalidInput(f"{path}: the field 'sharding_plan' is missing; name a file written by save_sharding_plan")
    check_format(document, place, "sharding plan file", FORMAT)
    content = convert(document, _PlanFile, place)
    modules = {
        module: _module_from_file(tables, place.at(f"sharding_plan.{module}"))
        for module, tables in content.sharding_plan.items()
    }
    return SavedPlan(ShardingPlan(modules), content.context_hash)


def _module_from_file(tables: object, place: Place) -> EmbeddingModuleShardingPlan:
    if not isinstance(tables, dict):
        raise InvalidInput(f"{place}: must map names of tables to their sharding")
    converted = {name: (convert(table, _TableFile, place.at(name)), place.at(name)) for name, table in tables.items()}
    return EmbeddingModuleShardingPlan({name: _table_from_file(table, at) for name, (table, at) in converted.items()})


def _table_to_file(name: str, table: ParameterSharding) -> _TableFile:
    shards = None
    if table.sharding_spec is not None:
        if any(shard.placement is None for shard in table.sharding_spec.shards):
            raise InvalidInput(f"{name}: a shard has no placement; save a plan whose shards all lie on ranks")
        shards = [
            _ShardFile(tuple(shard.shard_offsets), tuple(shard.shard_sizes), str(shard.placement))
            for shard in table.sharding_spec.shards
        ]
    return _TableFile(
        table.sharding_type,
        table.compute_kernel,
        table.ranks,
        shards,
        cache_to_file(name, table.cache_params) if table.cache_params else None,
        table.enforce_hbm,
        table.stochastic_rounding,
        table.bounds_check_mode.name if table.bounds_check_mode is not None else None,
        table.output_dtype.name if table.output_dtype is not None else None,
        store_to_file(name, table.key_value_params) if table.key_value_params is not None else None,
    )


def _table_from_file(table: _TableFile, place: Place) -> ParameterSharding:
    if table.sharding_type not in {kind.value for kind in ShardingType}:
        raise InvalidInput(
            f"{place}: unknown sharding_type {table.sharding_type!r}; known are {', '.join(k.value for k in ShardingType)}"
        )
    spec = None
    if table.shards is not None:
        spec = EnumerableShardingSpec(
            [_metadata(shard, place.at(f"shards[{i}]")) for i, shard in enumerate(table.shards)]
        )
    elif table.sharding_type != ShardingType.DATA_PARALLEL.value:
        raise InvalidInput(f"{place}: shards is missing; only data_parallel tables have none")
    return ParameterSharding(
        table.sharding_type,
        table.compute_kernel,
        table.ranks,
        spec,
        cache_from_file(table.cache_params, place.at("cache_params")) if table.cache_params else None,
        table.enforce_hbm,
        table.stochastic_rounding,
        member(BoundsCheckMode, table.bounds_check_mode, place.at("bounds_check_mode")),
        member(DataType, table.output_dtype, place.at("output_dtype")),
        store_from_file(table.key_value_params, place.at("key_value_params"))
        if table.key_value_params is not None
        else None,
    )


def _metadata(shard: _ShardFile, place: Place) -> ShardMetadata:
    try:
        return ShardMetadata(list(shard.offsets), list(shard.sizes), shard.placement)
    except (ValueError, RuntimeError) as error:
        raise InvalidInput(f"{place}: {error}; a placement is written like rank:0/cuda:0") from None
