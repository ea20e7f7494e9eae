"""From a problem to a sharding plan: move tables to host memory if device memory is short, then search.

The searched task may differ from the problem's. A table whose cache holds c rows enters the search with its c hottest rows. Each expected
miss counts as several lookups: the ratio of device memory's speed to that of the link to the host or SSD, at most 64. A larger factor would
leave the same devices busiest, but fill them with ids. A search knows only the cached rows, so the time that sharding groups take to
synchronise tables in host memory is added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan

from shardwright.cost.synchronisation import all_reduce_ms_per_byte
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.integrations.torchrec.caching import (
    cached_share,
    cached_within,
    demanded,
    device_share,
    held_bytes,
    least_cache,
    may_leave,
    missed_rows,
)
from shardwright.integrations.torchrec.conversion import KernelChoice, runnable, sharding_plan_of
from shardwright.integrations.torchrec.moved import kept_by_rank
from shardwright.integrations.torchrec.off_device import CACHED, FOUND_MS, KEY_VALUE, VIRTUAL, bandwidth_of
from shardwright.integrations.torchrec.problem import TorchRecProblem
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.memory import buffer_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard, even_cuts
from shardwright.sharding.work import shard_work
from shardwright.task.access import AccessProfile
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Table
from shardwright.task.task import Task

_MOST_SLOWER = 64.0


def search_task(problem: TorchRecProblem, choices: Mapping[str, KernelChoice], *, spread: bool) -> Task:
    """The task to search for a problem, with the kernels chosen for its tables in host memory and on SSD.

    Args:
        problem: the problem.
        choices: kernels of the tables that do not lie in device memory.
        spread: let tables off the devices take the same share of device memory as of the host's memory or of the SSD, so that tables that
            fit the devices fit there.
    """
    task = problem.task
    if not choices:
        return task
    limits, tables = dict(task.constraints.tables), dict(task.table_by_name)
    for name, choice in choices.items():
        limits[name] = _off_device_limits(task.constraints.of(name), choice)
        tables[name] = _cached(problem, tables[name], choice, _least(problem, choice, spread))
    given = task.constraints
    constraints = Constraints(limits, given.colocate, given.apart)
    return replace(task, tables=list(tables.values()), constraints=constraints)


def _least(problem: TorchRecProblem, choice: KernelChoice, spread: bool) -> float:
    """Least share of a table that counts against device memory."""
    if choice.kernel in VIRTUAL or (choice.kernel == KEY_VALUE and not spread):
        return 0.0
    if not spread:
        return least_cache(problem)
    tier = "ssd" if choice.kernel == KEY_VALUE else "ddr"
    sizes = zip(problem.task.topology.memory_bytes, problem.reserved.devices, strict=True)
    return float(max(own / max(getattr(device.storage, tier), 1) for own, device in sizes))


def _cached(problem: TorchRecProblem, table: Table, choice: KernelChoice, least: float) -> Table:
    share, devices = device_share(problem, table, choice), problem.task.topology.devices
    rows = max(round(max(share, least) * problem.places[table.name].rows), min(table.rows, devices), 1)
    slower = min(problem.topology.hbm_mem_bw / bandwidth_of(choice.kernel, problem.topology), _MOST_SLOWER)
    lookups = table.pooling * problem.task.batch_size
    missed = missed_rows(problem, table, cached_share(problem, table, choice)) / lookups
    access = table.access.block(0, rows) if rows < table.rows else table.access
    if abs(access.total_rows - rows) > 0.5:
        access = AccessProfile.uniform(rows)
    finding = (
        FOUND_MS * problem.topology.hbm_mem_bw / (table.weight_bytes / table.rows) if choice.kernel in CACHED else 0.0
    )
    pooling = table.pooling * (1 + missed * max(slower - 1, 0) + finding) if table.pooled else table.pooling
    return replace(table, rows=rows, pooling=pooling, access=access)


def _off_device_limits(limits: TableConstraint, choice: KernelChoice) -> TableConstraint:
    """Forbid replicas: they are dense, in device memory. Forbid column blocks beside row blocks: each one's cache would note all rows."""
    if choice.whole:
        return replace(limits, sharding_types=("table_wise",))
    kinds = {kind for kind in limits.sharding_types or () if kind != "data_parallel"}
    if choice.kernel in CACHED and kinds & {"row_wise", "table_row_wise"}:
        kinds -= {"column_wise", "grid"}
    return replace(limits, sharding_types=tuple(sorted(kinds))) if kinds else limits


def _of_problem(plan: Plan, searched: Task, problem: TorchRecProblem) -> Plan:
    """Convert a plan of the searched task to one of the problem's task. Its costs and bound stay those of the search."""
    if searched is problem.task:
        return plan
    shards = [
        shard
        for table in searched.tables
        for shard in _enlarged(plan.by_table[table.name], problem.task.table_by_name[table.name].rows, table.rows)
    ]
    return replace(plan, task=problem.task, shards=tuple(shards))


def _enlarged(shards: list[Shard], rows: int, searched_rows: int) -> list[Shard]:
    """The same blocks for a table with more rows."""
    blocks = sorted({shard.rows for shard in shards})
    cuts = [0, rows] if blocks == [(0, searched_rows)] else even_cuts(rows, len(blocks))
    larger = dict(zip(blocks, pairwise(cuts), strict=True))
    return [replace(shard, rows=larger[shard.rows]) for shard in shards]


def with_host_sync(plan: Plan, problem: TorchRecProblem, choices: Mapping[str, KernelChoice]) -> Plan:
    """Add the all-reduce of rows in host memory to the plan's backward times, over the slower of link and bus.

    The bound stays valid: it lies below a step without the all-reduce. Fully sharded groups leave such tables alone.
    """
    task, groups = problem.task, problem.task.groups
    if groups is None or groups.fully_sharded or plan.cost is None:
        return plan
    bus = 2 * (groups.count - 1) / groups.count / problem.topology.hbm_to_ddr_mem_bw  # TorchRec's unit is bytes per ms
    each = max(all_reduce_ms_per_byte(groups.replica_shape, task.topology), bus) / groups.sync_interval
    added = [0.0] * task.topology.devices
    for name in choices:
        table = task.table_by_name[name]
        missing = (1.0 - cached_share(problem, table, choices[name])) * held_bytes(task, table)
        for shard in plan.by_table[name]:
            added[shard.devices[0]] += missing * shard.row_count * shard.dim / (table.rows * table.dim) * each
    devices = (
        replace(cost, backward_ms=cost.backward_ms + more) for cost, more in zip(plan.cost.devices, added, strict=True)
    )
    return replace(plan, cost=PlanCost(tuple(devices)))


_FILLS = (0.95, 0.85, 0.7, 0.5, 0.0)
"""Parts of all devices' memory that tables and caches may take. They are tried in turn, because full devices may not be packable."""


def best_plan(problem: TorchRecProblem, find: Callable[[Task], Plan]) -> tuple[Plan, ShardingPlan]:
    """Find the best plan; return it in our form and in TorchRec's.

    Args:
        problem: the problem.
        find: searches a task for a plan that TorchRec runs.

    Raises:
        PlannerError: there is no plan, or none was found.
    """
    binding: InfeasibleTask | None = None
    tried: list[dict[str, KernelChoice]] = []
    for choices in _kernels_to_try(problem):
        if choices in tried:
            continue
        tried.append(choices)
        for spread in (False, True) if choices else (False,):
            try:
                searched = search_task(problem, choices, spread=spread)
                plan = runnable(_of_problem(find(searched), searched, problem), problem)
                if not choices:
                    plan.check()
                result = sharding_plan_of(plan, problem, choices)
                _check_room(result, problem)
                return with_host_sync(plan, problem, choices), result
            except InfeasibleTask as error:
                binding = binding or error
            except InvalidPlan as error:
                raise PlannerError(str(error), PlannerErrorType.OTHER) from error
    raise _no_plan(problem, binding) from binding


def _kernels_to_try(problem: TorchRecProblem) -> Iterator[dict[str, KernelChoice]]:
    """Kernel choices in the order to try: first only the tables that must lie in host memory, if the rest can fit; then more and more.

    Then the same again with each table of a key-value store whole, because each of its shards takes a cache.
    """
    forced = demanded(problem)
    held = sum(held_bytes(problem.task, table) for table in problem.task.tables if table.name not in forced)
    for whole in (False, True):
        if held <= sum(problem.task.topology.memory_bytes):
            yield cached_within(problem, _FILLS[0], whole=whole) if forced else {}
        for fill in _FILLS:
            yield cached_within(problem, fill, whole=whole)


_ROOMS = {"ddr": ("host memory", "UVM"), "ssd": ("SSD", "key_value")}  # in the order of `Kept`


def _check_room(plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Check that no rank's part of host memory and no rank's SSD holds more than it has room for.

    Raises:
        InfeasibleTask: a rank has too little room.
    """
    by_rank = kept_by_rank(plan, problem)
    for column, (tier, (what, kind)) in enumerate(_ROOMS.items()):
        for rank, (needed, device) in enumerate(zip(by_rank[:, column], problem.reserved.devices, strict=True)):
            room = max(getattr(device.storage, tier), 0)
            if needed > room:
                raise InfeasibleTask(
                    f"rank {rank} needs {format_bytes(int(needed))} of {what} for its {kind} tables and has {format_bytes(room)}: "
                    f"allow them row_wise or column_wise sharding, or set a larger {tier}_cap"
                )


def _no_plan(problem: TorchRecProblem, binding: InfeasibleTask | None) -> PlannerError:
    """TorchRec's error with its type: storage if the tables need more than the ranks have, or if the user did not narrow their choice.

    In all other cases it is constraints.
    """
    task, needs, room = problem.task, _needs(problem), _room(problem)
    short = [tier for tier, has in room.items() if needs[tier] > has]
    held, has = needs["device"] + needs["ddr"] + needs["either"], room["device"] + room["ddr"]
    storage = bool(short) or held > has or not any(place.narrowed for place in problem.places.values())
    why = str(binding) if binding else "the tables need more memory than all devices have"
    for tier in short:
        if tier != "device":
            why = (
                f"tables that may only use {_ROOMS[tier][0]} need {format_bytes(needs[tier])} of it, all ranks together have "
                f"{format_bytes(room[tier])}: allow them other kernels, or set a larger {tier}_cap"
            )
    hosts = f" and {format_bytes(room['ddr'])} of host memory" if room["ddr"] else ""
    figures = (
        f"{len(task.tables)} tables need {format_bytes(held)} with optimizer state and buffers, {task.topology.devices} devices have "
        f"{format_bytes(room['device'])}{hosts} for them after the storage reservation, batch size {problem.batch_size} on each rank"
    )
    what = "insufficient storage" if storage else "the strict constraints"
    return PlannerError(
        f"unable to find a plan for this model because of {what}: {why} ({figures})",
        PlannerErrorType.INSUFFICIENT_STORAGE if storage else PlannerErrorType.STRICT_CONSTRAINTS,
    )


def _room(problem: TorchRecProblem) -> dict[str, int]:
    """Bytes of all ranks in device memory, in host memory besides, and on SSDs."""
    room = {"device": sum(problem.task.topology.memory_bytes)}
    for tier in _ROOMS:
        sizes = [max(getattr(device.storage, tier), 0) for device in problem.reserved.devices]
        room[tier] = 0 if problem.compute_device == "cpu" else sum(sizes)
    return room


def _needs(problem: TorchRecProblem) -> dict[str, int]:
    """Fewest bytes of the tables that must lie on devices, hosts or SSDs, and of those that may lie on devices or hosts.

    Virtual tables need none.
    """
    task, forced, needs = problem.task, demanded(problem), {"device": 0, "ddr": 0, "ssd": 0, "either": 0}
    for table in task.tables:
        place, kernel = problem.places[table.name], forced[table.name].kernel if table.name in forced else None
        copies = task.topology.devices if place.types == ("data_parallel",) else 1
        whole = shard_work(task, Shard.whole(table, *range(copies)))
        needs["device"] += copies * buffer_bytes(whole, task.exchange.batches)
        if kernel not in VIRTUAL:
            tier = "either" if may_leave(place) else "device"
            if kernel is not None:
                tier = "ssd" if kernel == KEY_VALUE else "ddr"
            needs[tier] += copies * held_bytes(task, table)
    return needs
