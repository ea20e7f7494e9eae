"""One search: starts and kicks, and the best solution so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from shardwright._engine import Solution, Stop
from shardwright.search.engine.assembly import NOTHING, Assembly
from shardwright.search.engine.blocks import Floats
from shardwright.search.engine.resume import resumed
from shardwright.search.engine.starts import Start, Strain, filled, start
from shardwright.search.engine.warm import everything_ms
from shardwright.sharding.carry import Carried, carry
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

_KICKS = (5, 50)  # fewest and most in a row on one lane, before lanes are compared
_KICKED = 6_400  # devices times kicks of a lane: what a kick takes grows with the devices
_NOTABLE = 5e-4  # of the step time: what counts as better when it is decided whether to go on
_PROMISING = 0.25  # of the step time: how far behind the best a further start may be and still be improved
_BESIDE = Start(limit=0.5)  # how items are cut that an adopted plan does not settle
_LOST = 0.02  # of the step time: a lane that is so far behind the best goes on from there


class SearchSession:
    """A search under way. What it finds does not depend on the number of threads, unless it runs out of time.

    Where the assembly has a plan to start from, what is lowered is the step time and the price of what moves.

    Args:
        assembly: the arrays of the search.
        strain: as in `preparation.Prepared`.
        spread_price: `(spreads,)` likewise.
        pool: runs starts and kicks.
        deadline: `time.monotonic()` at which improving ends; None for no limit.
        local_search: whether starts are improved; without, for ablations.
        strain_limits: whether starts cut and spread items so that no piece takes more than a share of a device; without, likewise.

    Attributes:
        best: the best full solution so far; None before the first.
        best_ms: its step time.
        failed: starts so far in which an item found no device.
    """

    def __init__(
        self,
        assembly: Assembly,
        strain: Strain,
        spread_price: Floats,
        pool: ThreadPoolExecutor,
        deadline: float | None = None,
        *,
        local_search: bool = True,
        strain_limits: bool = True,
    ) -> None:
        self.assembly = assembly
        self._strain, self._spread_price, self._pool = strain, spread_price, pool
        self._local_search, self._strain_limits = local_search, strain_limits
        self._stop = Stop(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._lanes: dict[int, tuple[Solution, float]] = {}
        self.best: Solution | None = None
        self.best_ms = np.inf
        self.failed = 0

    @property
    def late(self) -> bool:
        """Whether the search has to end."""
        return self._stop.late

    @property
    def everything_ms(self) -> float:
        """Price of moving all bytes that can be kept or moved, where there is a plan to start from."""
        return everything_ms(self.assembly)

    def stop(self) -> None:
        """End the search soon: threads at work go no further than their next look at the clock."""
        self._stop.set()

    def start(self, starts: Sequence[Start]) -> int:
        """Several starts at once, each placed and improved; returns an item that found no device in any of them, or -1."""
        found = list(self._pool.map(self._started, starts))
        for solution, _ in found:
            if solution is not None:
                self._keep(solution)
            self.failed += solution is None
        return NOTHING if any(solution is not None for solution, _ in found) else found[-1][1]

    def survey(self, starts: Sequence[Start]) -> None:
        """Further starts: each is kept as it is if it is the best, and improved if it is not far behind."""
        made = self._pool.map(lambda how: None if self.late else self._made(how)[0], starts)
        self._take_up([solution for solution in made if solution is not None])

    def adopt(self, plans: Sequence[Plan], task: Task) -> None:
        """The same with plans for the task, as far as its pieces can say what lies where."""
        taken = (None if self.late else self._adopted(carry(plan, task), task) for plan in plans)
        self._take_up([solution for solution in taken if solution is not None])

    def resume(self, carried: Carried, task: Task, *, improve: bool) -> bool:
        """Take up the plan to start from, and improve it if wanted; whether that was possible.

        Args:
            carried: what is left of the plan on the task's devices.
            task: the task.
            improve: whether to look for something better, or to keep it as it is.
        """
        solution = self._adopted(carried, task)
        if solution is None:
            return False
        self._keep(solution.copy())
        if improve:
            self._improve(solution)
            solution.drop_copies(self.assembly.spread_replicated, self._stop)
            self._keep(solution)
        return True

    def fill(self) -> int:
        """A start for tight memory, improved; returns an item that found no room in it, or -1."""
        solution, stuck = filled(self.assembly)
        if stuck < 0:
            self._improve(solution)
            self._keep(solution)
        return stuck

    def simplify(self, worse: float, cut_error: float = 0.0) -> None:
        """Put cut and spread items whole, cheap ones first, where the cost model does not tell which is better.

        Args:
            worse: part of the step time that all of them together may add to it.
            cut_error: part of an item's time by which its cuts may be mispriced. Shared out to the devices, it is what the item may add.
        """
        assert self.best is not None
        self.best.simplify(worse, cut_error, self._stop)
        self.best_ms = self.best.value()

    def kick(self, seed: Sequence[int], lanes: int) -> bool:
        """A few kicks in a row on each of some lanes; whether the best solution became notably better."""
        best, best_ms = self.best, self.best_ms
        assert best is not None
        for lane in range(lanes):
            if lane not in self._lanes or self._lanes[lane][1] > best_ms * (1 + _LOST):
                self._lanes[lane] = (best.copy(), best_ms)
        for solution in list(self._pool.map(lambda lane: self._kicks(lane, (*seed, lane)), range(lanes))):
            if solution is not None:
                self._keep(solution)
        return bool(self.best_ms < best_ms * (1 - _NOTABLE))

    def _kicks(self, lane: int, seed: Sequence[int]) -> Solution | None:
        """Kick a lane's solution, and go on from what is better, on odd lanes also if it is a little worse; the best seen, if better."""
        solution, ms = self._lanes[lane]
        fewest, most = _KICKS
        count = min(most, max(fewest, _KICKED // self.assembly.arrays.memory.size))
        best, ms = solution.kicks(ms, count, lane % 2 == 1, [number % 2**64 for number in seed], self._stop)
        self._lanes[lane] = (solution, ms)
        return best

    def _made(self, how: Start) -> tuple[Solution | None, int]:
        solution, stuck = start(self.assembly, how, self._strain, self._spread_price)
        return (solution, NOTHING) if stuck < 0 else (None, stuck)

    def _started(self, how: Start) -> tuple[Solution | None, int]:
        if not self._strain_limits:
            how = Start(np.inf, how.memory_weight, np.inf, how.memory_share, how.kind)
        solution, stuck = self._made(how)
        if solution is not None:
            self._improve(solution)
            solution.drop_copies(self.assembly.spread_replicated, self._stop)
        return solution, stuck

    def _adopted(self, carried: Carried, task: Task) -> Solution | None:
        """A plan as a full solution; what the plan does not settle lies as in a start of the search."""
        cold, _ = start(self.assembly, _BESIDE, self._strain, self._spread_price)
        if (cold.pieces_of + (cold.spread_of >= 0) == 0).any():
            return None  # an item found no way in this start
        return resumed(carried, task, self.assembly, cold)

    def _take_up(self, solutions: Sequence[Solution]) -> None:
        """Keep full solutions as they are, and improve those that are not far behind the best."""
        before = [solution.value() for solution in solutions]
        for solution in solutions:
            self._keep(solution.copy())
        most = self.best_ms * (1 + _PROMISING)
        near = [solution for solution, ms in zip(solutions, before, strict=True) if ms <= most]
        if not self.late:
            list(self._pool.map(self._improve, near))
            for solution in near:
                self._keep(solution)

    def _improve(self, solution: Solution) -> None:
        if self._local_search:
            solution.improve(self._stop)

    def _keep(self, solution: Solution) -> None:
        """Keep a full solution if it is the best so far."""
        found = solution.value()
        if found < self.best_ms * (1 - 1e-7):
            self.best, self.best_ms = solution, found
