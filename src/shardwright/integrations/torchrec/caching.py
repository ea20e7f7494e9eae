"""Choose which tables keep their rows in host memory, and how much of each table a cache in device memory holds.

A table with kernel `fused_uvm_caching` lies in host memory. A cache of c × its rows lies in device memory; lookups of other rows cross
the link between the two. The cache keeps the rows that are looked up most often, so the expected miss rate is the share of accesses
beyond the hottest c × rows rows: 1 − profile(c × rows). Over all tables, the expected time for missed rows

    Σ lookups × (1 − profile(c × rows)) × bytes of a row / bandwidth    subject to    Σ c × bytes of the table <= device memory

is minimal if the next row of every cache would save the same time per byte. Profiles are concave, so taking their segments in order of
density is exact. A table whose segments are all taken needs no cache and stays in device memory. In every other table, each lookup takes
a fixed extra time to find its row in the cache (`FOUND_MS`).

A load factor that the user names, in constraints or else in the sharder's `fused_params`, is kept. If statistics come with it
(`CacheParams.stats`), it is the least load factor instead, as for TorchRec's `EmbeddingOffloadScaleupProposer`, and their miss rate
replaces the profile's. If that miss rate is not convex, its lower convex hull counts. A table that may leave the devices for a
key-value store leaves as a whole.

Memory account: in device memory, a cached table takes c of its weights and optimizer state, and FBGEMM's notes: 4 bytes for each row and 16
for each cached row. All weights and state lie in host memory. A cache is at least as large a part of its table as device memory is of host
memory, so that tables that fit the devices also fit the hosts. With `prefetch_pipeline`, rows of the next batch come while a step still
needs its own: so a cache holds at least the expected distinct rows of two batches.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan

from shardwright.arrays import Floats
from shardwright.errors import some_of
from shardwright.integrations.torchrec.conversion import KernelChoice
from shardwright.integrations.torchrec.off_device import CACHED, FOUND_MS, OFF_DEVICE, STORES, bandwidth_of
from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem
from shardwright.sharding.memory import buffer_bytes, optimizer_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.access import upper_hull
from shardwright.task.table import Table
from shardwright.task.task import Task

_ALMOST_ALL = 0.95  # TorchRec demands load factors below 1; nearer to it a cache saves next to nothing
_NOTED_A_ROW, _NOTED_A_SLOT = 4, 16  # bytes of notes: for each row its table; for each slot its row and time of use
_STEPS = 33  # number of load factors at which a user's miss rates are read
_ONE_DEVICE = 0.8  # share of a device's memory that a table may take if it lies whole on one device


@dataclass(frozen=True)
class _Cachable:
    """A table that may be cached.

    Attributes:
        name: name of the table.
        held: bytes of device memory that a cache of the whole table would take, without `fixed`.
        fixed: bytes that a cache of any size takes.
        floor: least share of the rows that the cache may hold.
        ceiling: largest share that fits.
        fixed_share: whether a cache holds `floor`, and neither more nor less.
        points: `(k,)` shares of the rows at which the access density changes, ascending, from 0 to 1.
        missed: `(k,)` ms per step for missed rows and for finding the cached ones, with each of these shares cached; convex.
    """

    name: str
    held: int
    fixed: int
    floor: float
    ceiling: float
    fixed_share: bool
    points: Floats
    missed: Floats


def expected_miss_rate(table: Table, load_factor: float) -> float:
    """Share of the lookups of a table that a cache of its hottest rows misses.

    Args:
        table: the table, with its access profile.
        load_factor: share of the rows that the cache holds, from 0 to 1.
    """
    return 1.0 - table.access.share_of(0, load_factor * table.rows)


def demanded(problem: TorchRecProblem, *, whole: bool = False) -> dict[str, KernelChoice]:
    """Kernels of the tables that may not lie in device memory. Caches have the least size unless the constraints name a size.

    Args:
        problem: the problem.
        whole: put each table of a key-value store on one rank if each of its shards would take a cache.
    """
    result = {}
    for name, place in problem.places.items():
        kernels = [
            kernel for kind, kernels in place.kernels.items() if kind != "data_parallel" for kernel in kernels[:1]
        ]
        if kernels and all(kernel in OFF_DEVICE for kernel in kernels):
            alone = whole and _takes_one_cache(problem, name, kernels[0])
            result[name] = replace(_choice(problem, name, kernels[0]), whole=alone)
    return result


def cached_within(problem: TorchRecProblem, fill: float, *, whole: bool = False) -> dict[str, KernelChoice]:
    """Choose caches so that the tables take at most a part of the devices' memory, with the least expected time for missed rows.

    Args:
        problem: the problem.
        fill: part of the memory of all devices together that weights, optimizer state, caches and buffers may take.
        whole: as in `demanded`.

    Returns:
        Kernels of the tables that do not stay whole in device memory.
    """
    task, forced = problem.task, demanded(problem, whole=whole)
    budget = fill * sum(task.topology.memory_bytes) - sum(
        buffer_bytes(shard_work(task, Shard.whole(table, 0)), task.exchange.batches) for table in task.tables
    )
    free: list[_Cachable] = []
    for table in task.tables:
        place, held = problem.places[table.name], held_bytes(task, table)
        choice = forced.get(table.name)
        if choice and (choice.load_factor is None or _fixed(place)):
            budget -= held * device_share(problem, table, choice)
        elif choice or may_leave(place):
            free.append(_cachable(problem, table, held, forced=choice is not None))
            budget -= free[-1].fixed
        else:
            budget -= held
    shares = _shares(free, budget)
    return {**forced, **{name: _off_device(problem, name, share, whole) for name, share in shares.items()}}


def missed_rows(problem: TorchRecProblem, table: Table, share: float) -> float:
    """Expected rows that all ranks together fetch in a step with a share of the table cached. The user's statistics take precedence."""
    known = problem.places[table.name].cache.stats
    if known is not None:
        return float(known.expected_lookups) * float(known.expected_miss_rate(min(share, 1.0)))
    return table.pooling * problem.task.batch_size * expected_miss_rate(table, share)


def device_share(problem: TorchRecProblem, table: Table, choice: KernelChoice | None) -> float:
    """Device memory of a table as a share of the table: 1 without a choice, else that of its caches. A store has one per shard."""
    if choice is None:
        return 1.0
    if choice.kernel in CACHED:
        held = held_bytes(problem.task, table)
        return cache_bytes(table.rows, held, choice.load_factor or 0.0) / held
    if choice.kernel not in STORES:
        return 0.0
    limits = problem.task.constraints.of(table.name)
    place = problem.places[table.name]
    cut = not choice.whole and set(limits.sharding_types or ()) != {"table_wise"}
    shards = problem.task.topology.devices if cut else 1
    return shards * place.store_cache_bytes / (table.weight_bytes * place.unit)


def cached_share(problem: TorchRecProblem, table: Table, choice: KernelChoice) -> float:
    """Share of a table's rows that caches hold."""
    return min(device_share(problem, table, choice), 1.0) if choice.kernel in STORES else choice.load_factor or 0.0


def cache_bytes(rows: int, held: int, load_factor: float) -> float:
    """Device memory of a cache: its rows with their state, and FBGEMM's notes on each row of the table and each slot of the cache.

    Args:
        rows: rows of the table or shard.
        held: bytes of its weights and optimizer state.
        load_factor: share of the rows that the cache holds.
    """
    return load_factor * (held + _NOTED_A_SLOT * rows) + _NOTED_A_ROW * rows


def least_cache(problem: TorchRecProblem) -> float:
    """Least load factor of a cache: the largest ratio of device memory to host memory of any rank."""
    ratios = [
        own / max(device.storage.ddr, 1)
        for own, device in zip(problem.task.topology.memory_bytes, problem.reserved.devices, strict=True)
    ]
    return float(min(max(ratios), _ALMOST_ALL))


def _least_cache(problem: TorchRecProblem, name: str) -> float:
    """Least load factor of a table's cache: that of all caches; with a prefetching pipeline, at least the rows of two batches."""
    two_batches = _of_two_batches(problem, name) if problem.places[name].cache.prefetch_pipeline else 0.0
    return min(max(least_cache(problem), two_batches), _ALMOST_ALL)


def _of_two_batches(problem: TorchRecProblem, name: str) -> float:
    """Expected share of a table's rows that two batches look up."""
    table, known = problem.task.table_by_name[name], problem.places[name].cache.stats
    lookups = 2 * table.pooling * problem.task.batch_size
    distinct = 2 * float(known.expected_lookups) if known is not None else table.access.distinct_rows(lookups)
    return distinct / table.rows


def warn_of_small_caches(problem: TorchRecProblem, plan: ShardingPlan) -> None:
    """Warn once of cached tables whose named load factor is too small for a prefetching pipeline."""
    small = []
    for name, place in problem.places.items():
        cached = plan.plan[place.path][place.name].compute_kernel in CACHED
        if cached and place.cache.prefetch_pipeline and _fixed(place):
            needed, named = _of_two_batches(problem, name), _named(place) or 0.0
            if named < needed:
                small.append(
                    f"'{name}' has cache_load_factor {named:g}, two batches are expected to look up {needed:.2g} of its rows"
                )
    if small:
        warnings.warn(
            f"prefetch_pipeline holds two batches in the caches: table {some_of(small, 3, '; table ')}; raise it or leave it out",
            stacklevel=4,
        )


def held_bytes(task: Task, table: Table) -> int:
    """Bytes of a table's weights and optimizer state."""
    return table.weight_bytes + optimizer_bytes(task.optimizer, table.rows, table.dim)


def _shares(free: list[_Cachable], budget: float) -> dict[str, float]:
    """Load factor of each table that is not held whole. Segments that save most per byte are taken first, until memory is full."""
    share = {table.name: table.floor for table in free}
    left = budget - sum(table.held * table.floor for table in free)
    segments = []
    whole_only = {table.name for table in free if table.fixed_share}
    for table in free:
        cuts = np.unique(np.concatenate([[table.floor, table.ceiling], [] if table.fixed_share else table.points]))
        cuts = cuts[(cuts >= table.floor) & (cuts <= table.ceiling)]
        saved = -np.diff(np.interp(cuts, table.points, table.missed))
        sizes = np.diff(cuts) * table.held
        segments += [
            (-gain / size, order, table.name, start, stop, size)
            for order, (gain, size, start, stop) in enumerate(zip(saved, sizes, cuts, cuts[1:], strict=False))
            if size > 0
        ]
    for _, _, name, start, stop, size in sorted(segments):
        if left <= 0:
            break
        if name in whole_only and size > left:
            continue
        share[name] = start + (stop - start) * min(1.0, left / size)
        left -= size
    most = {name: 1.0 if name in whole_only else _ALMOST_ALL for name in share}
    return {name: float(min(part, most[name])) for name, part in share.items() if part < 1.0}


def _cachable(problem: TorchRecProblem, table: Table, held: int, *, forced: bool) -> _Cachable:
    memory = problem.task.topology.memory_bytes
    limits = problem.task.constraints.of(table.name)
    place = problem.places[table.name]
    whole = not ({"column_wise", "row_wise", "table_row_wise", "grid"} & set(limits.sharding_types or ()))
    kernel = _leaving(place)
    noted = table.rows if kernel in CACHED else 0
    room = max(_ONE_DEVICE * max(memory) - _NOTED_A_ROW * noted, 0.0) if whole else np.inf
    ceiling = min(1.0, room / (held + _NOTED_A_SLOT * noted))
    fixed = kernel in CACHED and _fixed(place)
    least = max(0.0 if fixed else _least_cache(problem, table.name), _named(place) or 0.0) if kernel in CACHED else 0.0
    if fixed and ceiling < 1.0:
        ceiling = least
    points = np.linspace(0.0, 1.0, _STEPS) if place.cache.stats else table.access.rows / table.access.rows[-1]
    slow = table.weight_bytes / table.rows / bandwidth_of(kernel, problem.topology)
    missed = np.array([missed_rows(problem, table, share) for share in points]) * slow
    if kernel in CACHED:
        missed += np.where(points < 1.0, table.pooling * problem.task.batch_size * FOUND_MS, 0.0)
    kept = upper_hull(points, -missed)  # the lower hull of a falling curve
    return _Cachable(
        table.name,
        held + _NOTED_A_SLOT * noted,
        _NOTED_A_ROW * noted,
        min(least, ceiling),
        min(ceiling, _ALMOST_ALL) if forced else ceiling,
        fixed,
        points[kept],
        missed[kept],
    )


def may_leave(place: TablePlace) -> bool:
    """Whether a table may lie off device memory."""
    return any(kernel in (*CACHED, *STORES) for kernels in place.kernels.values() for kernel in kernels)


def _leaving(place: TablePlace) -> str:
    """The fastest kernel that keeps the rows off device memory: one with a cache if there is one."""
    kernels = [kernel for some in place.kernels.values() for kernel in some]
    return str(next(kernel for kernel in (*CACHED, *STORES) if kernel in kernels))


def _off_device(problem: TorchRecProblem, name: str, share: float, whole: bool) -> KernelChoice:
    kernel = _leaving(problem.places[name])
    return KernelChoice(kernel, share if kernel in CACHED else None, whole and _takes_one_cache(problem, name, kernel))


def _takes_one_cache(problem: TorchRecProblem, name: str, kernel: str) -> bool:
    """Whether a table in a store may lie whole on one rank, where it takes one cache instead of one per shard."""
    may = problem.task.constraints.of(name).allows("table_wise")
    return kernel in STORES and may and problem.places[name].store_cache_bytes > 0


def _named(place: TablePlace) -> float | None:
    """The load factor that the user names, if any.

    Raises:
        PlannerError: one of the constraints is not between 0 and 1, or the sharder's not above 0, as TorchRec demands of cached tables.
    """
    named: float | None = place.cache.load_factor
    constrained = (
        place.given is not None
        and place.given.cache_params is not None
        and place.given.cache_params.load_factor is not None
    )
    if named is not None and not 0 < named < (1 if constrained else math.inf):
        below = " and below 1" if constrained else ""
        raise PlannerError(
            f"table '{place.fqn}' has cache_load_factor {named}, must be above 0{below}; leave it out to have it chosen",
            PlannerErrorType.INVALID_COMPUTE_KERNEL,
        )
    return named


def _fixed(place: TablePlace) -> bool:
    return _named(place) is not None and place.cache.stats is None


def _choice(problem: TorchRecProblem, name: str, kernel: str) -> KernelChoice:
    if kernel not in CACHED:
        return KernelChoice(kernel)
    named = _named(problem.places[name])
    return KernelChoice(kernel, named if named is not None else _least_cache(problem, name))
