"""Convert plans to TorchRec's sharding plans, and back.

FBGEMM runs the unpooled tables of one call in one width only, and TorchRec runs all column-wise tables of a module on a rank in one
call. If a plan cuts the sequence tables of a module into blocks of several widths, each block is therefore cut into blocks as wide as
the widths' greatest common divisor, on the same rank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise

from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    ShardMetadata,
)

from shardwright.errors import InvalidPlan
from shardwright.integrations.torchrec.off_device import CACHED, bucket_cuts
from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Pattern, pattern_of
from shardwright.sharding.shard import Shard

_IN_COLUMNS = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)
_CUT_ALIKE = {
    ShardingType.TABLE_WISE.value: _IN_COLUMNS,
    ShardingType.TABLE_ROW_WISE.value: (ShardingType.GRID_SHARD.value,),
}
"""Sharding types of one column block, and those that cut several of them alike."""


def patterns_of(plan: Plan, problem: TorchRecProblem) -> dict[str, Pattern]:
    """The sharding of each table in TorchRec's terms.

    Raises:
        InvalidPlan: TorchRec cannot run the blocks of a table, or its constraints forbid them; the message names the table.
    """
    tables, topology = problem.task.table_by_name, problem.task.topology
    patterns = {
        name: pattern_of(plan.by_table[name], tables[name], topology, place.types)
        for name, place in problem.places.items()
    }
    calls: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, pattern in patterns.items():
        if pattern.kind in _IN_COLUMNS and not tables[name].pooled:
            calls[problem.places[name].path, pattern.kind].append(name)
    for names in calls.values():
        width = math.gcd(*(stop - start for name in names for _, (start, stop), _ in patterns[name].blocks))
        patterns |= {name: _in_width(patterns[name], width) for name in names}
    return patterns


def _in_width(pattern: Pattern, width: int) -> Pattern:
    return replace(
        pattern,
        blocks=tuple(
            (rows, (first, first + width), rank)
            for rows, (start, stop), rank in pattern.blocks
            for first in range(start, stop, width)
        ),
    )


@dataclass(frozen=True)
class KernelChoice:
    """The compute kernel of a table.

    Attributes:
        kernel: TorchRec's name of the kernel.
        load_factor: share of the rows that a cache in device memory holds; None without a cache.
        whole: whether the table must lie on one rank, where it takes the cache of one shard.
    """

    kernel: str
    load_factor: float | None = None
    whole: bool = False


def sharding_plan_of(
    plan: Plan, problem: TorchRecProblem, kernels: Mapping[str, KernelChoice] | None = None
) -> ShardingPlan:
    """Convert a plan to TorchRec's sharding plan.

    Row blocks become those that TorchRec makes (`pattern_of`), which differ from the plan's by rounding. Those of zero-collision-hashing
    tables are whole buckets.

    Args:
        plan: a plan of the problem's task.
        problem: the problem, with the places of the tables in the model.
        kernels: compute kernel by table of the task; a table without one gets the fastest that its sharding type allows.

    Raises:
        InvalidPlan: TorchRec cannot run the blocks of a table, or a table is missing or sharded as its constraints forbid; the message
            names the table.
    """
    missing = [name for name in problem.places if not plan.by_table.get(name)]
    if missing:
        raise InvalidPlan(
            f"tables {', '.join(missing)} are missing from the plan; every table must be sharded: plan anew"
        )
    modules: dict[str, EmbeddingModuleShardingPlan] = {}
    per_host, ranks = problem.topology.local_world_size, range(problem.task.topology.devices)
    where = [str(placement(problem.compute_device, rank, per_host)) for rank in ranks]  # as TorchRec writes placements
    patterns = _in_fewer_types(patterns_of(plan, problem), problem, kernels or {})
    for name, place in problem.places.items():
        pattern = patterns[name]
        chosen = (kernels or {}).get(name) or KernelChoice(place.kernels[pattern.kind][0])
        of_module = modules.setdefault(place.path, EmbeddingModuleShardingPlan())
        of_module[place.name] = _parameter_sharding(pattern, place, chosen, where, problem)
    return ShardingPlan(dict(modules))


def _in_fewer_types(
    patterns: Mapping[str, Pattern], problem: TorchRecProblem, kernels: Mapping[str, KernelChoice]
) -> dict[str, Pattern]:
    """Give tables of one column block a sharding type that their module already uses: each further type calls its own collectives."""
    pooled = {name for name in patterns if problem.task.table_by_name[name].pooled}
    kinds = {(problem.places[name].path, pattern.kind) for name, pattern in patterns.items() if name in pooled}
    fewer = dict(patterns)
    for name in pooled:
        place, own = problem.places[name], patterns[name].kind
        for kind in _CUT_ALIKE.get(own, ()):
            runs = name in kernels or place.kernels.get(kind, ())[:1] == place.kernels.get(own, ())[:1]
            fits = name not in kernels or kernels[name].kernel in place.kernels.get(kind, ())
            if (place.path, kind) in kinds and runs and fits:
                fewer[name] = replace(fewer[name], kind=kind)
    return fewer


def plan_of(sharding_plan: ShardingPlan, problem: TorchRecProblem) -> Plan:
    """Convert TorchRec's sharding plan to a plan of the problem's task. The plan is neither checked against memory nor scored.

    Raises:
        InvalidPlan: a table is missing or unknown, or has no shards; the message names the table.
    """
    check_complete(sharding_plan, problem)
    shards: list[Shard] = []
    for name, place in problem.places.items():
        sharding = sharding_plan.plan[place.path][place.name]
        table = problem.task.table_by_name[name]
        if sharding.sharding_type == ShardingType.DATA_PARALLEL.value:
            shards.append(Shard.whole(table, *range(problem.task.topology.devices)))
            continue
        if sharding.sharding_spec is None:
            raise InvalidPlan(
                f"table '{place.fqn}' is sharded {sharding.sharding_type} but has no sharding_spec; plan anew"
            )
        shards += [
            shard_of(name, shard, place.unit) for shard in sharding.sharding_spec.shards if min(shard.shard_sizes) > 0
        ]
    return Plan(problem.task, shards, strategy="torchrec")


def check_complete(sharding_plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Check that a sharding plan shards every table of the problem and no others.

    Raises:
        InvalidPlan: tables are missing or unknown; the message names them.
    """
    planned = {(path, name) for path, of_module in sharding_plan.plan.items() for name in of_module}
    wanted = {(place.path, place.name) for place in problem.places.values()}
    if wanted - planned:
        raise InvalidPlan(
            f"tables {_fqns(wanted - planned)} are missing from the sharding plan; every table must be sharded: plan anew"
        )
    if planned - wanted:
        raise InvalidPlan(
            f"tables {_fqns(planned - wanted)} of the sharding plan are not in the model; plan this model anew"
        )


def runnable(plan: Plan, problem: TorchRecProblem) -> Plan:
    """The plan with the blocks that TorchRec makes: row blocks rounded as TorchRec does, column blocks of sequence tables in one width.

    Raises:
        InvalidPlan: TorchRec cannot run the blocks of a table.
    """
    shards: list[Shard] = []
    for name, pattern in patterns_of(plan, problem).items():
        blocks = [Shard(name, rows, columns, (rank,)) for rows, columns, rank in pattern.blocks if rows[0] < rows[1]]
        shards += blocks or plan.by_table[name]
    return replace(plan, shards=shards)


def _parameter_sharding(
    pattern: Pattern, place: TablePlace, chosen: KernelChoice, where: Sequence[str], problem: TorchRecProblem
) -> ParameterSharding:
    replicated = pattern.kind == ShardingType.DATA_PARALLEL.value
    if place.buckets is not None and pattern.kind == ShardingType.ROW_WISE.value:
        pattern = _in_buckets(pattern, place, place.buckets)
    unit = place.unit
    shards = [
        ShardMetadata([rows[0] * unit, columns[0]], [(rows[1] - rows[0]) * unit, columns[1] - columns[0]], where[rank])
        for rows, columns, rank in pattern.blocks
    ]
    ranks = list(range(problem.task.topology.devices)) if replicated else [rank for *_, rank in pattern.blocks]
    given = place.given
    return ParameterSharding(
        sharding_type=pattern.kind,
        compute_kernel=chosen.kernel,
        ranks=ranks,
        sharding_spec=None if replicated else EnumerableShardingSpec(shards),
        cache_params=cache_params_of(place, chosen),
        enforce_hbm=given.enforce_hbm if given else None,
        stochastic_rounding=given.stochastic_rounding if given else None,
        bounds_check_mode=given.bounds_check_mode if given else None,
        output_dtype=given.output_dtype if given else None,
        key_value_params=deepcopy(given.key_value_params) if given else None,
    )


def _in_buckets(pattern: Pattern, place: TablePlace, buckets: int) -> Pattern:
    """Align row blocks with whole buckets, because TorchRec finds a row's rank by its bucket."""
    cuts = bucket_cuts(place.rows // place.unit, buckets, len(pattern.blocks))
    aligned = [(rows, columns, rank) for rows, (_, columns, rank) in zip(pairwise(cuts), pattern.blocks, strict=True)]
    return replace(pattern, blocks=tuple(aligned))


def cache_params_of(place: TablePlace, chosen: KernelChoice) -> CacheParams | None:
    """The user's cache parameters, with the chosen load factor unless the kernel already gets it from them or from the sharder."""
    given = deepcopy(place.given.cache_params) if place.given else None
    if chosen.load_factor in (None, place.cache.load_factor) or chosen.kernel not in CACHED:
        return given
    return replace(given or CacheParams(), load_factor=chosen.load_factor)


def shard_of(name: str, metadata: ShardMetadata, unit: int) -> Shard:
    """Our block of a table's shard.

    Args:
        name: the table's name in the task.
        metadata: TorchRec's shard.
        unit: rows of the parameter per row of the task's table.

    Raises:
        InvalidPlan: the shard has no rank.
    """
    (row, column), (rows, columns) = metadata.shard_offsets, metadata.shard_sizes
    rank = metadata.placement.rank() if metadata.placement is not None else None
    if rank is None:
        raise InvalidPlan(f"table '{name}' has a shard without a rank; plan anew")
    return Shard(name, (row // unit, (row + rows) // unit), (column, column + columns), (rank,))


def _fqns(places: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"'{path}.{name}'" for path, name in places))
