"""The task that is searched where it differs from the problem's: tables in host memory are smaller, grids are cut beforehand.

A table of which a cache holds c enters the search with c of its rows, the hottest, and each expected miss counts as so many lookups as
device memory is faster than the link to the host or the SSD, 64 at most: beyond that the busy devices stay the same ones, and the ids of
so many lookups would fill them. A table that may only be a grid enters as one table for each of its ranges of
columns, with row blocks on one host each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from torchrec.distributed.planner.constants import MIN_CW_DIM

from shardwright.integrations.torchrec.caching import cached_share, device_share, least_cache, missed_rows
from shardwright.integrations.torchrec.conversion import KernelChoice
from shardwright.integrations.torchrec.limits import NARROWEST
from shardwright.integrations.torchrec.off_device import CACHED, FOUND_MS, KEY_VALUE, STORES, bandwidth_of
from shardwright.integrations.torchrec.problem import TorchRecProblem
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard, even_cuts
from shardwright.task.access import AccessProfile
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

_MOST_SLOWER = 64.0


@dataclass(frozen=True)
class SearchTask:
    """A task to search, and the way back.

    Attributes:
        task: what is searched.
        origin: table of the problem and first column, by name of each table of `task`; empty where both are the same task.
    """

    task: Task
    origin: Mapping[str, tuple[str, int]]

    def answer(self, plan: Plan, problem: TorchRecProblem) -> Plan:
        """The plan of the problem's task that a plan of the searched task stands for; its costs and bound stay those of the search."""
        if not self.origin:
            return plan
        shards: list[Shard] = []
        for name, (table_name, first) in self.origin.items():
            rows = problem.task.table_by_name[table_name].rows
            shards += _enlarged(plan.by_table[name], table_name, first, rows, self.task.table_by_name[name].rows)
        return replace(plan, task=problem.task, shards=tuple(shards))


def search_task(problem: TorchRecProblem, choices: Mapping[str, KernelChoice], *, spread: bool = False) -> SearchTask:
    """What is searched for a problem, with the kernels chosen for its tables in host memory and on SSD.

    Args:
        problem: the problem.
        choices: kernels of the tables that do not lie in device memory.
        spread: give tables on SSD the part of device memory that they take of the SSD, so that whatever fits the devices fits there.
    """
    task = problem.task
    grids = [name for name, limits in task.constraints.tables.items() if "grid" in (limits.sharding_types or ())]
    if not grids and not choices:
        return SearchTask(task, {})
    tables: list[Table] = []
    origin: dict[str, tuple[str, int]] = {}
    limits: dict[str, TableConstraint] = {}
    least = {name: _least(problem, choice, spread) for name, choice in choices.items()}
    for table in task.tables:
        smaller = _cached(problem, table, choices[table.name], least[table.name]) if table.name in choices else table
        given = task.constraints.of(table.name)
        if table.name in choices:
            given = _off_device_limits(given, choices[table.name])
        cuts = _grid_cuts(problem, table) if table.name in grids else [0, table.dim]
        for start, stop in pairwise(cuts):
            name = table.name if len(cuts) == 2 else f"{table.name}[{start}:{stop}]"
            tables.append(replace(smaller, name=name, dim=stop - start))
            origin[name] = (table.name, start)
            limits[name] = _on_one_host(task) if table.name in grids else given
    return SearchTask(replace(task, tables=tables, constraints=Constraints(tables=limits)), origin)


def _least(problem: TorchRecProblem, choice: KernelChoice, spread: bool) -> float:
    """Least share of a table that counts against device memory."""
    if choice.kernel not in STORES:
        return least_cache(problem)
    if choice.kernel != KEY_VALUE or not spread:
        return 0.0
    sizes = zip(problem.task.topology.memory_bytes, problem.reserved.devices, strict=True)
    return float(max(own / max(device.storage.ssd, 1) for own, device in sizes))


def _cached(problem: TorchRecProblem, table: Table, choice: KernelChoice, least: float) -> Table:
    share, devices = device_share(problem, table, choice), problem.task.topology.devices
    rows = max(round(max(share, least) * problem.places[table.name].rows), min(table.rows, devices), 1)
    slower = min(problem.topology.hbm_mem_bw / bandwidth_of(choice.kernel, problem.topology), _MOST_SLOWER)
    lookups = table.pooling * problem.task.batch_size
    missed = missed_rows(problem, table, cached_share(problem, table, choice)) / lookups
    access = table.access.block(0, rows) if rows < table.rows else table.access
    if abs(access.total_rows - rows) > 0.5:
        access = AccessProfile.uniform(rows)
    found = (
        FOUND_MS * problem.topology.hbm_mem_bw / (table.weight_bytes / table.rows) if choice.kernel in CACHED else 0.0
    )
    pooling = table.pooling * (1 + missed * max(slower - 1, 0) + found) if table.pooled else table.pooling
    return replace(table, rows=rows, pooling=pooling, access=access)


def _off_device_limits(limits: TableConstraint, choice: KernelChoice) -> TableConstraint:
    """No replicas, which are dense, in device memory. No column blocks beside row blocks: the cache of each would note all rows."""
    if choice.whole:
        return replace(limits, sharding_types=("table_wise",))
    kinds = {kind for kind in limits.sharding_types or () if kind != "data_parallel"}
    if choice.kernel in CACHED and kinds & {"row_wise", "table_row_wise"}:
        kinds -= {"column_wise"}
    return replace(limits, sharding_types=tuple(sorted(kinds))) if kinds else limits


def _on_one_host(task: Task) -> TableConstraint:
    kind = "table_row_wise" if task.topology.hosts > 1 else "row_wise"
    return TableConstraint((kind,), equal_rows=True)


def _grid_cuts(problem: TorchRecProblem, table: Table) -> list[int]:
    """Columns of TorchRec's width: the narrowest divisor of the dim, a multiple of 4, of at least `min_partition`, else 128."""
    given = problem.places[table.name].given
    least = given.min_partition if given and given.min_partition else MIN_CW_DIM
    fine = (wide for wide in range(least, table.dim) if table.dim % wide == 0 and wide % NARROWEST == 0)
    width = next(fine, table.dim)
    return list(range(0, table.dim + 1, width))


def _enlarged(shards: list[Shard], table: str, first: int, rows: int, searched_rows: int) -> list[Shard]:
    """The same blocks of a table of more rows, from its column `first` on."""
    blocks = sorted({shard.rows for shard in shards})
    whole = blocks == [(0, searched_rows)]
    cuts = [0, rows] if whole else even_cuts(rows, len(blocks))
    larger = dict(zip(blocks, pairwise(cuts), strict=True))
    return [
        Shard(table, larger[shard.rows], (shard.columns[0] + first, shard.columns[1] + first), shard.devices)
        for shard in shards
    ]
