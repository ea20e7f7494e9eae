"""Convert a sharding plan to TorchRec's sharding options, which its callbacks, statistics and plan loaders use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.types import Perf, ShardingOption, Storage
from torchrec.distributed.planner.types import Shard as TorchRecShard
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from shardwright.cost.model import CostModel
from shardwright.cost.score import served_bytes
from shardwright.integrations.torchrec.conversion import shard_of
from shardwright.integrations.torchrec.moved import kept_by
from shardwright.integrations.torchrec.off_device import OFF_DEVICE
from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem
from shardwright.sharding.memory import buffer_bytes, gradient_bytes, optimizer_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work

_NOTHING = (Storage(hbm=0, ddr=0), Perf(fwd_compute=0, fwd_comms=0, bwd_compute=0, bwd_comms=0))
_CHOICES = (
    "sharding_type", "compute_kernel", "cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype",
    "key_value_params",
)  # fmt: skip


def sharding_options(plan: ShardingPlan, problem: TorchRecProblem, cost_model: CostModel) -> list[ShardingOption]:
    """The sharding option that a plan chose for each table; its shards have a rank, storage and times.

    Storage is by our memory account. Times are those of the shard alone on its device; a device's fused kernel takes less than their
    sum. The forward pass includes the time to fetch rows from host memory or SSD.
    """
    tables = {name: plan.plan[place.path][place.name] for name, place in problem.places.items()}
    blocks = {name: _blocks(name, table, problem) for name, table in tables.items()}
    # By identity: the hash of a replica's shard reads all its devices, and each device has that shard.
    shards = list(
        {id(shard): shard for of_table in blocks.values() for shard in of_table if shard is not None}.values()
    )
    works = [shard_work(problem.task, shard) for shard in shards]
    perf = _perf(works, problem, cost_model)
    loads = {
        id(shard): _load(shard, work, times, tables[shard.table], problem)
        for shard, work, times in zip(shards, works, perf, strict=True)
    }
    return [
        _option(place, tables[name], _shards(place, tables[name], of_table), problem)
        for name, place in problem.places.items()
        if (of_table := [loads[id(shard)] if shard else _NOTHING for shard in blocks[name]])
    ]


def unplaced_options(problem: TorchRecProblem, cost_model: CostModel) -> list[ShardingOption]:
    """A sharding option for each table of a problem without a plan: the whole table on rank -1, with its first type and kernel."""
    tables = problem.task.tables
    wholes = [Shard.whole(table, 0) for table in tables]
    works = [shard_work(problem.task, whole) for whole in wholes]
    options = []
    times = _perf(works, problem, cost_model)
    for place, whole, work, perf in zip(problem.places.values(), wholes, works, times, strict=True):
        kind, kernels = next(iter(place.kernels.items()))
        table = ParameterSharding(kind, kernels[0])
        extent = [int(length) for length in place.table.tensor.shape]
        shard = TorchRecShard(extent, [0, 0], *_load(whole, work, perf, table, problem), -1)
        options.append(_option(place, table, [shard], problem))
    return options


def _blocks(name: str, table: ParameterSharding, problem: TorchRecProblem) -> list[Shard | None]:
    """The block of each of TorchRec's shards; None for an empty one."""
    if table.sharding_spec is None:
        everyone = range(problem.task.topology.devices)
        return [Shard.whole(problem.task.table_by_name[name], *everyone)] * len(everyone)
    unit = problem.places[name].unit
    return [shard_of(name, shard, unit) if min(shard.shard_sizes) > 0 else None for shard in table.sharding_spec.shards]


def _perf(works: Sequence[ShardWork], problem: TorchRecProblem, cost_model: CostModel) -> list[Perf]:
    """Times of each shard alone, without the cost of a kernel launch."""
    if not works:
        return []
    pricing, latents = cost_model.pricing, cost_model.encode(works)
    launch = pricing.price(np.zeros((1, latents.shape[1])))
    kernels = np.maximum(pricing.price(latents) - launch, 0.0)
    topology = problem.task.topology
    slowest = topology.bandwidth_of("all_to_all")[topology.hosts > 1]
    away = (topology.devices - 1) / topology.devices / slowest * 1e3
    result = []
    for work, (forward, backward) in zip(works, kernels.tolist(), strict=True):
        values, ids = served_bytes(problem.task, work)
        result.append(
            Perf(fwd_compute=forward, fwd_comms=(values + ids) * away, bwd_compute=backward, bwd_comms=values * away)
        )
    return result


def _load(
    shard: Shard, work: ShardWork, times: Perf, table: ParameterSharding, problem: TorchRecProblem
) -> tuple[Storage, Perf]:
    """Storage and times of a shard. If its kernel keeps rows off the device, its device cache and the time to fetch rows count."""
    held = work.weight_bytes + optimizer_bytes(problem.task.optimizer, work.rows, work.dim)
    buffers = buffer_bytes(work, problem.task.exchange.batches) + gradient_bytes(problem.task, work, len(shard.devices))
    if problem.compute_device == "cpu":
        return Storage(hbm=0, ddr=held + buffers), times
    if table.compute_kernel not in OFF_DEVICE:
        return Storage(hbm=held + buffers, ddr=0), times
    kept = kept_by(problem, shard.table, table, work.rows * problem.places[shard.table].unit, work.dim)
    return Storage(kept.cache + buffers, kept.host, kept.ssd), replace(times, fwd_compute=times.fwd_compute + kept.ms)


def extents_of(
    table: ParameterSharding, size: Sequence[int], ranks: Iterable[int]
) -> list[tuple[list[int], list[int], int]]:
    """Size, offset and rank of each shard; replicas have the size of the table and lie on these ranks."""
    if table.sharding_spec is None:
        return [(list(size), [0, 0], rank) for rank in ranks]
    shards = table.sharding_spec.shards
    return [(list(shard.shard_sizes), list(shard.shard_offsets), shard.placement.rank()) for shard in shards]


def _shards(place: TablePlace, table: ParameterSharding, loads: Sequence[tuple[Storage, Perf]]) -> list[TorchRecShard]:
    extents = extents_of(table, place.table.tensor.shape, range(len(loads)))
    return [
        TorchRecShard(extent, offset, storage, perf, rank)
        for (extent, offset, rank), (storage, perf) in zip(extents, loads, strict=True)
    ]


def _option(
    place: TablePlace, table: ParameterSharding, shards: list[TorchRecShard], problem: TorchRecProblem
) -> ShardingOption:
    shardable, given = place.table, place.given
    return ShardingOption(
        name=place.name,
        tensor=shardable.tensor,
        module=(place.path, shardable.module),
        input_lengths=list(given.pooling_factors) if given else [POOLING_FACTOR],
        batch_size=problem.batch_size,
        shards=shards,
        dependency=shardable.tower,
        is_pooled=shardable.pooled,
        feature_names=list(given.feature_names) if given and given.feature_names else None,
        **choices_of(table),
    )


def choices_of(table: ParameterSharding) -> dict[str, Any]:
    """The arguments of a `ShardingOption` that describe the sharding of a table."""
    by = get_partition_by_type(table.sharding_type)
    return {"partition_by": by, **{name: getattr(table, name) for name in _CHOICES}}
