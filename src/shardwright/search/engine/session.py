"""One search: starts and kicks, and the best state so far."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shardwright.search.engine.assembly import Assembly
from shardwright.search.engine.blocks import Floats
from shardwright.search.engine.descent import descend
from shardwright.search.engine.objective import refresh_times, set_objective, step_ms
from shardwright.search.engine.placing import join_kin, place_greedily
from shardwright.search.engine.ruin import cut_anew
from shardwright.search.engine.spreading import respread
from shardwright.search.engine.starts import start
from shardwright.search.engine.state import NOTHING, State, copy_state, lift

_CHANGES = 200_000  # most changes of one descent: a stop for degenerate cost models
_POWERS = (3, 5, 7)  # squarings of the objective's power, one descent each
_RESPREAD = 100_000  # items times devices up to which every spread is tried


@dataclass(frozen=True)
class Start:
    """How to make a first state.

    Attributes:
        limit: ms that a piece may cost.
        memory_weight: ms that a byte of memory counts for in the order of the pieces.
        spreading: factor on the prices of spreads; infinite for none.
    """

    limit: float
    memory_weight: float = 0.0
    spreading: float = 1.0


class Session:
    """A search under way. What it finds does not depend on the number of threads.

    Attributes:
        assembly: the arrays of the search.
        best: the best full state so far; None before the first.
        best_ms: its step time, plus the price of what it moves.
    """

    def __init__(self, assembly: Assembly, spread_price: Floats, pool: ThreadPoolExecutor) -> None:
        self.assembly = assembly
        self._spread_price = spread_price
        self._pool = pool
        self.best: State | None = None
        self.best_ms = np.inf

    def start(self, starts: Sequence[Start]) -> int:
        """Several starts at once, each placed and improved; returns an item that found no device in any of them, or -1."""
        found = list(self._pool.map(self._started, starts))
        for state, _ in found:
            if state is not None:
                self._keep(state)
        return NOTHING if any(state is not None for state, _ in found) else found[-1][1]

    def kick(self, seeds: Sequence[Sequence[int]]) -> bool:
        """Kick the best state in several ways at once; whether one was better."""
        best = self.best
        assert best is not None
        states = list(self._pool.map(lambda seed: self._kicked(best, np.random.default_rng(seed)), seeds))
        better = [self._keep(state) for state in states if state is not None]  # all of them: no short cut
        return any(better)

    def _started(self, how: Start) -> tuple[State | None, int]:
        price = self._spread_price * how.spreading
        state, stuck = start(self.assembly, how.limit, how.memory_weight, price)
        if stuck >= 0:
            return None, stuck
        self._improve(state, _POWERS)
        return state, NOTHING

    def _kicked(self, best: State, rng: np.random.Generator) -> State | None:
        """Take some pieces off, more of those on slow devices, cut some items anew, place and improve."""
        setting, state = self.assembly.setting, copy_state(best)
        load = state.times.sum(axis=1)
        count = int(state.live[0])
        chance = rng.uniform(0.02, 0.2) * (load / load.max())[state.device[:count]] ** 4
        taken = np.flatnonzero(rng.random(count) < chance)
        for piece in taken:
            lift(state, setting, int(piece))
        if rng.random() < 0.5:
            cut_anew(self.assembly, state, rng)
        refresh_times(state, setting)
        if place_greedily(state, setting, 0.0) >= 0:
            return None
        join_kin(state, setting)
        self._improve(state, _POWERS[1:])
        return state

    def _improve(self, state: State, powers: Sequence[int]) -> None:
        setting = self.assembly.setting
        for squarings in powers:
            descend(state, setting, squarings, _CHANGES)
        if setting.most.size * setting.memory.size <= _RESPREAD:
            set_objective(state, setting, powers[-1])
            if respread(state, setting):
                descend(state, setting, powers[-1], _CHANGES)

    def _keep(self, state: State) -> bool:
        """Keep a full state if it is the best so far; whether it is."""
        refresh_times(state, self.assembly.setting)
        found = float(step_ms(state))
        better = found < self.best_ms * (1 - 1e-7)
        if better:
            self.best, self.best_ms = state, found
        return better
