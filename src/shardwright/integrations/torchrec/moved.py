"""Rows that a sharding plan keeps off device memory, and the bytes that a step fetches from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from shardwright.arrays import Floats
from shardwright.integrations.torchrec.caching import cache_bytes, missed_rows
from shardwright.integrations.torchrec.off_device import CACHED, KEY_VALUE, OFF_DEVICE, STORES, VIRTUAL, bandwidth_of
from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem
from shardwright.sharding.memory import optimizer_bytes
from shardwright.task.quantities import format_bytes
from shardwright.task.table import row_bytes


@dataclass(frozen=True)
class Moved:
    """The parts of tables that a sharding plan keeps off device memory, on all ranks together.

    Attributes:
        kernels: compute kernel of each table off device memory, by the table's name in the problem.
        host_bytes: weights and optimizer state in host memory.
        ssd_bytes: the same on SSD. Rows of virtual tables count in neither: they are created at their first lookup.
        cache_bytes: bytes of their caches in device memory.
        fetched_bytes: expected bytes of the rows that a step fetches from host memory and SSD.
        fetch_ms: expected ms that the slowest rank spends fetching in a step, at the bandwidths that the topology states.
    """

    kernels: Mapping[str, str]
    host_bytes: int
    ssd_bytes: int
    cache_bytes: int
    fetched_bytes: float
    fetch_ms: float

    def __str__(self) -> str:
        host, ssd, caches, fetched = map(
            format_bytes, (self.host_bytes, self.ssd_bytes, self.cache_bytes, round(self.fetched_bytes))
        )
        return (
            f"{len(self.kernels)} tables off device memory: {host} on hosts, {ssd} on SSDs, {caches} of caches on devices; "
            f"a step fetches {fetched}, which takes {self.fetch_ms:.3g} ms on the slowest rank"
        )


class Kept(NamedTuple):
    """The part of a shard off device memory.

    Attributes:
        host: bytes in host memory.
        ssd: bytes on SSD.
        cache: bytes of its cache in device memory.
        fetched: expected bytes that a step fetches.
        ms: expected ms to fetch them.
    """

    host: int = 0
    ssd: int = 0
    cache: int = 0
    fetched: float = 0.0
    ms: float = 0.0


def kept_by(problem: TorchRecProblem, name: str, sharding: ParameterSharding, rows: int, columns: int) -> Kept:
    """The part of a shard off device memory, for a table whose kernel keeps rows there.

    Args:
        problem: the problem.
        name: name of the table in the problem.
        sharding: how the table is sharded.
        rows: rows of the shard, counted in the parameter's rows.
        columns: columns of the shard.
    """
    if problem.compute_device == "cpu":
        return Kept()
    kernel, task, place = sharding.compute_kernel, problem.task, problem.places[name]
    table = task.table_by_name[name]
    row = row_bytes(table.dtype, columns)
    held = rows * row + optimizer_bytes(task.optimizer, rows, columns)
    if kernel in STORES:
        cache = place.store_cache_bytes
        share = min(cache / max(rows * row, 1), 1.0)
    else:
        share = _load_factor(sharding, place) if kernel in CACHED else 0.0
        cache = round(cache_bytes(rows, held, share)) if kernel in CACHED else 0
    fetched = missed_rows(problem, table, share) * rows / place.rows * row
    stored = 0 if kernel in VIRTUAL else held
    host, ssd = (0, stored) if kernel == KEY_VALUE else (stored, 0)
    return Kept(host, ssd, cache, fetched, fetched / bandwidth_of(kernel, problem.topology))


def _load_factor(sharding: ParameterSharding, place: TablePlace) -> float:
    """The load factor that the kernel gets: the plan's, else the sharder's, else the usual one."""
    planned = sharding.cache_params.load_factor if sharding.cache_params else None
    return float(next(factor for factor in (planned, place.cache.load_factor, UVM_CACHING_RATIO) if factor is not None))


def moved(plan: ShardingPlan, problem: TorchRecProblem) -> Moved:
    """Sum up the rows that a plan of a problem keeps off device memory."""
    kernels = {
        name: sharding.compute_kernel
        for name, place in problem.places.items()
        if (sharding := plan.plan[place.path][place.name]).compute_kernel in OFF_DEVICE
    }
    by_rank = kept_by_rank(plan, problem)
    host, ssd, cache, fetched, _ = by_rank.sum(axis=0)
    return Moved(kernels, int(host), int(ssd), int(cache), float(fetched), float(by_rank[:, -1].max()))


def kept_by_rank(plan: ShardingPlan, problem: TorchRecProblem) -> Floats:
    """`(ranks, 5)` the fields of `Kept`, summed over the shards of each rank."""
    by_rank = np.zeros((problem.task.topology.devices, len(Kept._fields)))
    for name, place in problem.places.items():
        sharding: ParameterSharding = plan.plan[place.path][place.name]
        if sharding.compute_kernel in OFF_DEVICE and sharding.sharding_spec is not None:
            for shard in sharding.sharding_spec.shards:
                if shard.placement is not None and min(shard.shard_sizes) > 0:
                    by_rank[shard.placement.rank()] += kept_by(problem, name, sharding, *shard.shard_sizes)
    return by_rank
