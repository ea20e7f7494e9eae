"""NeuroShard's search: a beam over column splits outside, a greedy on a grid of dim bounds inside.

The search of "Pre-train and Search" (MLSys 2023) as in the paper, and as in its public code if the paper leaves a rule open. The inner
searches run on all cores.

Outside, a beam over column splits. A step halves one piece. It tries the N largest pieces by size and the N largest by predicted cost, if
their half is divisible by 4. The best K of all splits go on. After at most L steps the best placement seen is the answer.

Inside, a grid of M bounds s from 1 to 1.5 on the devices' dims. For each bound, a greedy takes the pieces by predicted single cost, longest
first. A piece goes to the device with the lowest predicted FUSED cost that has memory left and stays within s × the mean sum of dims. That
cost is of the device before the piece comes, as in the public code. The placement with the lowest score counts.

By default, the score of a placement (option `score`) is the published embedding cost: the largest, over devices, of kernels + forward
all-to-all + backward all-to-all. A cost model with NeuroShard's communication networks prices the all-to-alls as in the paper, where a
device starts the forward one late by the time that its kernels + backward all-to-all exceed the fastest device's. Other cost models leave
communication to the link model, which has no start delays. The score "step" is `step_ms` instead: the sum over the four phases of the
maximum over devices, for a step in which all devices wait for each other at every exchange.

A table that fits no device is cut before the beam begins, into as few pieces as possible (not only halves). The L steps do not count these
cuts (`search/units.py`). The paper has no such cuts; the option `free_cuts=False` leaves them out.

Other differences from the paper: constraints are kept (colocated tables are one piece; blocks that the constraints settle count in every
sum); a task that no bound of the grid can place is tried without a bound, as the paper's tasks are placed rather than failed; sets of
pieces reached by different splits count once in the beam; states that cannot be placed keep their order; pieces of one table that end on
one device are joined if that does not raise the score.

Arrays. Every unit is whole, halved, quartered, … if it can be. A *row* is one width of one unit. Rows are numbered by the predicted time of
the piece alone, longest first. So a sorted array of rows is a set of pieces in the order in which the greedy places them. Predicted times
are compared in whole ticks: rounding must not decide which of two equals is taken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from threading import Event
from typing import Literal

import numpy as np

from shardwright._engine import TICKS, best_by_links, greedy, grid_placements, link_ticks, placement_times
from shardwright._engine import Pieces as NativePieces
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.blocks import Added, BlockCosts, PieceCosts, check_finite
from shardwright.cost.collectives import LinkFacts, set_ms, set_of, sets_of
from shardwright.cost.flows import shares_of_all_to_alls
from shardwright.cost.model import CostModel, PricingHead
from shardwright.cost.neuroshard import CommunicationNetworks
from shardwright.cost.score import served_bytes, traffic
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.strategy import check_number, check_whole, why_not_counted
from shardwright.search.units import PartialPlan, Unit, Units, beside_fixed, halvings, rivals_of, take_apart
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import Call, call_of, shard_work
from shardwright.task.quantities import format_bytes
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encodes a task's pieces.

    Attributes:
        task: the task.
        cost_model: encodes the pieces.
        calls: the numbers of the fused calls seen so far.
    """

    task: Task
    cost_model: CostModel
    calls: dict[Call, int] = field(default_factory=dict)

    def encode(self, pieces: Sequence[Sequence[Shard]]) -> tuple[PieceCosts, Ints]:
        """The additions of pieces, given as blocks, to their devices, and `(n,)` their columns.

        The columns of a colocated group are those of its tables together.

        Raises:
            ShardwrightError: the cost model predicted a time that is not finite.
        """
        task, model, calls = self.task, self.cost_model, self.calls
        flat = [block for blocks in pieces for block in blocks]
        works = [shard_work(task, block) for block in flat]
        begins = np.cumsum([0, *(len(blocks) for blocks in pieces)])[:-1]
        call = np.array([calls.setdefault(call_of(work), len(calls)) for work in works], dtype=np.int64)
        groups = np.split(np.arange(len(flat)), begins[1:])
        memory = np.array([shard_bytes(task, block) for block in flat], dtype=np.int64)
        served = np.array([served_bytes(task, work) for work in works]).reshape(-1, 2)
        costs = BlockCosts(call, model.pricing.vectors(model.encode(works)), memory, served).of_groups(groups)
        check_finite(single_ticks(costs.added, model), model)
        return costs, np.add.reduceat(np.array([block.dim for block in flat], dtype=np.int64), begins)


def single_ticks(added: Added, cost_model: CostModel) -> Floats:
    """`(n,)` predicted forward + backward ticks of each piece alone."""
    ticks: Floats = np.rint(added.summed(cost_model.pricing.times(added.vectors).sum(axis=1)) * TICKS)
    return ticks


NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Pieces:
    """The inputs of the inner search. Letters: r rows, u units, d devices, c fused calls, h hidden units of the cost model.

    Attributes:
        units: the units that the pieces are of.
        encoder: the encoder of the pieces.
        added: additions of a piece to its device.
        bytes: `(r,)` memory.
        dims: `(r,)` columns; of a colocated group, of its tables together.
        served: `(r, 2)` bytes of values and of ids.
        unit: `(r,)` the unit that the piece is of.
        forbidden: `(u, d)` devices that may hold no piece of a unit.
        rivals: `(u, u)` which units may not share a device; `(0, 0)` if all may.
        head: prices calls; a device without a piece costs nothing.
        memory: `(d,)` bytes.
        links: prices the links.
        apart: `(d, 2)` ms of fixed shards' collectives besides all-to-alls, forward and backward.
        waits: ms of the latencies of all sets of collectives.
        sums: `(d, c, h + 2)` biases plus fixed shards by call; the next five are of fixed shards, too.
        counts: `(d, c)` shards in each call.
        fixed_served: `(d, 3)` bytes of values to near and to far devices, and of ids.
        fixed_dims: `(d,)` columns.
        used: `(d,)` bytes.
        occupied: `(d,)` whether a fixed shard lies there.
    """

    units: Units
    encoder: Encoder
    added: Added
    bytes: Ints
    dims: Ints
    served: Floats
    unit: Ints
    forbidden: Bools
    rivals: Bools
    head: PricingHead
    memory: Ints
    links: LinkFacts
    apart: Floats
    waits: float
    sums: Floats
    counts: Ints
    fixed_served: Floats
    fixed_dims: Ints
    used: Ints
    occupied: Bools

    @cached_property
    def native(self) -> NativePieces:
        """The arrays as the engine holds them."""
        return NativePieces(self)


@dataclass(frozen=True, eq=False)
class Placed:
    """The best placement of a state that the inner search found.

    Attributes:
        ticks: its score; infinite if there is no placement.
        state: `(n,)` sorted rows of the pieces.
        device: `(n,)` their ranks.
    """

    ticks: float
    state: Ints
    device: Ints


@dataclass(frozen=True, eq=False)
class Cuts:
    """The inputs of the beam for every row.

    Attributes:
        whole: `(u,)` rows of the units before any split, sorted.
        half: `(r,)` row of a half; -1 if the piece cannot be halved.
        size_rank: `(r,)` place of the row by size in bytes, largest first.
        table: `(r,)` which table the piece is of; for a colocated group, its first table.
        most: `(r,)` most shards the table may have.
    """

    whole: Ints
    half: Ints
    size_rank: Ints
    table: Ints
    most: Ints


def make_pieces(task: Task, units: Units, cost_model: CostModel) -> tuple[Pieces, Cuts]:
    """The arrays of a task.

    Raises:
        ShardwrightError: the cost model predicted a time that is not finite.
    """
    widths_of = [list(halvings(task, unit)) for unit in units.free]
    flat = [blocks for widths in widths_of for blocks in widths]
    unit = np.repeat(np.arange(len(widths_of)), [len(widths) for widths in widths_of])
    encoder = Encoder(task, cost_model)
    costs, dims = encoder.encode(flat)
    order: Ints = np.lexsort((np.arange(unit.size), -single_ticks(costs.added, cost_model)))
    sizes = np.array([sum(shard_work(task, block).weight_bytes for block in blocks) for blocks in flat], dtype=np.int64)
    pieces = _pieces(units, encoder, costs.take(order), dims[order], unit[order])
    return pieces, _cuts(task, units, unit, order, sizes)


def _cuts(task: Task, units: Units, unit: Ints, order: Ints, sizes: Ints) -> Cuts:
    """Inputs of the beam. `unit` and `sizes` `(r,)` come unit by unit, the whole first; `order` `(r,)` is the numbering of rows."""
    row = np.empty_like(order)
    row[order] = np.arange(order.size)  # from the place in `unit` to the row
    new = unit[1:] != unit[:-1]
    half = np.where(np.append(new, True), -1, np.append(row[1:], -1))
    place = {table.name: index for index, table in enumerate(task.tables)}
    names = [unit.tables[0] for unit in units.free]
    limits = [task.constraints.of(name).max_shards or NO_LIMIT for name in names]
    return Cuts(
        whole=np.sort(row[np.append(True, new)]),
        half=half[order],
        size_rank=np.argsort(np.argsort(-sizes[order], kind="stable")),
        table=np.array([place[name] for name in names], dtype=np.int64)[unit[order]],
        most=np.array(limits, dtype=np.int64)[unit[order]],
    )


def _pieces(units: Units, encoder: Encoder, costs: PieceCosts, dims: Ints, unit: Ints) -> Pieces:
    """The arrays of the rows, together with those of the devices."""
    task, pricing, calls = encoder.task, encoder.cost_model.pricing, encoder.calls
    topology, devices = task.topology, task.topology.devices
    held = encoder.encode([[shard] for shard in units.fixed])[0] if units.fixed else None
    sums, counts = np.tile(pricing.base, (devices, len(calls), 1)), np.zeros((devices, len(calls)), dtype=np.int64)
    served, columns, occupied = np.zeros((devices, 3)), np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=bool)
    shares = shares_of_all_to_alls(task, units.fixed)
    for index, shard in enumerate(units.fixed):
        assert held is not None
        ranks = list(shard.devices)
        sums[ranks, held.added.call[index]] += held.added.vectors[index]
        counts[ranks, held.added.call[index]] += 1
        columns[ranks] += shard.dim
        occupied[ranks] = True
        if len(ranks) == 1:  # replicas lie on every device, so they look nothing up elsewhere
            values, ids = held.served[index]
            near, _, far, _ = shares.get(id(shard), (1.0, 1.0, 1.0, 1.0))
            served[ranks[0]] += near * values, far * values, ids
    flows = traffic(task, units.fixed)
    sets = sets_of(task, units.fixed) | {
        set_of("all_to_all", task.table_by_name[name].pooled) for free in units.free for name in free.tables
    }
    return Pieces(
        units=units,
        encoder=encoder,
        added=costs.added,
        bytes=costs.bytes,
        dims=dims,
        served=np.ascontiguousarray(costs.served),
        unit=unit,
        forbidden=~beside_fixed(task, units),
        rivals=rivals_of(task, [unit.tables for unit in units.free]),
        head=pricing.head,
        memory=np.array(topology.memory_bytes, dtype=np.int64),
        links=LinkFacts.of(task),
        apart=np.stack([flows.forward.apart, flows.backward.apart], axis=1),
        waits=float(set_ms(task)[sorted(sets)].sum()),
        sums=sums,
        counts=counts,
        fixed_served=served,
        fixed_dims=columns,
        used=memory_account(task, units.fixed).total,
        occupied=occupied,
    )


@dataclass(frozen=True)
class Score:
    """The score of placements, in ticks: the embedding cost (the largest sum over a device's four phases), or the step time.

    Attributes:
        embedding: whether it is the embedding cost.
        networks: they price the all-to-alls of the embedding cost; None for the link model.
        batch_size: samples a step over all devices.
    """

    embedding: bool
    networks: CommunicationNetworks | None = None
    batch_size: int = 0

    @classmethod
    def of(cls, task: Task, cost_model: CostModel, *, embedding: bool) -> Score:
        """The score of a task's placements, by the cost model's networks if it has them and the task communicates."""
        networks = cost_model.communication
        by_networks = embedding and task.topology.devices > 1 and networks is not None
        return cls(embedding, networks, task.batch_size) if by_networks else cls(embedding)

    def __call__(self, pieces: Pieces, state: Ints, device: Ints) -> float:
        """Ticks of one placement `(n,)` of a state `(n,)`."""
        if self.networks is None:
            return link_ticks(pieces.native, state, device, self.embedding)
        return float(self._by_networks(self.networks, pieces, state, device[None])[0])

    def best_of_grid(self, pieces: Pieces, state: Ints, limits: Ints) -> tuple[float, Ints]:
        """Ticks and ranks of a state's best placement over the grid of limits `(M,)`; infinite ticks if there is none."""
        if self.networks is None:
            return best_by_links(pieces.native, state, limits, self.embedding)
        placements = grid_placements(pieces.native, state, limits)
        if not len(placements):
            return float("inf"), np.zeros(0, dtype=np.int64)
        ticks = self._by_networks(self.networks, pieces, state, placements)
        chosen = int(np.flatnonzero(ticks == ticks.min())[-1])  # the lowest limit among equals
        return float(ticks[chosen]), placements[chosen]

    def _by_networks(self, networks: CommunicationNetworks, pieces: Pieces, state: Ints, placements: Ints) -> Floats:
        """`(k,)` ticks of `(k, n)` placements."""
        costs = networks.embedding_costs(*placement_times(pieces.native, state, placements), self.batch_size)
        ticks: Floats = np.rint(costs.max(axis=-1) * TICKS)
        return ticks


@dataclass
class Beam:
    """One run of the beam search.

    Attributes:
        strategy: sets the width and depth of the beam, and the threads that call `inner`.
        cuts: which rows are whole, and their halves.
        inner: returns the score and the ranks of a state's best placement.
        deadline: `time.monotonic()` at which to stop; None for no limit.
        best: the best placement so far; None before the first.
    """

    strategy: NeuroShard
    cuts: Cuts
    inner: Callable[[Ints], tuple[float, Ints]]
    deadline: float | None
    best: Placed | None = None
    _placements: list[Placed | None] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)

    @property
    def _threads(self) -> int:
        return self.strategy.threads or len(os.sched_getaffinity(0))

    def search(self) -> Placed:
        """Find the best placement of all states seen; on Ctrl-C and at the deadline, of those seen until then.

        Raises:
            KeyboardInterrupt: Ctrl-C before any placement was found.
        """
        try:
            with ThreadPoolExecutor(max(1, self._threads - 1)) as pool:
                try:
                    self._search(pool)
                finally:
                    self._stop.set()
        except KeyboardInterrupt:
            self._keep_best()
            if self.best is None or np.isinf(self.best.ticks):
                raise
        assert self.best is not None
        return self.best

    def _search(self, pool: Executor) -> None:
        kept = [self._place(self.cuts.whole)]  # even if the deadline has passed
        self.best = kept[0]
        for _ in range(self.strategy.most_splits):
            states: dict[bytes, Ints] = {}  # one inner search for each different set of pieces
            for parent in kept:
                for row in candidates(self.cuts, parent.state, self.strategy.tables_tried):
                    child = halved(self.cuts, parent.state, int(row))
                    states.setdefault(child.tobytes(), child)
            placed = self._place_all(pool, list(states.values()))
            if self._late() or not placed:
                return
            kept = sorted(placed, key=lambda each: each.ticks)[: self.strategy.beam_width]

    def _place_all(self, pool: Executor, states: Sequence[Ints]) -> list[Placed]:
        """The placements of the states, in their order; fewer if time runs out."""
        placements = self._placements = [None] * len(states)
        todo = iter(range(len(states)))

        def work() -> None:
            for index in todo:
                if self._late():
                    return
                placements[index] = self._place(states[index])

        helpers = [pool.submit(work) for _ in range(self._threads - 1)]
        work()
        for helper in helpers:
            helper.result()
        return self._keep_best()

    def _keep_best(self) -> list[Placed]:
        """Update `best`, the first counting among equals, and return the placements found in this step."""
        placed = [each for each in self._placements if each is not None]
        for each in placed:
            if self.best is None or each.ticks < self.best.ticks:
                self.best = each
        return placed

    def _place(self, state: Ints) -> Placed:
        ticks, device = self.inner(state)
        return Placed(ticks, state, device)

    def _late(self) -> bool:
        return self._stop.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)


def candidates(cuts: Cuts, state: Ints, tried: int) -> Ints:
    """Rows of the state to halve, sorted: those of the `tried` largest by cost and by size that can be halved."""
    by_size = state[np.argsort(cuts.size_rank[state], kind="stable")[:tried]]
    rows = np.unique(np.concatenate([state[:tried], by_size]))
    rows = rows[cuts.half[rows] >= 0]
    full = [cuts.most[row] <= np.count_nonzero(cuts.table[state] == cuts.table[row]) for row in rows]
    kept: Ints = rows[~np.array(full, dtype=bool)]
    return kept


def halved(cuts: Cuts, state: Ints, row: int) -> Ints:
    """The state with one piece of this row halved."""
    rest = np.delete(state, np.searchsorted(state, row))
    child: Ints = np.sort(np.append(rest, [cuts.half[row]] * 2))
    return child


@dataclass(frozen=True)
class NeuroShard:
    """Beam over column splits, greedy on a grid of dim bounds.

    Attributes:
        tables_tried: N, the number of pieces by size, and by cost, that a step tries to halve.
        beam_width: K, splits that go on to the next step.
        most_splits: L, steps; cuts of tables that fit no device come before the steps and are not counted.
        grid: M, number of dim bounds.
        widest_bound: the largest dim bound; the smallest is 1.
        score: the objective: "embedding", the largest sum of a device's four phases, as published; or "step".
        free_cuts: cut tables that fit no device before the beam; the paper does not, and finds no plan if L halvings are not enough.
        threads: threads to search with; None for one a core. The plan is the same.
        name: name of the strategy.
    """

    tables_tried: int = 10
    beam_width: int = 3
    most_splits: int = 10
    grid: int = 11
    widest_bound: float = 1.5
    score: Literal["embedding", "step"] = "embedding"
    free_cuts: bool = True
    threads: int | None = None
    name: str = field(default="neuroshard")

    def __post_init__(self) -> None:
        check_whole(self, tables_tried=1, beam_width=1, most_splits=0, grid=1, threads=1)
        check_number(self, "widest_bound", 1)
        if self.score not in ("embedding", "step"):
            raise InvalidInput(f"neuroshard: score is {self.score!r}, must be 'embedding' or 'step'")

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search without randomness; the seed is only recorded. At the deadline and on Ctrl-C the best plan so far is returned."""
        units = take_apart(task, cut_large=self.free_cuts)
        PartialPlan(task, units)  # raises if the fixed shards alone break a rule
        if not units.free:
            return Plan(task, units.fixed, self.name, seed)
        pieces, cuts = make_pieces(task, units, cost_model)
        judge = Score.of(task, cost_model, embedding=self.score == "embedding")
        limits = self._limits(pieces, cuts.whole)
        placed = Beam(self, cuts, lambda state: judge.best_of_grid(pieces, state, limits), deadline).search()
        if np.isinf(placed.ticks):
            raise _nowhere(pieces, cuts.whole)
        return Plan(task, shards_of(pieces, placed, judge), self.name, seed)

    def _limits(self, pieces: Pieces, state: Ints) -> Ints:
        """`(M,)` most columns on a device, ascending; the mean is that of all pieces and fixed shards over all devices."""
        mean = (pieces.dims[state].sum() + pieces.fixed_dims.sum()) / pieces.memory.size
        bounds = np.linspace(1.0, self.widest_bound, self.grid) if self.grid > 1 else np.array([self.widest_bound])
        limits: Ints = np.floor(bounds * mean + 1e-6).astype(np.int64)  # a sum that is just the limit stays within
        return limits


def _nowhere(pieces: Pieces, state: Ints) -> InfeasibleTask:
    """The error that names the first whole piece for which the greedy without a bound finds no device."""
    placed, _, _ = greedy(pieces.native, state, NO_LIMIT)
    row = state[placed]
    names, need = ", ".join(pieces.units.free[pieces.unit[row]].tables), format_bytes(int(pieces.bytes[row]))
    return InfeasibleTask(
        f"no device is left for table '{names}', which needs {need} beside the tables placed before it, and no split that was tried makes "
        "room: allow column_wise or row_wise for it or for other tables, or use more devices or memory"
    )


def shards_of(pieces: Pieces, placed: Placed, score: Callable[[Pieces, Ints, Ints], float]) -> list[Shard]:
    """The shards of a placement; pieces of one table on one device are joined if that does not raise the score.

    The pieces of a unit take its columns in the order of their ranks; on one rank the widest comes first.

    Args:
        pieces: the arrays of the search.
        placed: the placement.
        score: score of a placement, from the arrays, the rows and their ranks.
    """
    order = np.lexsort((-pieces.dims[placed.state], placed.device, pieces.unit[placed.state]))
    state, device = placed.state[order], placed.device[order]
    groups = [list(group) for _, group in groupby(range(state.size), lambda i: (pieces.unit[state[i]], device[i]))]
    several = [group for group in groups if len(group) > 1]
    pieces, joined = _with_joined(pieces, state, several)
    ticks = placed.ticks
    gone = np.zeros(state.size, dtype=bool)
    for group, row in zip(several, joined, strict=True):
        rows, left = state.copy(), gone.copy()
        rows[group[0]] = row
        left[group[1:]] = True
        now = score(pieces, rows[~left], device[~left])
        if now <= ticks:
            ticks, state, gone = now, rows, left
    return list(pieces.units.fixed) + _shards(pieces, state[~gone], device[~gone])


def _with_joined(pieces: Pieces, state: Ints, groups: list[list[int]]) -> tuple[Pieces, range]:
    """The arrays with one more row for each group, its pieces joined; and these rows."""
    if not groups:
        return pieces, range(0)
    owners = [int(pieces.unit[state[group[0]]]) for group in groups]
    dims = [int(pieces.dims[state[group]].sum()) for group in groups]
    joins = [[_columns(pieces.units.free[owner], 0, dim)] for owner, dim in zip(owners, dims, strict=True)]
    (joined, _), (devices, before) = pieces.encoder.encode(joins), pieces.counts.shape
    # Sequences of a width that no piece had are in separate calls.
    new = devices, len(pieces.encoder.calls) - before
    added, memory, served = PieceCosts(pieces.added, pieces.bytes, pieces.served).then(joined)
    longer = replace(
        pieces,
        added=added,
        bytes=memory,
        dims=np.append(pieces.dims, dims),
        served=served,
        unit=np.append(pieces.unit, owners),
        sums=np.concatenate([pieces.sums, np.tile(pieces.head.base, (*new, 1))], axis=1),
        counts=np.concatenate([pieces.counts, np.zeros(new, dtype=np.int64)], axis=1),
    )
    return longer, range(pieces.unit.size, longer.unit.size)


def _shards(pieces: Pieces, state: Ints, device: Ints) -> list[Shard]:
    """The shards of pieces sorted by unit."""
    shards: list[Shard] = []
    begins = [0] * len(pieces.units.free)
    for row, rank in zip(state.tolist(), device.tolist(), strict=True):
        index, dim = int(pieces.unit[row]), int(pieces.dims[row])
        unit = pieces.units.free[index]
        if len(unit.blocks) > 1:
            shards += unit.on(rank)
        else:
            shards.append(replace(_columns(unit, begins[index], dim), devices=(rank,)))
        begins[index] += dim
    return shards


def _columns(unit: Unit, start: int, dim: int) -> Shard:
    """`dim` columns from `start` on, of a unit that is one block."""
    (block,) = unit.blocks
    left = block.columns[0] + start
    return replace(block, columns=(left, left + dim))
