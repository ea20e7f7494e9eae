"""Cache parameters of tables as they stand in sharding plan files."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import msgspec
from torchrec.distributed.types import CacheAlgorithm, CacheParams, MultiPassPrefetchConfig
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
