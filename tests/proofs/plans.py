"""Every plan of a small task, with its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import accumulate, combinations, combinations_with_replacement, pairwise, product

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InvalidPlan
from shardwright.sharding.checking import check_constraints
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.ways import unit_width
from shardwright.sharding.work import numbered_calls, shard_work
from shardwright.task import Constraints, Table, Task
from shardwright.task.constraints import ANY
from tests.oracles.communication import (
    SETS,
    all_reduce_ms,
    beside_dense,
    latencies,
    outputs_of,
    reduction_ms,
    served_bytes,
)

GRID, FEWEST_ROWS = 16, 1024
MOST_PLANS, SAMPLED = 5_000, 1_500
SAMPLED_CUTS, SAMPLED_GRIDS, AT_ONCE = 200, 60, 2_500

Way = tuple[Shard, ...]


def ways_of(task: Task, table: Table, rng: np.random.Generator, any_grids: bool) -> tuple[list[Way], bool]:
    """Ways to make a table that its constraints allow, and whether these are all; memory is ignored."""
    limits = task.constraints.of(table.name)
    gridded = table.rows >= FEWEST_ROWS
    grid = list(_on_grid(table.rows, task.topology.devices, _dealt_parts(task, table))) if gridded else []
    some = [grid[place] for place in rng.choice(len(grid), min(len(grid), SAMPLED_CUTS), replace=False)]
    in_rows = list(_rows(task, table, some))
    ways = [*_columns(task, table), *in_rows, *_grids(task, table, any_grids)]
    if any_grids and not limits.equal_rows and not limits.equal_columns:
        ways += _free_grids(task, table, in_rows, rng)
    if limits != ANY:
        alone = replace(task, tables=[table], constraints=Constraints({table.name: limits}))
        ways = [way for way in ways if _allowed(alone, way)]
    return ways, len(some) == len(grid)


def _allowed(alone: Task, way: Way) -> bool:
    try:
        check_constraints(alone, {alone.tables[0].name: list(way)})
    except InvalidPlan:
        return False
    return True


def _columns(task: Task, table: Table) -> Iterator[Way]:
    """The whole table, column blocks of whole units, any number of them on a device; the table replicated on all devices."""
    devices, unit = range(task.topology.devices), unit_width(table, task.constraints.of(table.name))
    kinds = [(width, rank) for width in range(unit, table.dim + 1, unit) for rank in devices]
    for pieces in _adding_up(table.dim, kinds):
        edges = [0, *accumulate(width for width, _ in pieces)]
        yield tuple(
            Shard(table.name, (0, table.rows), edge, (rank,))
            for edge, (_, rank) in zip(pairwise(edges), pieces, strict=True)
        )
    if len(devices) > 1:
        yield (Shard.whole(table, *devices),)


def _adding_up(total: int, kinds: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Every selection of kinds, each any number of times, whose widths add up."""
    if total == 0:
        yield []
    for place, (width, rank) in enumerate(kinds):
        if width <= total:
            yield from ([(width, rank), *rest] for rest in _adding_up(total - width, kinds[place:]))


def _rows(task: Task, table: Table, on_grid: Sequence[tuple[int, ...]]) -> Iterator[Way]:
    """Row blocks on different devices: on a grid of sixteenths, of equal size over 2, 4, … devices, and as TorchRec cuts them."""
    devices, near = range(task.topology.devices), task.topology.devices_per_host
    limits = task.constraints.of(table.name)
    pinned = limits.devices or devices
    most = min(len(devices), table.rows, limits.max_shards or table.rows)
    counts = {2**power for power in range(1, 5)} | {min(most, wide) for wide in (len(devices), near, len(pinned))}
    sizes = {_even(table.rows, count) for count in counts if 2 <= count <= most}
    sizes |= {_torchrecs(table.rows, count) for count in (near, len(devices)) if limits.equal_rows and count >= 2}
    cuts = {cut for of_size in sizes for cut in _orders(of_size)}
    for blocks in sorted(cuts.union(on_grid)):
        edges = [0, *accumulate(blocks)]
        for ranks in combinations(devices, len(blocks)):
            yield tuple(
                Shard(table.name, edge, (0, table.dim), (rank,))
                for edge, rank in zip(pairwise(edges), ranks, strict=True)
            )
    hosts = [devices[start : start + near] for start in devices[::near]] if near < len(devices) else []
    for place in (devices, *(hosts if table.pooled else ())) if not limits.equal_rows else ():
        cut = _torchrecs(
            table.rows, len(place)
        )  # rows dealt to all devices or to one host, whose sums collectives reduce
        for blocks in _orders(cut) - cuts if 2 <= len(cut) == len(place) <= most else ():
            edges = [0, *accumulate(blocks)]
            yield tuple(
                Shard(table.name, edge, (0, table.dim), (rank,))
                for edge, rank in zip(pairwise(edges), place, strict=True)
            )


def _grids(task: Task, table: Table, any_grids: bool) -> Iterator[Way]:
    """Column blocks of one width, each dealt to the devices of a host, in equal row blocks; or these in any order, and TorchRec's."""
    near, hosts, units = task.topology.devices_per_host, range(task.topology.hosts), table.dim
    units //= unit_width(table, task.constraints.of(table.name))
    if not table.pooled or near < 2 or table.rows < near:
        return
    cuts = {_even(table.rows, near)}
    if any_grids:
        cuts = _orders(_even(table.rows, near)) | _orders(_torchrecs(table.rows, near))
    for count in (count for count in range(2, units + 1) if units % count == 0):
        width = table.dim // count
        for chosen, blocks in product(combinations_with_replacement(hosts, count), sorted(cuts)):
            edges = list(pairwise([0, *accumulate(blocks)]))
            yield tuple(
                Shard(table.name, rows, (place * width, (place + 1) * width), (host * near + local,))
                for place, host in enumerate(chosen)
                for local, rows in enumerate(edges)
            )


def _free_grids(task: Task, table: Table, in_rows: Sequence[Way], rng: np.random.Generator) -> Iterator[Way]:
    """Column blocks of one width, each whole on a device or in row blocks."""
    units = table.dim // unit_width(table, task.constraints.of(table.name))
    cuts = [[(block.rows, block.devices) for block in way] for way in in_rows]
    cuts += [[((0, table.rows), (rank,))] for rank in range(task.topology.devices)]
    for count in (count for count in range(2, units + 1) if units % count == 0):
        width = table.dim // count
        for _ in range(SAMPLED_GRIDS):
            yield tuple(
                Shard(table.name, rows, (place * width, (place + 1) * width), ranks)
                for place, cut in enumerate(rng.choice(len(cuts), count))
                for rows, ranks in cuts[cut]
            )


def _even(rows: int, count: int) -> tuple[int, ...]:
    return tuple(rows * (part + 1) // count - rows * part // count for part in range(count))


def _torchrecs(rows: int, count: int) -> tuple[int, ...]:
    size = -(-rows // count)
    return tuple(min(size, rows - start) for start in range(0, rows, size))


def _orders(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """The orders of block sizes, of which there are one or two."""
    low, high = min(sizes), max(sizes)
    places = combinations(range(len(sizes)), sum(size == high for size in sizes))
    return {tuple(high if place in chosen else low for place in range(len(sizes))) for chosen in places}


def _dealt_parts(task: Task, table: Table) -> tuple[int, ...]:
    """The sixteenths of a block whose rows are dealt to all devices, or to those of a host."""
    near, devices = task.topology.devices_per_host, task.topology.devices
    places = () if task.exchange.collectives == "shared" else (near, devices) if table.pooled else (devices,)
    return tuple({GRID // count for count in places if count > 1 and GRID % count == 0})


@cache
def _on_grid(rows: int, most: int, dealt: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Sizes of 2 to `most` blocks of whole sixteenths, each rounded down or up so that they add up.

    Blocks of as many sixteenths as `dealt` rows have may be a row shorter or longer.
    """
    cuts = set()
    for parts in (parts for count in range(2, most + 1) for parts in product(range(1, GRID), repeat=count)):
        if sum(parts) == GRID:
            sizes = [
                range(rows * part // GRID - (part in dealt), -(-rows * part // GRID) + (part in dealt) + 1)
                for part in parts
            ]
            cuts |= {blocks for blocks in product(*sizes) if sum(blocks) == rows}
    return tuple(sorted(cuts))


@dataclass(frozen=True)
class Priced:
    """The ways of one table; n ways on d devices with q calls.

    Attributes:
        ways: the ways.
        vectors: `(n, d, q, h + 2)` addition of each to the calls.
        made: `(n, d, q)` blocks in each call.
        served: `(n, d, 3)` bytes of values, to near and to far devices, and of ids that the device serves by all-to-alls.
        apart: `(n, d, 2)` forward and backward ms of the device's other collectives.
        sets: `(n, 8)` whether each needs each set of collectives.
        memory: `(n, d)` bytes.
    """

    ways: list[Way]
    vectors: np.ndarray
    made: np.ndarray
    served: np.ndarray
    apart: np.ndarray
    sets: np.ndarray
    memory: np.ndarray


class AllPlans:
    """All plans of a task, of the kinds that the bound covers; a sample of them if they are too many.

    Args:
        task: the task.
        model: prices the plans.
        rng: draws the sample.
        any_grids: whether grids that the integer program does not know are among them: dealt in other orders, and some of those of any
            row blocks.

    Attributes:
        ways: `(tables,)` how many ways each table has.
        complete: whether these are all plans, but for grids that the integer program does not know.
        step_ms: `(plans,)` step of each; infinite for those that break a rule.
        index: `(tables, plans)` the way of each table.
    """

    def __init__(self, task: Task, model: CostModel, rng: np.random.Generator, *, any_grids: bool = False) -> None:
        self._task, self._model = task, model
        drawn = [ways_of(task, table, rng, any_grids) for table in task.tables]
        of_tables = [ways for ways, _ in drawn]
        self.ways = [len(ways) for ways in of_tables]
        count = int(np.prod([float(number) for number in self.ways]))
        self.complete = count <= MOST_PLANS and all(every for _, every in drawn)
        chosen = np.arange(count) if count <= MOST_PLANS else rng.integers(0, count, SAMPLED)
        self.index = (
            np.array(np.unravel_index(chosen, self.ways)) if count else np.zeros((len(self.ways), 0), dtype=int)
        )
        self._tables = _priced(task, model, of_tables)
        parts = [self._steps(self.index[:, start : start + AT_ONCE]) for start in range(0, chosen.size, AT_ONCE)]
        self.step_ms = np.concatenate([np.zeros(0), *parts])

    @property
    def best_ms(self) -> float:
        """The shortest step; infinite if there is no plan."""
        return float(self.step_ms.min(initial=np.inf))

    def shards(self, plan: int) -> list[Shard]:
        """The shards of a plan."""
        return [
            shard
            for table, way in zip(self._tables, self.index[:, plan].tolist(), strict=True)
            for shard in table.ways[way]
        ]

    def _steps(self, index: np.ndarray) -> np.ndarray:
        chosen = list(zip(self._tables, index, strict=True))
        vectors, made, served, apart, memory = (
            sum(getattr(table, name)[way] for table, way in chosen)
            for name in ("vectors", "made", "served", "apart", "memory")
        )
        used = np.logical_or.reduce([table.sets[way] for table, way in chosen])
        pricing = self._model.pricing
        kernels = np.where((made > 0)[..., None], pricing.times(vectors), 0.0).sum(axis=2)
        kernels += (made > 0).any(axis=2)[..., None] * pricing.once
        waits = used @ np.array([latencies(self._task, kind) for kind in SETS])
        links = _links_ms(self._task, served, apart, waits)
        step = kernels.max(axis=1).sum(axis=1) + links.max(axis=1).sum(axis=1)
        allowed = (memory <= np.array(self._task.topology.memory_bytes)).all(axis=1) & self._related(chosen)
        return np.where(allowed, step, np.inf)

    def _related(self, chosen: Sequence[tuple[Priced, np.ndarray]]) -> np.ndarray:
        """`(plans,)` whether tables lie together and apart as they have to."""
        held = {
            table.name: (priced.memory[way] > 0) for table, (priced, way) in zip(self._task.tables, chosen, strict=True)
        }
        good = np.ones(chosen[0][1].size, dtype=bool)
        for group in self._task.constraints.colocated_groups():
            first, *others = group
            for name in others:
                good &= (held[first] == held[name]).all(axis=1)
        for names in self._task.constraints.apart:
            for one, other in combinations(sorted(set(names)), 2):
                good &= ~(held[one] & held[other]).any(axis=1)
        return good


def _priced(task: Task, model: CostModel, of_tables: Sequence[Sequence[Way]]) -> list[Priced]:
    topology = task.topology
    blocks = {
        (shard.table, shard.row_count, shard.dim, len(shard.devices)): shard
        for ways in of_tables
        for way in ways
        for shard in way
    }
    number = {key: place for place, key in enumerate(blocks)}
    works = [shard_work(task, shard) for shard in blocks.values()]
    calls = numbered_calls(works)
    of_block = model.pricing.vectors(model.encode(works)) if works else np.zeros((0, 2))
    sizes = [shard_bytes(task, shard) for shard in blocks.values()]
    result = []
    for ways in of_tables:
        shape = len(ways), topology.devices
        vectors = np.zeros((*shape, max(calls, default=0) + 1, of_block.shape[1]))
        made, served, memory = np.zeros(vectors.shape[:3]), np.zeros((*shape, 3)), np.zeros(shape, dtype=np.int64)
        apart, sets = np.zeros((*shape, 2)), np.zeros((len(ways), len(SETS)), dtype=bool)
        kinds = [
            {
                columns: outputs_of(task, [shard for shard in way if shard.columns == columns])
                for columns in {shard.columns for shard in way}
            }
            for way in ways
        ]
        for place, (of_columns, way) in enumerate(zip(kinds, ways, strict=True)):
            for kind in of_columns.values():
                sets[place, SETS.index((kind, task.table_by_name[way[0].table].pooled))] = True
        for place, shard in ((place, shard) for place, way in enumerate(ways) for shard in way):
            block = number[shard.table, shard.row_count, shard.dim, len(shard.devices)]
            work, ranks = works[block], list(shard.devices)
            vectors[place, ranks, calls[block]] += of_block[block]
            made[place, ranks, calls[block]] += 1
            memory[place, ranks] += sizes[block]
            if len(ranks) == 1:
                values, ids = served_bytes(task, shard)
                kind = kinds[place][shard.columns]
                near, far = {"rows": (0, 0), "host rows": (0, 1 / topology.devices_per_host)}.get(kind, (1, 1))
                served[place, ranks] += (near * values, far * values, ids)
                apart[place, ranks] += values * reduction_ms(topology, kind)
            else:
                apart[place, ranks] += (0.0, 4 * work.rows * work.dim * all_reduce_ms(topology))
        result.append(Priced(list(ways), vectors, made, served, apart, sets, memory))
    return result


def _links_ms(task: Task, served: np.ndarray, apart: np.ndarray, waits: np.ndarray) -> np.ndarray:
    """`(plans, d, 2)` forward and backward ms of the links: all-to-alls, the other collectives after them, and `(plans, 3)` latencies."""
    topology = task.topology
    devices, near = topology.devices, topology.devices_per_host
    host = served.reshape(len(served), topology.hosts, near, 3).sum(axis=2).repeat(near, axis=1)
    everywhere = served.sum(axis=1, keepdims=True)
    peers = np.array([near - 1, devices - near])
    out = served[..., None, :] * peers[:, None] / devices  # (plans, d, links, values by link and ids)
    into = np.stack([host - served, everywhere - host], axis=2) / devices
    values_out, values_in = (np.stack([part[..., 0, 0], part[..., 1, 1]], axis=-1) for part in (out, into))
    both = values_out + into[..., 2], values_in + out[..., 2]
    collective = task.exchange.collective
    together, alone = np.array(topology.bandwidth_of(collective)), np.array(topology.alone_of(collective))

    def ms(sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        sharing = near if near > 1 else devices
        means = (way.reshape(len(sent), -1, sharing, 2).mean(axis=2) for way in (sent, received))
        of_mean = np.where(alone > together, np.maximum(*means).repeat(sharing, axis=1) / together, 0.0)
        return (np.maximum(np.maximum(sent, received) / alone, of_mean) * 1e3).max(axis=2)

    of_values, of_ids, of_both = ms(values_out, values_in), ms(out[..., 2], into[..., 2]), ms(*both)
    forward, backward, for_ids = waits.T[..., None]
    times = (
        of_values + apart[..., 0] + forward - for_ids,
        of_ids + for_ids,
        of_both + apart[..., 0] + forward,
        of_values + apart[..., 1] + backward,
    )
    return beside_dense(times, astuple(task.exchange.hidden))
