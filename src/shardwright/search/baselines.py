"""The baselines: sorted heuristics, `greedy`, and one sharding type for all tables.

A sorted heuristic takes the tables largest cost first, and gives each to the device with the lowest sum of costs so far. Size breaks ties,
as in the code of DreamShard and NeuroShard: of equal tables the largest comes first, and of equal devices the one that holds the fewest
bytes takes the table. `dim` has many ties. `greedy` places by the cost model instead.

A uniform strategy shards all tables in one way and is named after that sharding type. It places tables by lookups, most first. Each table
takes the way that fits and leaves its busiest device the least busy. If a table then fits nowhere, all tables are placed anew by size,
each where most memory is left. A table that is too small to be cut (a single row, fewer than 8 columns) stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.ledger import EncodedBlocks
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search.strategy import why_not_whole
from shardwright.search.units import Eligible, place_all, take_apart
from shardwright.sharding.checking import check_constraints, shards_by_table
from shardwright.sharding.memory import block_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT, Shard, even_cuts
from shardwright.sharding.ways import allowed_devices, equal_blocks, unit_width
from shardwright.sharding.work import ShardWork, ShardWorks, shard_work
from shardwright.task.constraints import Constraints
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Table
from shardwright.task.task import Task


@dataclass(frozen=True)
class SortedGreedy:
    """Place tables greedily by a fixed cost of each table.

    Attributes:
        name: name of the strategy.
        cost: cost of one block, from its work.
    """

    name: str
    cost: Callable[[ShardWork], float]

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the fixed cost; the cost model is not used."""
        units = take_apart(task)
        load = np.zeros((2, task.topology.devices))
        for shard in units.fixed:
            load[:, list(shard.devices)] += self._weigh(task, [shard])[:, None]
        weights = np.array([self._weigh(task, unit.blocks) for unit in units.free]).reshape(-1, 2)

        def choose(index: int, eligible: Eligible) -> int:
            costs, sizes = load[:, eligible]
            device = int(eligible[np.lexsort((sizes, costs))[0]])
            load[:, device] += weights[index]
            return device

        costs, sizes = weights.T
        order = np.lexsort((np.arange(costs.size), sizes, costs))[::-1].tolist()
        return Plan(task, place_all(task, units, order, choose), self.name, seed)

    def _weigh(self, task: Task, blocks: Sequence[Shard]) -> Floats:
        """`(2,)` cost of some blocks together, and bytes of their weights."""
        works = [shard_work(task, block) for block in blocks]
        return np.array([sum(map(self.cost, works)), sum(work.weight_bytes for work in works)], dtype=np.float64)


@dataclass(frozen=True)
class Random:
    """Place each table on a random device that has memory left."""

    name: str = "random"

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place at random; the cost model is not used."""
        units = take_apart(task)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(units.free)).tolist()
        shards = place_all(task, units, order, lambda _, eligible: int(rng.choice(eligible)))
        return Plan(task, shards, self.name, seed)


def size(work: ShardWork) -> float:
    """Rows × dim."""
    return work.rows * work.dim


def dim(work: ShardWork) -> float:
    """The dim."""
    return work.dim


def lookup(work: ShardWork) -> float:
    """Dim × pooling factor."""
    return work.dim * work.pooling


def size_lookup(work: ShardWork) -> float:
    """Dim × pooling factor × log10 of the rows."""
    return work.dim * work.pooling * math.log10(work.rows)


HEURISTICS = tuple(SortedGreedy(cost.__name__, cost) for cost in (size, dim, lookup, size_lookup))


@dataclass(frozen=True)
class FusedGreedy:
    """The greedy of NeuroShard's inner search without its bound on dims: it compares fused costs, not sums of single costs."""

    name: str = "greedy"

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the predicted kernel time of each device with the table on it."""
        units = take_apart(task)
        blocks = [block for unit in units.free for block in unit.blocks]
        works = [shard_work(task, shard) for shard in (*blocks, *units.fixed)]
        encoded = EncodedBlocks.of(cost_model, works)
        of_units, ledger = encoded.ledger(len(units.free)), encoded.ledger(task.topology.devices)
        owner = np.repeat(np.arange(len(units.free)), [len(unit.blocks) for unit in units.free])
        of_units.add(owner, np.arange(len(blocks)))
        for index, shard in enumerate(units.fixed, start=len(blocks)):
            ledger.add(np.array(shard.devices), np.full(len(shard.devices), index))
        latents, within, sums = of_units.sums, of_units.present, ledger.sums
        # `pricing.once` is left out: a device pays it with any table on it, so it decides nothing.
        price = cost_model.pricing.price
        times = np.where(ledger.present, price(sums).sum(axis=2), 0.0)

        def choose(index: int, eligible: Eligible) -> int:
            some = np.flatnonzero(within[index])
            now = price(sums[eligible[:, None], some] + latents[index, some]).sum(axis=2)
            after = times[eligible].sum(axis=1) - times[eligible[:, None], some].sum(axis=1) + now.sum(axis=1)
            best = int(np.argmin(after))
            device = int(eligible[best])
            sums[device, some] += latents[index, some]
            times[device, some] = now[best]
            return device

        alone = np.where(within, price(latents).sum(axis=2), 0.0).sum(axis=1)
        order = np.argsort(-alone, kind="stable").tolist()
        return Plan(task, place_all(task, units, order, choose), self.name, seed)


KINDS = ("row_wise", "table_row_wise", "column_wise", "table_wise", "data_parallel")
_BLOCKS_A_DEVICE = 2  # column blocks for each device if tables are few


@dataclass(frozen=True)
class Uniform:
    """Shard all tables in one way.

    Attributes:
        name: the sharding type, and the name of the strategy.
    """

    name: str

    def supports(self, task: Task) -> str | None:
        """Tasks whose constraints allow this sharding type for every table, and neither colocate tables nor keep them apart."""
        if task.constraints.colocate or task.constraints.apart:
            return (
                "constraints colocate tables or keep them apart, and this strategy ignores both; use strategy certified"
            )
        reasons = (why_not_uniform(task, table, self.name) for table in task.tables)
        return next((reason for reason in reasons if reason is not None), None)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place greedily, without the cost model and without randomness."""
        return Plan(task, place_uniformly(task, {table.name: self.name for table in task.tables}), self.name, seed)


UNIFORM = tuple(Uniform(kind) for kind in KINDS)


def why_not_uniform(task: Task, table: Table, kind: str) -> str | None:
    """Why a table cannot be sharded this way; None if its constraints allow it."""
    limits = task.constraints.of(table.name)
    if not limits.allows(kind):
        return f"table '{table.name}' allows only {', '.join(limits.sharding_types or ())}, not {kind}"
    ranks = np.flatnonzero(allowed_devices(task.topology, limits))
    if kind == "data_parallel" and ranks.size < task.topology.devices:
        return f"table '{table.name}' is pinned to {ranks.size} devices, and data_parallel needs all"
    per_host = task.topology.devices_per_host
    if kind == "table_row_wise" and np.bincount(ranks // per_host).max() < min(per_host, 2):
        return f"table '{table.name}' is pinned to one device of each host, and table_row_wise needs several"
    return None


def place_uniformly(task: Task, kinds: Mapping[str, str]) -> list[Shard]:
    """Place the tables that `kinds` names, each by the sharding type given there.

    Raises:
        InfeasibleTask: a table does not fit, or its shards break one of its constraints.
    """
    try:
        placed = _placed(task, kinds, by_memory=False)
    except InfeasibleTask:
        placed = _placed(task, kinds, by_memory=True)
    try:
        for name in (name for name in task.constraints.tables if name in kinds):
            only = Constraints({name: task.constraints.of(name)})
            alone = replace(task, tables=[task.table_by_name[name]], constraints=only)
            check_constraints(alone, shards_by_table(alone, placed[name]))
    except InvalidPlan as error:
        raise InfeasibleTask(f"{error}; allow another sharding type") from error
    return [shard for table in task.tables for shard in placed.get(table.name, ())]


def _placed(task: Task, kinds: Mapping[str, str], by_memory: bool) -> dict[str, list[Shard]]:
    """Shards by table. Tables are placed by lookups, or by size if `by_memory`, largest first."""
    floor = _Floor(task, by_memory)
    tables = [table for table in task.tables if table.name in kinds]
    placed = {}
    for table in sorted(tables, key=lambda table: -(table.weight_bytes if by_memory else table.pooling * table.dim)):
        placed[table.name] = floor.place(table, kinds[table.name], len(tables))
    return placed


class _Floor:
    """Memory left and load of every device, while tables are placed."""

    def __init__(self, task: Task, by_memory: bool) -> None:
        self._task, self._works, self._by_memory = task, ShardWorks(task), by_memory
        self._left = np.array(task.topology.memory_bytes, dtype=np.int64)
        self._load = np.zeros(task.topology.devices)
        self._turn = 0

    def place(self, table: Table, kind: str, tables: int) -> list[Shard]:
        """Place a table in the best way that fits.

        Raises:
            InfeasibleTask: no way fits.
        """
        ways = self._ways(table, kind, tables)
        costs = [self._cost_of(way) for way in ways]
        best = min(range(len(ways)), key=lambda index: costs[index], default=None)
        if best is None or costs[best][0]:
            left = self._left[allowed_devices(self._task.topology, self._task.constraints.of(table.name))].max()
            raise InfeasibleTask(
                f"table '{table.name}' ({table.rows} rows, dim {table.dim}) does not fit as {kind}: its devices have at most "
                f"{format_bytes(int(max(left, 0)))} left; allow another sharding type, or use more devices or memory"
            )
        for shard in ways[best]:
            ranks = list(shard.devices)
            self._left[ranks] -= self._bytes_of(shard)
            self._load[ranks] += self._load_of(shard)
        self._turn += 1
        return ways[best]

    def _ways(self, table: Table, kind: str, tables: int) -> list[list[Shard]]:
        task, limits = self._task, self._task.constraints.of(table.name)
        ranks = np.flatnonzero(allowed_devices(task.topology, limits))
        whole = [[Shard.whole(table, int(rank))] for rank in ranks]
        if kind == "data_parallel":
            return [[Shard.whole(table, *ranks.tolist())]]
        most = limits.max_shards or task.topology.devices
        per_host = task.topology.devices_per_host
        if kind == "row_wise" and min(table.rows, ranks.size, most) > 1:
            spread = ranks[
                np.lexsort((ranks // per_host, ranks % per_host))
            ]  # hosts in turn, so that even few blocks lie on several
            return [self._rows(table, spread, most)]
        if kind == "table_row_wise" and min(table.rows, most) > 1 and per_host > 1:
            by_host = [ranks[ranks // per_host == host] for host in np.unique(ranks // per_host)]
            return [self._rows(table, among, most) for among in by_host if among.size > 1]
        if kind == "column_wise" and min(table.dim // COLUMN_UNIT, ranks.size, most) > 1:
            return list(self._columns(table, ranks, most, tables))
        return whole

    def _rows(self, table: Table, ranks: Ints, most: int) -> list[Shard]:
        """Equal row blocks; the first device shifts from table to table."""
        count = min(table.rows, ranks.size, most)
        chosen = np.roll(ranks, -(self._turn * count) % ranks.size)[:count]
        blocks = zip(pairwise(even_cuts(table.rows, count)), chosen.tolist(), strict=True)
        return [Shard(table.name, rows, (0, table.dim), (rank,)) for rows, rank in blocks]

    def _columns(self, table: Table, ranks: Ints, most: int, tables: int) -> Iterator[list[Shard]]:
        """Column blocks on the least busy devices: enough to keep all devices busy, then more until they fit."""
        limits = self._task.constraints.of(table.name)
        multiple = COLUMN_UNIT if limits.column_multiple is None else unit_width(table, limits)
        width = multiple * -(-(limits.min_columns or 1) // multiple)
        units = max(1, table.dim // width)
        most = min(units, ranks.size, most)
        wanted = -(-_BLOCKS_A_DEVICE * self._task.topology.devices // tables)
        counts: Sequence[int] = range(min(max(2, wanted), most), most + 1)
        if limits.equal_columns:
            able = [count for count in equal_blocks(table, limits) if count <= most]
            counts = [count for count in able if count >= wanted] or able[-1:]
        for count in counts:
            cuts = (table.dim // units) // multiple * multiple * (np.arange(count + 1) * units // count)
            if limits.equal_columns:
                cuts = table.dim // count * np.arange(count + 1)
            cuts[-1] = table.dim
            blocks = [Shard(table.name, (0, table.rows), (int(a), int(b)), (0,)) for a, b in pairwise(cuts)]
            fits = ranks[self._left[ranks] >= max(self._bytes_of(block) for block in blocks)]
            chosen = fits[np.argsort(self._load[fits], kind="stable")][:count]
            if chosen.size == count:
                yield [
                    Shard(table.name, block.rows, block.columns, (int(rank),))
                    for block, rank in zip(blocks, chosen, strict=True)
                ]
                return

    def _cost_of(self, way: list[Shard]) -> tuple[bool, float, float]:
        """The key by which ways are compared: whether it fits, load of the busiest device, least memory left.

        With `by_memory`, memory before load.
        """
        ranks = [list(shard.devices) for shard in way]
        left = min(int(self._left[on].min()) - self._bytes_of(shard) for shard, on in zip(way, ranks, strict=True))
        load = max(float(self._load[on].max()) + self._load_of(shard) for shard, on in zip(way, ranks, strict=True))
        return (left < 0, -left, load) if self._by_memory else (left < 0, load, -left)

    def _bytes_of(self, shard: Shard) -> int:
        return block_bytes(self._task, self._works.of(shard), len(shard.devices))

    def _load_of(self, shard: Shard) -> float:
        """Elements that a device handles: those of all lookups and, if they are pooled, the sums of all samples."""
        work: ShardWork = self._works.of(shard)
        return work.dim * (work.bags + work.lookups if work.pooled else work.lookups)
