"""One search: its inputs (catalog, bound, arrays of the engine), its descents and kicks, and the best solution so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from shardwright._engine import Solution, Stop, cheapest_widths
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.blocks import Added, check_finite
from shardwright.cost.collectives import set_of
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.prices import Prices, first_prices, link_prices, piece_links, served_price, tangents
from shardwright.errors import InfeasibleTask
from shardwright.search.bound import Bound, BoundProof
from shardwright.search.engine.catalog import NOTHING, Assembly, Catalog, assemble, make_catalog
from shardwright.search.engine.plans import resumed, shards_of, spread_fits
from shardwright.search.units import remedy_for
from shardwright.sharding.diff import Carried, carry
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import ANY
from shardwright.task.task import Task

_TIGHTENINGS = 4


@dataclass(eq=False)
class Prepared:
    """A task made ready for a search.

    Attributes:
        assembly: the arrays of the engine.
        piece_shares: `(pieces,)` a piece's time over the mean device's in a phase; the largest over the phases.
        spread_shares: `(spreads,)` the same of a spread's part on one device.
        spread_price: `(spreads,)` ms times devices of each spread.
        price_ms: rough step time of a good plan: the bound, or an even share of the cost of all items alone.
    """

    assembly: Assembly
    piece_shares: Floats
    spread_shares: Floats
    spread_price: Floats
    price_ms: float
    _proof: BoundProof | None = field(repr=False)
    _bound: Bound | None = field(repr=False)
    _known_ms: float = field(default=np.inf, init=False, repr=False)  # the fastest plan that tightened the bound
    _refined_by_ms: float = field(default=np.inf, init=False, repr=False)

    @property
    def task(self) -> Task:
        """The task."""
        return self.assembly.task

    @property
    def bound_ms(self) -> float:
        """The bound, or 0 if the cost model is not convex."""
        return self._bound.ms if self._bound else 0.0

    @property
    def gates(self) -> int:
        """Number of gates of a call."""
        return self.assembly.arrays.head.gates

    @property
    def busy_devices(self) -> Floats:
        """`(tables,)` devices that each table keeps busy in its cheapest way at the prices of the bound; 0 if there is no bound."""
        price = self._bound.choice.price if self._bound else np.zeros(len(self.task.tables))
        return np.maximum(price, 0.0) * self.task.topology.devices / max(float(price.sum()), 1e-300)

    def tighten(self, step_ms: float, *, late: bool = False) -> float | None:
        """Tighten the bound, given a plan of this step time, and return it; None if there is no bound.

        Args:
            step_ms: step time of a plan.
            late: whether time is up; the bound then stays as it is.
        """
        if self._proof is None or self._bound is None:
            return None
        step_ms = self._known_ms = min(self._known_ms, step_ms)
        for _ in range(0 if late else _TIGHTENINGS):  # striking out pieces may make further ones impossible
            before = self._bound.ms
            self._bound = self._proof.tightened(self._bound, step_ms)
            if self._bound.ms <= before * (1 + 1e-4):
                break
        return self._bound.ms

    def cases(self, step_ms: float, late: Callable[[], bool]) -> list[Case]:
        """Selections of sets of collectives whose plans may take less than `step_ms`, most promising first, as far as time allows."""
        if self._proof is None or self._bound is None:
            return []
        copies = frozenset(set_of("data_parallel", table.pooled) for table in self.task.tables)
        replicated = [Case(copies, self._bound.prices)] if self._proof.replicated_ms < step_ms else []
        bounds = self._proof.by_sets(self._bound, step_ms, late)
        return replicated + [Case(self._proof.sets[case], bound.prices) for case, bound in bounds]

    def alone(self, deadline: float | None) -> Case | None:
        """All sets of collectives, at the prices of a step without dense layers; None if these hide nothing or there is no bound.

        Args:
            deadline: `time.monotonic()` after which the prices are not improved any more; None for no limit.
        """
        prices = self._proof.prices_alone(deadline) if self._proof else None
        return Case(frozenset().union(*self._proof.sets), prices) if self._proof and prices else None

    def refined(self, step_ms: float, late: Callable[[], bool]) -> float | None:
        """As `tighten`, by kernel time and by the number of devices that hold a hot table; see `search.bound`.

        A plan that is no faster than one before proves nothing more.

        Args:
            step_ms: step time of a plan.
            late: whether time is up.
        """
        if self._proof is None or self._bound is None:
            return None
        step_ms = self._known_ms = min(self._known_ms, step_ms)
        if step_ms < self._refined_by_ms:
            self._bound = self._proof.refined(self._bound, step_ms, late)
            if not late():
                self._refined_by_ms = step_ms
        return self._bound.ms

    def shards(self, solution: Solution | None) -> list[Shard]:
        """The shards of a full solution."""
        assert solution is not None
        return shards_of(self.assembly, solution)

    def name_of(self, item: int) -> str:
        """The tables of an item."""
        return ", ".join(table.name for table in self.assembly.tables_of(item))

    def remedy_of(self, item: int) -> str:
        """A remedy that would give an item room."""
        limits = [self.task.constraints.of(table.name) for table in self.assembly.tables_of(item)]
        remedy = remedy_for(next((limit for limit in limits if limit != ANY), ANY), self.task.topology.hosts)
        shared = "give them sharding_types that they share, since colocated tables lie on the same devices; or "
        return (shared if len(limits) > 1 else "") + remedy


def prepare(task: Task, cost_model: CostModel, deadline: float | None = None) -> Prepared:
    """Make a task ready for a search.

    Args:
        task: the task.
        cost_model: prices its shards.
        deadline: `time.monotonic()` after which the bound is not tightened any more; None for no limit.

    Raises:
        InfeasibleTask: constraints and the memory of single devices leave no way for a table.
        ShardwrightError: the cost model predicted a time that is not finite.
    """
    catalog = make_catalog(task, cost_model)
    check_finite(catalog.forms.costs.vectors, cost_model)
    proof = BoundProof(catalog, cost_model) if cost_model.pricing.convex else None
    bound = proof.solve(deadline=deadline) if proof else None
    if bound is not None and not np.isfinite(bound.ms):
        raise InfeasibleTask(_no_way(task, bound))
    prices = bound.prices if bound else _prices_of_whole_tables(catalog, cost_model)
    assembly = assemble(catalog, cost_model, prices.vector, served_price(task, prices), prices.links.sum(axis=1))
    whole = assembly.arrays.price[assembly.whole]
    rough = max(float(np.maximum(whole, 0.0).sum()) / task.topology.devices, 1e-9)
    return Prepared(
        assembly,
        *_peak_shares(assembly, cost_model.pricing, prices),
        _prices(assembly, prices)[1],
        bound.ms if bound and bound.ms > 0 else rough,
        proof,
        bound,
    )


def _prices(assembly: Assembly, prices: Prices) -> tuple[Floats, Floats]:
    """Ms times devices of pieces, infinite if they are not allowed, and of spreads."""
    arrays, served = assembly.arrays, served_price(assembly.task, prices)
    pieces = arrays.added.priced(prices.vector)
    pieces += arrays.served @ [served[:2].sum(), served[2]]
    each = arrays.spreads.added.priced(prices.vector) + arrays.spreads.served @ served
    each += arrays.spreads.apart @ prices.links[:2].sum(axis=1)
    devices = np.array([ways[0].devices.size for ways in assembly.dealt], dtype=np.float64)
    return np.where(arrays.legal, pieces, np.inf), devices * each


def _peak_shares(assembly: Assembly, pricing: Pricing, prices: Prices) -> tuple[Floats, Floats]:
    """Shares of pieces and spreads, if every table takes its cheapest form."""
    arrays, topology, (by_kernel, _) = assembly.arrays, assembly.task.topology, tangents(pricing, prices)
    of_links = link_prices(assembly.task, prices)

    def by_phase(added: Added, links: Floats) -> list[Floats]:
        return [*(added.priced(of_phase) for of_phase in by_kernel), *(links @ of_links.T).T]

    _, uses = cheapest_widths(arrays.first, np.where(arrays.legal, arrays.price, np.inf))
    in_columns = int(arrays.first[arrays.most.size])
    pieces, spreads = np.zeros(uses.size), np.zeros(arrays.spreads.bytes.size)
    of_pieces = by_phase(arrays.added, piece_links(arrays.served))
    of_spreads = by_phase(arrays.spreads.added, np.hstack([arrays.spreads.served, arrays.spreads.apart]))
    for ms, spread_ms in zip(of_pieces, of_spreads, strict=True):
        goal = float(ms[:in_columns] @ uses[:in_columns]) / topology.devices
        if goal > 0:
            pieces, spreads = np.maximum(pieces, ms / goal), np.maximum(spreads, spread_ms / goal)
    return pieces, spreads


def _prices_of_whole_tables(catalog: Catalog, cost_model: CostModel) -> Prices:
    """Prices for cost models without a bound: slopes of the head if all tables are whole and shared out evenly."""
    pricing, costs, tables = cost_model.pricing, catalog.forms.costs, len(catalog.task.tables)
    whole = catalog.forms.first[1 : tables + 1] - 1
    sums = np.zeros((catalog.tables.calls, costs.vectors.shape[1]))
    np.add.at(sums, costs.call[whole], costs.vectors[whole] / catalog.task.topology.devices)
    prices = first_prices(catalog.task, pricing.mix, catalog.tables.calls)
    prices.vector[:, :-2] = pricing.mix.sum(axis=0) * (sums[:, :-2] + pricing.hidden_bias > 0)
    return prices


def _no_way(task: Task, bound: Bound) -> str:
    table = task.tables[int(np.argmax(np.isinf(bound.choice.price)))]
    return (
        f"no allowed way to shard table '{table.name}' ({table.rows} rows, dim {table.dim}) fits its devices: "
        f"{remedy_for(task.constraints.of(table.name), task.topology.hosts)}"
    )


class Case(NamedTuple):
    """The plans that need some sets of collectives, and prices for them."""

    sets: frozenset[int]
    prices: Prices


@dataclass(frozen=True)
class Start:
    """Rules for a first solution.

    Attributes:
        limit: largest peak share of a piece or a spread; an item that cannot meet it takes its way with the least.
        memory_weight: ms that a byte of memory counts for in the order in which pieces are placed.
        spreading: factor on the prices of spreads; infinite for none.
        memory_share: share of the largest device's memory that a piece may take, with the same exception.
        case: sets of collectives, and prices; None for all sets at the prices of the bound.
        together: whether pieces that open gates of calls are placed first, on devices whose gates are open, as far as these stay near
            balance.
    """

    limit: float
    memory_weight: float = 0.0
    spreading: float = 1.0
    memory_share: float = 1.0
    case: Case | None = None
    together: bool = False


def start(prepared: Prepared, how: Start) -> tuple[Solution, int]:
    """Choose a way for every item by price, and place the pieces greedily.

    Args:
        prepared: the task.
        how: limits and order.

    Returns:
        The solution, and an item that found no device, or -1.
    """
    assembly, arrays = prepared.assembly, prepared.assembly.arrays
    solution = Solution(assembly.problem)
    price, spread_price = np.where(arrays.legal, arrays.price, np.inf), prepared.spread_price * how.spreading
    if how.case is not None:
        price, spread_price = _within(assembly, how.case)
        spread_price *= how.spreading
    room = how.memory_share * float(arrays.memory.max())
    load = np.maximum(prepared.piece_shares / how.limit, arrays.bytes / room)
    spread_load = np.maximum(prepared.spread_shares / how.limit, arrays.spreads.bytes / room)
    smallest = np.minimum.reduceat(np.where(np.isfinite(price), load, np.inf), arrays.first[:-1])
    within = load <= np.repeat(np.maximum(1.0, smallest), np.diff(arrays.first))
    of_form, uses = cheapest_widths(arrays.first, np.where(within, price, np.inf))
    # Ways that meet the limits compete by price. The others come behind them, by how far they miss the limits.
    beyond = 1e6 * (1.0 + _largest(of_form) + _largest(spread_price))
    rank = np.where(np.isfinite(of_form) & (smallest > 1.0), beyond * (1.0 + smallest), of_form)
    spread_rank = np.where(spread_load > 1.0, beyond * (1.0 + spread_load), spread_price)
    stuck = solution.choose(rank, uses, spread_rank)
    if stuck < 0:
        piece = solution.place_greedily(how.memory_weight, how.together)
        stuck = int(arrays.item[solution.form[piece]]) if piece >= 0 else NOTHING
    if stuck < 0:
        solution.join()
    return solution, stuck


def _within(assembly: Assembly, case: Case) -> tuple[Floats, Floats]:
    """The prices of pieces and spreads in a case; ways beyond its sets are infinite, unless an item has no other."""
    arrays, items = assembly.arrays, assembly.arrays.most.size
    price, spread_price = _prices(assembly, case.prices)
    item, outside = np.repeat(arrays.item, np.diff(arrays.first)), ~sum(1 << kind for kind in case.sets)
    able = (arrays.sets & outside == 0)[item] & np.isfinite(price)
    spread_able = arrays.spreads.sets & outside == 0
    some = np.isin(np.arange(items), np.concatenate([item[able], assembly.spread_item[spread_able]]))
    return (
        np.where(able | ~some[item], price, np.inf),
        np.where(spread_able | ~some[assembly.spread_item], spread_price, np.inf),
    )


def _largest(values: Floats) -> float:
    """The largest finite value, or 0."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def filled(assembly: Assembly) -> tuple[Solution, int]:
    """Make a first solution for tight memory: fill devices up.

    Items that cannot be cut come first, then the others, large ones first. Each lies whole if a device has room, else in the widest pieces
    that fit. Even cuts would waste room: every block has buffers, and optimizer state for each of its rows, so that many narrow blocks take
    more memory than a few wide ones.

    Returns:
        The solution, and an item that found no room, or -1.
    """
    arrays, solution = assembly.arrays, Solution(assembly.problem)
    items = arrays.most.size
    size = arrays.bytes[assembly.whole]
    cuttable = (arrays.most > 1) & (
        (np.diff(arrays.first[: items + 1]) > 1) | (arrays.next_form[:items] != np.arange(items))
    )
    for waiting, item in zip(range(items - 1, -1, -1), np.lexsort((-size, cuttable)).tolist(), strict=True):
        put = any(_put(assembly, solution, item, form, waiting) for form in assembly.forms_of(item))
        if not put and not _spread(assembly, solution, item):
            return solution, item
    return solution, NOTHING


def _put(assembly: Assembly, solution: Solution, item: int, form: int, waiting: int) -> bool:
    """Place an item in pieces of a form, the widest that find room; if they do not all find room, place nothing of it.

    Args:
        assembly: the search.
        solution: changed.
        item: the item.
        form: one of its forms.
        waiting: how many items come later; each has to find room for a piece.
    """
    arrays, begin, left = assembly.arrays, int(assembly.arrays.first[form]), assembly.units(form)
    sizes, legal = arrays.bytes[begin : begin + left], arrays.legal[begin : begin + left]
    room = np.where(_open(assembly, solution, item), arrays.memory - solution.used, -1)
    pieces = min(int(arrays.most[item]), solution.room - waiting)
    while left and pieces > 0:
        enough = np.flatnonzero(room >= sizes[left - 1])
        if legal[left - 1] and enough.size:
            width, device = left, int(enough[np.argmin(room[enough])])
        else:
            device = int(np.argmax(room))
            width = _widest(sizes, legal, left, int(room[device])) if pieces > 1 else 0
        if not width:
            break
        solution.place(solution.add(form, width), device)
        room[device] = -1
        left, pieces = left - width, pieces - 1
    if left:
        solution.clear(item)
    return not left


def _widest(sizes: Ints, legal: Bools, left: int, room: int) -> int:
    """Width of the widest piece that fits and leaves a rest that may be a piece too; 0 if there is none."""
    narrowest = int(np.argmax(legal)) + 1
    widths = np.arange(1, left)
    fits = legal[: left - 1] & (sizes[: left - 1] <= room) & (left - widths >= narrowest)
    return int(widths[fits][-1]) if fits.any() else 0


def _open(assembly: Assembly, solution: Solution, item: int) -> Bools:
    """`(devices,)` whether pinning and rivals let the item lie there."""
    arrays = assembly.arrays
    if not arrays.allowed.size and not arrays.rivals.size:
        return np.ones(arrays.memory.size, dtype=bool)
    return np.array([solution.may_lie(item, device) for device in range(arrays.memory.size)])


def _spread(assembly: Assembly, solution: Solution, item: int) -> bool:
    """Take the first spread of an item that fits; return whether there is one."""
    for spread in assembly.spreads_of(item):
        if spread_fits(assembly, solution, item, spread):
            solution.take_spread(item, spread)
            return True
    return False


_KICKS = (5, 50)  # fewest and most kicks in a row on one lane, before lanes are compared
_KICKED = 6_400  # devices × kicks of a lane: a kick takes longer with more devices
_NOTABLE = 5e-4  # share of the step time: only a gain of at least this keeps the search going
_PROMISING = 0.25  # share of the step time: further starts at most so far behind the best are improved
_BESIDE = Start(limit=0.5)  # how to cut items that an adopted plan does not settle
_NEAR = 0.05  # share of the step time: lanes begin at other solutions that are so near, half of them at the best with (or without) replicas
_SEVERAL = 4  # best solutions to begin at: kicks seldom lead from one to another
_DIFFERENT = 1e-4  # share of the step time by which these differ
_LOST = 0.02  # share of the step time: a lane so far behind the best continues from the best


class SearchSession:
    """A search under way. Its result does not depend on the number of threads, unless it runs out of time.

    If the assembly has a start plan, the search lowers the step time plus the price of the moves.

    Args:
        prepared: the task.
        pool: runs starts and kicks.
        deadline: `time.monotonic()` at which improving ends; None for no limit.
        local_search: whether starts are improved; False for ablations.
        share_limits: whether starts cut and spread items so that no piece takes more than a share of a device; False for ablations.

    Attributes:
        deadline: `time.monotonic()` at which improving ends; None for no limit.
        best: the best full solution so far; None before the first.
        best_ms: the best solution's step time.
        failed: starts so far in which an item found no device, except those that place wide pieces together.
    """

    def __init__(
        self,
        prepared: Prepared,
        pool: ThreadPoolExecutor,
        deadline: float | None = None,
        *,
        local_search: bool = True,
        share_limits: bool = True,
    ) -> None:
        self.prepared, self._assembly, self._pool = prepared, prepared.assembly, pool
        self._local_search, self._share_limits = local_search, share_limits
        self.deadline = deadline
        self._stop = Stop(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._lanes: dict[int, tuple[Solution, float]] = {}
        self._best_of: dict[bool, tuple[Solution, float]] = {}  # with replicas, and without
        self._several: list[tuple[Solution, float]] = []  # best first
        self.best: Solution | None = None
        self.best_ms = np.inf
        self.failed = 0

    @property
    def late(self) -> bool:
        """Whether the search has to end."""
        return self._stop.late

    @property
    def changes(self) -> dict[str, tuple[int, int]]:
        """How often each kind of change was tried, and taken; see `search.statistics`."""
        return self._stop.changes

    @property
    def priced(self) -> int:
        """How many changes were priced: a measure of the work so far that no machine's speed enters."""
        return sum(tried for tried, _ in self.changes.values())

    def stop(self) -> None:
        """End the search soon: threads at work stop at their next look at the clock."""
        self._stop.set()

    def start(self, starts: Sequence[Start]) -> int:
        """Run several starts at once, each placed and improved. If all fail, return an item that found no device, else -1."""
        outcomes = list(self._pool.map(self._started, starts))
        for how, (solutions, _) in zip(starts, outcomes, strict=True):
            for solution in solutions:
                self._keep(solution)
            self.failed += not solutions and not how.together
        return NOTHING if any(solutions for solutions, _ in outcomes) else outcomes[-1][1]

    def survey(self, starts: Sequence[Start]) -> None:
        """Run further starts: keep each as it is if it is the best, and improve it if it is not far behind."""
        made = self._pool.map(lambda how: None if self.late else start(self.prepared, how), starts)
        self._take_up([outcome[0] for outcome in made if outcome is not None and outcome[1] < 0])

    def adopt(self, plans: Sequence[Plan]) -> None:
        """As `survey`, with plans for the task instead of starts, as far as the search's pieces can express them."""
        taken = (None if self.late else self._adopted(carry(plan, self.prepared.task)) for plan in plans)
        self._take_up([solution for solution in taken if solution is not None])

    def resume(self, carried: Carried, *, improve: bool) -> bool:
        """Resume from the start plan, and improve it if wanted; return whether that was possible.

        Args:
            carried: the part of the plan that lies on the task's devices.
            improve: whether to improve the plan, or to keep it as it is.
        """
        solution = self._adopted(carried)
        if solution is None:
            return False
        self._keep(solution.copy())
        if improve:
            for improved in self._both_kinds(solution):
                self._keep(improved)
        return True

    def fill(self) -> int:
        """Run the start for tight memory and improve it; return an item that found no room, or -1."""
        solution, stuck = filled(self._assembly)
        if stuck < 0:
            self._improve(solution)
            self._keep(solution)
        return stuck

    def simplify(self, worse: float, cut_error: float = 0.0) -> None:
        """Make cut and spread items whole, cheap ones first, if the cost model's error exceeds the difference.

        Args:
            worse: share of the step time that all of these items together may add.
            cut_error: share of an item's time by which its cuts may be mispriced. The item may add this much, divided by the number of
                devices.
        """
        assert self.best is not None
        self.best.simplify(worse, cut_error, self._stop)
        self.best_ms = self.best.value()

    def kick(self, seed: Sequence[int], lanes: int) -> bool:
        """Run a few kicks in a row on each of some lanes; return whether the best solution improved by at least the threshold."""
        best, best_ms = self.best, self.best_ms
        assert best is not None
        for lane in range(lanes):
            if lane not in self._lanes:
                begin, begin_ms = self._beginning(lane, other_kind=2 * lane >= lanes)
                self._lanes[lane] = (begin.copy(), begin_ms)
            elif self._lanes[lane][1] > best_ms * (1 + _LOST):
                self._lanes[lane] = (best.copy(), best_ms)
        for solution in list(self._pool.map(lambda lane: self._kicks(lane, (*seed, lane)), range(lanes))):
            if solution is not None:
                self._keep(solution)
        return bool(self.best_ms < best_ms * (1 - _NOTABLE))

    def _beginning(self, lane: int, *, other_kind: bool) -> tuple[Solution, float]:
        """Where a lane begins: with `other_kind` at the best solution of the other kind, if there is one, else at one of the best few.

        If these are not near the best, it begins at the best.
        """
        assert self.best is not None
        best, places = (self.best, self.best_ms), self._several[lane : lane + 1]
        if other_kind:
            places = [self._best_of.get(not self._copied(self.best), best), *places]
        near = (place for place in places if place[1] <= self.best_ms * (1 + _NEAR))
        return next(near, best)

    def _kicks(self, lane: int, seed: Sequence[int]) -> Solution | None:
        """Kick a lane's solution; go on from better ones, on odd lanes also from slightly worse ones. Return the best seen, if better."""
        solution, ms = self._lanes[lane]
        fewest, most = _KICKS
        count = min(most, max(fewest, _KICKED // self._assembly.arrays.memory.size))
        best, ms = solution.kicks(ms, count, lane % 2 == 1, [number % 2**64 for number in seed], self._stop)
        self._lanes[lane] = (solution, ms)
        return best

    def _started(self, how: Start) -> tuple[list[Solution], int]:
        if not self._share_limits:
            how = replace(how, limit=np.inf, spreading=np.inf)
        solution, stuck = start(self.prepared, how)
        return (self._both_kinds(solution) if stuck < 0 else []), stuck

    def _both_kinds(self, solution: Solution) -> list[Solution]:
        """The improved solution, and the same without replicas: no single change leads from one to the other."""
        self._improve(solution)
        other = solution.without_copies(self._assembly.spread_copies, self._stop)
        return [solution] if other is None else [solution, other]

    def _copied(self, solution: Solution) -> bool:
        """Whether a solution replicates an item."""
        spreads = solution.spread_of[solution.spread_of >= 0]
        return bool(self._assembly.spread_copies[spreads].any())

    def _adopted(self, carried: Carried) -> Solution | None:
        """A plan as a full solution; items that the plan does not settle lie as in a start. None if that is impossible."""
        cold, _ = start(self.prepared, _BESIDE)
        if (cold.pieces_of + (cold.spread_of >= 0) == 0).any():
            return None  # an item found no way in this start
        return resumed(carried, self._assembly, cold)

    def _take_up(self, solutions: Sequence[Solution]) -> None:
        """Keep full solutions as they are, and improve those that are not far behind the best."""
        before = [solution.value() for solution in solutions]
        for solution in solutions:
            self._keep(solution.copy())
        most = self.best_ms * (1 + _PROMISING)
        promising = [solution for solution, ms in zip(solutions, before, strict=True) if ms <= most]
        if not self.late:
            list(self._pool.map(self._improve, promising))
            for solution in promising:
                self._keep(solution)

    def _improve(self, solution: Solution) -> None:
        if self._local_search:
            solution.improve(self._stop)

    def _keep(self, solution: Solution) -> None:
        """Keep a full solution if it is one of the best so far, or the best of its kind."""
        ms, kind = solution.value(), self._copied(solution)
        if all(abs(ms - its) > _DIFFERENT * its for _, its in self._several):
            self._several = sorted([*self._several, (solution, ms)], key=itemgetter(1))[:_SEVERAL]
        if kind not in self._best_of or ms < self._best_of[kind][1]:
            self._best_of[kind] = (solution, ms)
        if ms < self.best_ms * (1 - 1e-7):
            self.best, self.best_ms = solution, ms
