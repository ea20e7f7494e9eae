"""NeuroShard's outer search: a beam over column splits, the inner search on all cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Ints
from shardwright.search.neuroshard.pieces import Cuts, Placed

Inner: TypeAlias = Callable[[Ints], tuple[float, Ints]]


@dataclass(frozen=True)
class Width:
    """How wide and deep the beam is.

    Attributes:
        tables_tried: N, pieces by size and pieces by cost that are tried to be halved.
        kept: K, states that go on to the next step.
        steps: L, most splits.
    """

    tables_tried: int
    kept: int
    steps: int


@dataclass
class Beam:
    """One search.

    Attributes:
        cuts: which rows are whole, and their halves.
        inner: from a state to the score and the ranks of its best placement; called from several threads.
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
        """The best placement of all states seen; on Ctrl-C and at the deadline, of those seen until then.

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
        kept = [self._place(self.cuts.whole)]  # whatever the deadline
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
        """The placements of the states, in their order; of fewer where time runs out."""
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
        """The placements found in this step, after `best` has taken the first that is better."""
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
    """Rows of the state to halve: the `tried` largest by cost and by size together, of these the ones that can be halved, sorted."""
    by_size = state[np.argsort(cuts.size_rank[state], kind="stable")[:tried]]
    rows = np.unique(np.concatenate([state[:tried], by_size]))
    rows = rows[cuts.half[rows] >= 0]
    full = [cuts.most[row] <= np.count_nonzero(cuts.table[state] == cuts.table[row]) for row in rows]
    kept: Ints = rows[~np.array(full, dtype=bool)]
    return kept


def halved(cuts: Cuts, state: Ints, row: int) -> Ints:
    """The state with one piece of this row in two."""
    rest = np.delete(state, np.searchsorted(state, row))
    child: Ints = np.sort(np.append(rest, [cuts.half[row]] * 2))
    return child
