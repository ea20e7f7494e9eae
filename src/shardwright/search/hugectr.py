"""`hugectr`: the planner of HugeCTR's embedding collection (`auto` and `hier_auto`), for comparisons.

Written anew after `benchmarks/embedding_collection/hugectr/sharding/planner.py` of NVIDIA-Merlin/HugeCTR (EMBark, RecSys 2024):

1. Pieces go to the bucket with the least cost that has room and no piece of the same table, costliest first. A bucket is a device, or a
   host in `hier_auto`, whose devices then share every piece by rows.
2. If all pieces fit, the plan is a candidate, and the table of the costliest piece is cut in half, by rows or by columns, whichever gives
   the cheaper plan. If a piece fits nowhere, its table is cut.
3. After 20 rounds the candidate with the cheapest costliest bucket counts; the first is every table in rows over all buckets.

`python -m benchmarks.rival_sources` compares both planners' best candidates on random tasks.

A piece costs `work_ratio` × its lookups × columns, and `bandwidth_ratio` × its columns for what travels; both are the planner's own. Memory
is by our account. If only one of two cuts fits, the original takes the other one, and so does this module. It leaves out the tables that
users of HugeCTR replicate or exchange without duplicates by hand (`dp_threshold`, `dense_threshold`, both 0 by default).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search.strategy import check_number, check_whole
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT, Shard, even_cuts
from shardwright.task.table import Table
from shardwright.task.task import Task

_NARROW = 32  # columns of a block that is not cut by columns again
_TRAFFIC = 80  # weight of a block's columns beside its lookups when the next table to cut is chosen
_SHARED = 1.5  # factor on the traffic of a host's devices together


@dataclass(frozen=True)
class HugeCTR:
    """The greedy planner of HugeCTR.

    Attributes:
        hierarchical: whether hosts are filled (`hier_auto`), rather than devices (`auto`).
        columns: whether tables may be cut by columns too (`--use_column_wise_shard`).
        bandwidth_ratio: bandwidth of a device's memory over that of its link to other hosts; HugeCTR's benchmarks use 60 for H100s.
        work_ratio: bytes that the memory moves for a lookup, over those that travel.
        rounds: cuts that are tried.
        name: name of the strategy.

    Raises:
        InvalidInput: an option breaks a rule.
    """

    hierarchical: bool = False
    columns: bool = True
    bandwidth_ratio: float = 60.0
    work_ratio: float = 4.0
    rounds: int = 20
    name: str = "hugectr"

    def __post_init__(self) -> None:
        check_number(self, "bandwidth_ratio", 0)
        check_number(self, "work_ratio", 0)
        check_whole(self, rounds=1)

    def supports(self, task: Task) -> str | None:
        """Tasks without tables that are colocated or kept apart; with hosts of several devices if `hierarchical`."""
        if task.constraints.colocate or task.constraints.apart:
            return (
                "constraints colocate tables or keep them apart, and this strategy ignores both; use strategy certified"
            )
        if self.hierarchical and task.topology.hosts == 1:
            return "there is one host, and this strategy fills hosts; use strategy hugectr"
        return None

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Cut and place; neither the cost model nor the seed is used.

        Raises:
            InfeasibleTask: no candidate fits, or the best one breaks a constraint.
        """
        planner = Planner(task, self)
        plan = Plan(task, planner.shards(planner.best()), self.name, seed)
        try:
            plan.check()
        except InvalidPlan as error:
            raise InfeasibleTask(f"hugectr's plan: {error}; use strategy certified") from error
        return plan


@dataclass(frozen=True)
class _Cuts:
    """Numbers of row and column blocks into which each table is cut."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def halved(self, table: int, *, by_columns: bool) -> _Cuts:
        """The cuts, with one table cut twice as often."""
        field = "columns" if by_columns else "rows"
        before: tuple[int, ...] = getattr(self, field)
        return replace(self, **{field: (*before[:table], 2 * before[table], *before[table + 1 :])})


@dataclass(frozen=True)
class _Placement:
    """A candidate: the buckets of each table's pieces, and the cost of the costliest bucket."""

    cuts: _Cuts
    holders: tuple[tuple[int, ...], ...]
    cost: float
    stuck: int | None = None


class Planner:
    """Cuts and places the tables of a task.

    Args:
        task: the task.
        options: the strategy.
        bytes_of: the memory account: bytes that a shard of the task takes on each of its devices.
    """

    def __init__(self, task: Task, options: HugeCTR, bytes_of: Callable[[Task, Shard], int] = shard_bytes) -> None:
        self._task, self._options, self._bytes_of = task, options, bytes_of
        topology = task.topology
        self._each = topology.devices_per_host if options.hierarchical else 1
        self._buckets = topology.devices // self._each
        self._room = np.array(topology.memory_bytes, dtype=np.int64).reshape(self._buckets, self._each).min(axis=1)
        self._known: dict[tuple[int, int, int], int] = {}
        self._lookups = np.array([table.pooling for table in task.tables])
        self._outputs = np.array([len(table.poolings) if table.pooled else table.pooling for table in task.tables])
        self._dims = np.array([table.dim for table in task.tables], dtype=np.float64)

    def best(self) -> _Placement:
        """The cheapest candidate.

        Raises:
            InfeasibleTask: none fits.
        """
        many = len(self._task.tables)
        cuts = _Cuts((1,) * many, (1,) * many)
        candidates = [each for each in (self._spread(),) if each is not None]
        for _ in range(self._options.rounds):
            placed = self._place(cuts)
            if placed.stuck is None:
                candidates.append(placed)
                cuts = self._cut_costliest(cuts)
            elif (after := self._cut_stuck(cuts, placed.stuck)) is not None:
                cuts = after
            else:
                break
        if not candidates:
            raise InfeasibleTask(
                "no device has room for the tables in any way that hugectr cuts them; use strategy certified"
            )
        return min(candidates, key=lambda candidate: candidate.cost)

    def shards(self, placed: _Placement) -> list[Shard]:
        """The candidate's blocks."""
        shards: list[Shard] = []
        for index, table in enumerate(self._task.tables):
            across, holders = placed.cuts.columns[index], placed.holders[index]
            wide = table.dim // across
            down = len(holders) // across * self._each
            cuts = list(pairwise(even_cuts(table.rows, min(down, table.rows))))
            for place, bucket in enumerate(holders):
                row, column = divmod(place, across)
                for device in range(self._each):
                    block = row * self._each + device
                    if block < len(cuts):
                        columns = (column * wide, (column + 1) * wide)
                        shards.append(Shard(table.name, cuts[block], columns, (bucket * self._each + device,)))
        return shards

    def _costs(self, cuts: _Cuts, *, shared: bool = True) -> Floats:
        """Cost of a piece of each table, on a device or, if `shared`, on each of the devices of its host."""
        rows, wide = np.array(cuts.rows), self._dims / cuts.columns
        work = self._options.work_ratio * self._lookups * wide / rows
        traffic = self._options.bandwidth_ratio * self._outputs * wide
        if not (shared and self._options.hierarchical):
            return np.asarray(work + traffic)
        return np.asarray((work + traffic * _SHARED) / self._each)

    def _spread(self) -> _Placement | None:
        """Every table in rows over all buckets; None if that does not fit."""
        many, all_ = len(self._task.tables), tuple(range(self._buckets))
        cuts = _Cuts((self._buckets,) * many, (1,) * many)
        used = sum(self._bytes(table, cuts) for table in range(many))
        return None if used > self._room.min() else _Placement(cuts, (all_,) * many, float(self._costs(cuts).sum()))

    def _place(self, cuts: _Cuts) -> _Placement:
        """Pieces in the order of their costs, each to the cheapest bucket with room and without this table."""
        costs = self._costs(cuts)
        load, left = np.zeros(self._buckets), self._room.copy()
        holders: list[list[int]] = [[] for _ in costs]
        stuck = None
        for table in np.argsort(-self._costs(cuts, shared=False), kind="stable").tolist():
            need = self._bytes(table, cuts)
            for _ in range(cuts.rows[table] * cuts.columns[table]):
                free = np.ones(self._buckets, dtype=bool)
                free[holders[table]] = False
                able = free & (left >= need)
                if not able.any():  # counted as on the last bucket that was tried
                    stuck = table
                    load[free & (load == load[free].max(initial=-1.0))] += costs[table]
                    break
                bucket = int(np.where(able, load, np.inf).argmin())
                holders[table].append(bucket)
                load[bucket] += costs[table]
                left[bucket] -= need
            if stuck is not None:
                break
        return _Placement(cuts, tuple(map(tuple, holders)), float(load.max()), stuck)

    def _cut_costliest(self, cuts: _Cuts) -> _Cuts:
        """The cuts with one table halved: the first one, by the cost of a piece, that can be."""
        wide = self._dims / cuts.columns
        weight = (self._lookups / cuts.rows + _TRAFFIC * self._outputs) * wide
        for table in np.argsort(-weight, kind="stable").tolist():
            if 2 * cuts.rows[table] * cuts.columns[table] <= self._buckets:
                ways = self._ways(cuts, table, columns=self._options.columns)
                placed = [self._place(way) for way in ways]
                fits = [candidate.stuck is None for candidate in placed]
                if len(ways) == 1 or not any(fits):
                    return ways[0]
                if not all(fits):  # as the original: the cut that does not fit, which the next round cuts on
                    return ways[fits.index(False)]
                return ways[1] if placed[0].cost > placed[1].cost else ways[0]
        return cuts

    def _cut_stuck(self, cuts: _Cuts, table: int) -> _Cuts | None:
        """The cuts with a table halved that fits nowhere; None if it cannot be cut."""
        if 2 * cuts.rows[table] * cuts.columns[table] > self._buckets:
            return None
        ways = self._ways(cuts, table, columns=True)
        if not self._options.columns:  # as the original, which then cuts by columns alone
            return ways[-1]
        return min(ways, key=lambda way: self._place(way).cost)

    def _ways(self, cuts: _Cuts, table: int, *, columns: bool) -> Sequence[_Cuts]:
        """Halved by rows, and by columns if columns may be cut."""
        by_rows = cuts.halved(table, by_columns=False)
        if not columns or not self._cuttable(self._task.tables[table], cuts.columns[table]):
            return (by_rows,)
        return by_rows, cuts.halved(table, by_columns=True)

    def _cuttable(self, table: Table, columns: int) -> bool:
        """Whether column blocks may be halved."""
        limits, wide = self._task.constraints.of(table.name), table.dim // columns
        least = max(limits.min_columns or 0, limits.column_multiple or COLUMN_UNIT)
        return (
            wide > _NARROW
            and wide % 2 == 0
            and wide // 2 >= least
            and wide // 2 % (limits.column_multiple or COLUMN_UNIT) == 0
        )

    def _bytes(self, table: int, cuts: _Cuts) -> int:
        """Bytes of a piece on each of its devices."""
        key = (table, cuts.rows[table], cuts.columns[table])
        if key not in self._known:
            embedding = self._task.tables[table]
            rows = math.ceil(embedding.rows / (cuts.rows[table] * self._each))
            self._known[key] = self._bytes_of(
                self._task, Shard(embedding.name, (0, rows), (0, embedding.dim // cuts.columns[table]), (0,))
            )
        return self._known[key]
