"""Parameters of caches and key-value stores of tables as they stand in sharding plan files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import msgspec
from torchrec.distributed.types import CacheAlgorithm, CacheParams, KeyValueParams, MultiPassPrefetchConfig
from torchrec.modules.embedding_configs import DataType

from shardwright.errors import InvalidInput
from shardwright.schema import Place

E = TypeVar("E", bound=Enum)


class CacheFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """TorchRec's `CacheParams`; enumerations by the names of their members."""

    algorithm: str | None = None
    load_factor: float | None = None
    reserved_memory: float | None = None
    precision: str | None = None
    prefetch_pipeline: bool | None = None
    multipass_prefetch: tuple[int, int] | None = None


def cache_to_file(name: str, cache: CacheParams) -> CacheFile:
    """Cache parameters as plain data.

    Raises:
        InvalidInput: they carry a statistics object.
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
    """Cache parameters from plain data.

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
    """Parameters of a key-value store as plain data, without those that are None.

    Raises:
        InvalidInput: they carry an object of a class of one's own, such as a reporter of statistics.
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
    """Parameters of a key-value store from plain data.

    Raises:
        InvalidInput: a field is unknown, or a value of a wrong type.
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
    """The member of an enumeration by name; None for none.

    Raises:
        InvalidInput: there is no such member.
    """
    if name is None:
        return None
    if name not in kind.__members__:
        raise InvalidInput(f"{place}: {name!r} is none of {', '.join(kind.__members__)}")
    return kind[name]
