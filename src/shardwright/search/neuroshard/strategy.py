"""NeuroShard's outer search: a beam over column splits, the inner search on all cores.

NeuroShard's search ("Pre-train and Search", MLSys 2023) as in the paper, and as in its public code where the paper leaves a rule open.

Outside, a beam over column splits. A step halves one piece. It tries the N largest pieces by size and the N largest by predicted cost, if
their half is divisible by 4. The best K of all splits go on. After at most L steps the best placement seen is the answer.

Inside, a grid of M bounds s from 1 to 1.5 on the devices' dims. For each bound, a greedy takes the pieces by predicted single cost, longest
first. A piece goes to the device with the lowest predicted FUSED cost that has memory left and stays within s × the mean sum of dims. That
cost is of what the device holds before the piece comes, as in the public code. The placement with the lowest score counts.

By default, the score of a placement (option `score`) is the published embedding cost: the largest, over devices, of kernels + forward
all-to-all + backward all-to-all. A cost model with NeuroShard's communication networks prices the all-to-alls as in the paper, where a
device starts the forward one late by what its kernels + backward all-to-all take longer than the fastest device's. Other cost models leave
communication to the link model, which has no start delays. The score "step" is `step_ms` instead: the sum over the four phases of the
maximum over devices, for a step in which all devices wait for each other at every exchange.

A table that fits no device is cut before the beam begins, into as few pieces as possible (not only halves). The L steps do not count these
cuts (`search/units.py`). The paper has no such cuts; the option `free_cuts=False` leaves them out.

Other differences from the paper: constraints are kept (colocated tables are one piece; blocks that the constraints settle count in every
sum); a task that no bound of the grid can place is tried without a bound, as the paper's tasks are placed rather than failed; sets of
pieces reached by different splits count once in the beam; of states that cannot be placed the first come first; pieces of one table that
end on one device are joined if that does not raise the score.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Literal, Protocol, TypeAlias

import numpy as np

from shardwright._engine import TICKS, best_by_links, greedy, grid_placements, placement_times
from shardwright.arrays import Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.neuroshard.pieces import (
    NO_LIMIT,
    Cuts,
    Pieces,
    Placed,
    embedding_ticks,
    make_pieces,
    shards_of,
    step_ticks,
)
from shardwright.search.strategy import check_number, check_whole, why_not_counted
from shardwright.search.units import PartialPlan, Units, take_apart
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task
from shardwright.task.units import format_bytes

Inner: TypeAlias = Callable[[Ints], tuple[float, Ints]]


@dataclass(frozen=True)
class Width:
    """How wide and deep the beam is.

    Attributes:
        tables_tried: N, how many pieces by size, and by cost, a step tries to halve.
        kept: K, states that go on to the next step.
        steps: L, most splits.
    """

    tables_tried: int
    kept: int
    steps: int


@dataclass
class Beam:
    """One run of the beam search.

    Attributes:
        cuts: which rows are whole, and their halves.
        inner: returns the score and the ranks of a state's best placement; called from several threads.
        width: how wide and deep the beam is.
        threads: how many threads call `inner`.
        deadline: `time.monotonic()` at which to stop; None for no limit.
        best: the best placement so far; None before the first.
    """

    cuts: Cuts
    inner: Inner
    width: Width
    threads: int
    deadline: float | None
    best: Placed | None = None
    _found: list[Placed | None] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)

    def search(self) -> Placed:
        """Find the best placement of all states seen; on Ctrl-C and at the deadline, of those seen until then.

        Raises:
            KeyboardInterrupt: Ctrl-C before any placement was found.
        """
        try:
            with ThreadPoolExecutor(max(1, self.threads - 1)) as pool:
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
        for _ in range(self.width.steps):
            states: dict[bytes, Ints] = {}  # one inner search for each different set of pieces
            for parent in kept:
                for row in candidates(self.cuts, parent.state, self.width.tables_tried):
                    child = halved(self.cuts, parent.state, int(row))
                    states.setdefault(child.tobytes(), child)
            placed = self._place_all(pool, list(states.values()))
            if self._late() or not placed:
                return
            kept = sorted(placed, key=lambda each: each.ticks)[: self.width.kept]

    def _place_all(self, pool: Executor, states: Sequence[Ints]) -> list[Placed]:
        """The placements of the states, in their order; fewer if time runs out."""
        found = self._found = [None] * len(states)
        todo = iter(range(len(states)))

        def work() -> None:
            for index in todo:
                if self._late():
                    return
                found[index] = self._place(states[index])

        helpers = [pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for helper in helpers:
            helper.result()
        return self._keep_best()

    def _keep_best(self) -> list[Placed]:
        """Update `best`, the first counting among equals, and return the placements found in this step."""
        placed = [each for each in self._found if each is not None]
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


class Communication(Protocol):
    """The two communication networks; `shardwright.cost.neuroshard.CommunicationNetworks` has them."""

    def forward_ms(self, dims: Floats, delays: Floats, batch_size: int) -> Floats:
        """`(k, d)` ms of the forward all-to-all from `(k, d)` sums of dims and `(k, d)` ms that each device starts late."""
        ...

    def backward_ms(self, dims: Floats, batch_size: int) -> Floats:
        """`(k, d)` ms of the backward all-to-all from `(k, d)` sums of dims."""
        ...


@dataclass(frozen=True)
class NetworkScore:
    """The paper's score of placements: the largest, over devices, of kernels + forward + backward all-to-all.

    Attributes:
        networks: the communication networks.
        batch_size: samples a step over all devices.
    """

    networks: Communication
    batch_size: int

    def totals(self, times: Floats, dims: Ints) -> Floats:
        """`(k, d)` kernels + both all-to-alls, in ms, of each device in k placements.

        A device starts the forward all-to-all late by what its kernels + backward all-to-all take longer than the fastest device's.

        Args:
            times: `(k, d, 2)` forward and backward kernel ms.
            dims: `(k, d)` columns on each device.
        """
        columns = dims.astype(np.float64)
        busy: Floats = times.sum(axis=-1) + self.networks.backward_ms(columns, self.batch_size)
        delays = busy - busy.min(axis=-1, keepdims=True)
        return busy + self.networks.forward_ms(columns, delays, self.batch_size)

    def __call__(self, pieces: Pieces, state: Ints, device: Ints) -> float:
        """Ticks of one placement `(n,)`."""
        return float(self._ticks(pieces, state, device[None])[0])

    def best_of_grid(self, pieces: Pieces, state: Ints, limits: Ints) -> tuple[float, Ints]:
        """Ticks and ranks of the best placement over the grid, as `_engine.best_by_links`."""
        found = grid_placements(pieces.native, state, limits)
        if not len(found):
            return float("inf"), np.zeros(0, dtype=np.int64)
        ticks = self._ticks(pieces, state, found)
        chosen = int(np.flatnonzero(ticks == ticks.min())[-1])  # the lowest limit among equals
        return float(ticks[chosen]), found[chosen]

    def _ticks(self, pieces: Pieces, state: Ints, found: Ints) -> Floats:
        """`(k,)` ticks of `(k, n)` placements."""
        ticks: Floats = np.rint(self.totals(*placement_times(pieces.native, state, found)).max(axis=-1) * TICKS)
        return ticks


def network_score(task: Task, cost_model: CostModel) -> NetworkScore | None:
    """The score by a cost model's communication networks; None if it has none, or if nothing is communicated."""
    networks: Communication | None = getattr(cost_model, "communication", None)
    return NetworkScore(networks, task.batch_size) if networks and task.topology.devices > 1 else None


@dataclass(frozen=True)
class NeuroShard:
    """Beam over column splits, greedy on a grid of dim bounds.

    Attributes:
        tables_tried: N, how many pieces by size, and by cost, a step tries to halve.
        beam_width: K, splits that go on to the next step.
        most_splits: L, steps; cuts of tables that fit no device come before the steps and are not counted.
        grid: M, number of dim bounds.
        widest_bound: the largest dim bound; the smallest is 1.
        score: what a placement is judged by: "embedding", the largest sum of a device's four phases, as published; or "step".
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
        """Search; nothing is random, the seed is only noted. At the deadline and on Ctrl-C the best plan so far is returned."""
        units = take_apart(task, cut_large=self.free_cuts)
        PartialPlan(task, units)  # raises if the fixed shards alone break a rule
        if not units.free:
            return Plan(task, units.fixed, self.name, seed)
        pieces, cuts = make_pieces(task, units, cost_model)
        embedding = self.score == "embedding"
        by_networks = network_score(task, cost_model) if embedding else None
        limits = self._limits(pieces, cuts.whole)
        width = Width(self.tables_tried, self.beam_width, self.most_splits)
        threads = self.threads or len(os.sched_getaffinity(0))

        def best_of_grid(state: Ints) -> tuple[float, Ints]:
            if by_networks:
                return by_networks.best_of_grid(pieces, state, limits)
            return best_by_links(pieces.native, state, limits, embedding)

        found = Beam(cuts, best_of_grid, width, threads, deadline).search()
        if np.isinf(found.ticks):
            raise _nowhere(units, pieces, cuts.whole)
        judge = by_networks or (embedding_ticks if embedding else step_ticks)
        shards = shards_of(task, units, pieces, cuts.calls, found, cost_model, judge)
        return Plan(task, shards, self.name, seed)

    def _limits(self, pieces: Pieces, state: Ints) -> Ints:
        """`(M,)` most columns on a device, ascending; the mean is that of all pieces and fixed shards over all devices."""
        mean = (pieces.dims[state].sum() + pieces.fixed_dims.sum()) / pieces.memory.size
        bounds = np.linspace(1.0, self.widest_bound, self.grid) if self.grid > 1 else np.array([self.widest_bound])
        limits: Ints = np.floor(bounds * mean + 1e-6).astype(np.int64)  # a sum that is just the limit stays within
        return limits


def _nowhere(units: Units, pieces: Pieces, state: Ints) -> InfeasibleTask:
    """The error that names the first whole piece for which the greedy without a bound finds no device."""
    placed, _, _ = greedy(pieces.native, state, NO_LIMIT)
    row = state[placed]
    names, need = ", ".join(units.free[pieces.unit[row]].tables), format_bytes(int(pieces.bytes[row]))
    return InfeasibleTask(
        f"no device is left for table '{names}', which needs {need} beside the tables placed before it, and no split that was tried makes "
        "room: allow column_wise or row_wise for it or for other tables, or use more devices or memory"
    )
