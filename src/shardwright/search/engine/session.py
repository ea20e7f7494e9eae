"""One search: starts and kicks, and the best state so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shardwright.search.engine.assembly import Assembly
from shardwright.search.engine.blocks import Floats
from shardwright.search.engine.descent import descend
from shardwright.search.engine.filling import filled
from shardwright.search.engine.objective import refresh_times, set_objective, step_ms
from shardwright.search.engine.placing import join_kin, place_greedily
from shardwright.search.engine.resume import state_of
from shardwright.search.engine.ruin import clear_item, cut_anew
from shardwright.search.engine.spreading import respread, widen
from shardwright.search.engine.starts import Strain, start
from shardwright.search.engine.state import NOTHING, State, add_piece, copy_state, lift
from shardwright.sharding.carry import Carried, carry
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

_AT_ONCE = (200_000, 25_000)  # changes times devices of a descent between two looks: for Ctrl-C, or at a deadline
_MOST_CHANGES = 200_000  # of one descent: a stop for degenerate cost models
_POWERS = (3, 5, 7)  # squarings of the objective's power, one descent each
_POWERS_KICKED = (6,)
_RESPREAD = 400_000  # items times devices up to which every spread is tried
_WIDEST = 256  # hottest devices that a descent looks at before it ends
_WIDEST_KICKED = 3  # the same after a kick, which changes few devices
_KICKED = 6  # devices a kick takes pieces off
_KICKS = (2, 40)  # fewest and most in a row on one lane, before lanes are compared
_PIECES_KICKED = (
    400  # a lane makes as many kicks as small tasks need and large ones can afford: so many over its pieces
)
_WORSE = 0.01  # of the step time: how much a kick may cost and still be gone on from, on some lanes
_NOTABLE = 5e-4  # of the step time: what counts as better when it is decided whether to go on
_PROMISING = 0.25  # of the step time: how far behind the best a further start may be and still be improved
_LIMIT_BESIDE = 0.5  # how far items are cut that an adopted plan does not settle; see `starts.start`
_LOST = 0.02  # of the step time: a lane that is so far behind the best goes on from there


@dataclass(frozen=True)
class Start:
    """How to make a first state.

    Attributes:
        limit: strain that a piece may put on its device: the share it takes of what the mean device spends on a phase.
        memory_weight: ms that a byte of memory counts for in the order of the pieces.
        spreading: factor on the prices of spreads; infinite for none.
        memory_share: share of the largest device's memory that a piece may take.
        kind: sharding type of all items that may have it; None for any.
    """

    limit: float
    memory_weight: float = 0.0
    spreading: float = 1.0
    memory_share: float = 1.0
    kind: str | None = None


class Session:
    """A search under way. What it finds does not depend on the number of threads, unless it runs out of time.

    Args:
        assembly: the arrays of the search.
        strain: as in `preparation.Prepared`.
        spread_price: `(spreads,)` likewise.
        pool: runs starts and kicks.
        deadline: `time.monotonic()` at which improving ends; None for no limit.

    Attributes:
        best: the best full state so far; None before the first.
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
    ) -> None:
        self.assembly = assembly
        self._strain, self._spread_price = strain, spread_price
        self._pool, self._deadline = pool, deadline
        self._stopped = False
        self._lanes: dict[int, tuple[State, float]] = {}
        self.best: State | None = None
        self.best_ms = np.inf
        self.failed = 0

    @property
    def late(self) -> bool:
        """Whether the search has to end."""
        return self._stopped or (self._deadline is not None and time.monotonic() >= self._deadline)

    def stop(self) -> None:
        """End the search soon: threads at work go no further than their next look at the clock."""
        self._stopped = True

    def start(self, starts: Sequence[Start]) -> int:
        """Several starts at once, each placed and improved; returns an item that found no device in any of them, or -1."""
        found = list(self._pool.map(self._started, starts))
        for state, _ in found:
            if state is not None:
                self._keep(state)
            self.failed += state is None
        return NOTHING if any(state is not None for state, _ in found) else found[-1][1]

    def survey(self, starts: Sequence[Start]) -> None:
        """Further starts: each is kept as it is if it is the best, and improved if it is not far behind."""
        made = self._pool.map(lambda how: None if self.late else self._made(how)[0], starts)
        self._take_up([state for state in made if state is not None])

    def adopt(self, plans: Sequence[Plan], task: Task) -> None:
        """The same with plans for the task, as far as its pieces can say what lies where."""
        taken = (None if self.late else self._adopted(carry(plan, task), task) for plan in plans)
        self._take_up([state for state in taken if state is not None])

    def fill(self) -> int:
        """A start for tight memory, improved; returns an item that found no room in it, or -1."""
        state, stuck = filled(self.assembly)
        if stuck < 0:
            refresh_times(state, self.assembly.setting)
            self._improve(state)
            self._keep(state)
        return stuck

    def simplify(self, worse: float, cut_error: float = 0.0) -> None:
        """Put cut and spread items whole, cheap ones first, where the cost model does not tell which is better.

        Every block and kernel call less is one less for it to be wrong about.

        Args:
            worse: part of the step time that all of them together may add to it.
            cut_error: part of an item's time by which its cuts may be mispriced. Shared out to the devices, it is what the item may add.
        """
        assert self.best is not None
        setting, most = self.assembly.setting, self.best_ms * (1 + worse)
        whole = setting.first[1 : setting.most.size + 1] - 1
        parted = np.flatnonzero(((self.best.spread >= 0) | (self.best.pieces > 1)) & setting.legal[whole])
        for item in parted[np.argsort(setting.price[whole[parted]], kind="stable")].tolist():
            if self.late:
                break
            state = copy_state(self.best)
            clear_item(setting, state, item)
            add_piece(state, setting, item, int(setting.first[item + 1] - setting.first[item]))
            doubt = cut_error * float(setting.price[whole[item]]) / setting.memory.size
            if place_greedily(state, setting, 0.0) < 0 and (found := self._value(state)) <= max(
                most, self.best_ms + doubt
            ):
                self.best, self.best_ms = state, found

    def kick(self, seed: Sequence[int], lanes: int) -> bool:
        """A few kicks in a row on each of some lanes; whether the best state became notably better."""
        best, best_ms = self.best, self.best_ms
        assert best is not None
        for lane in range(lanes):
            if lane not in self._lanes or self._lanes[lane][1] > best_ms * (1 + _LOST):
                self._lanes[lane] = (best, best_ms)
        found = list(self._pool.map(lambda lane: self._kicks(lane, (*seed, lane)), range(lanes)))
        for state in found:
            self._keep(state)
        return bool(self.best_ms < best_ms * (1 - _NOTABLE))

    def _made(self, how: Start) -> tuple[State | None, int]:
        price = self._spread_price * how.spreading
        state, stuck = start(
            self.assembly, how.limit, how.memory_weight, self._strain, price, how.memory_share, how.kind
        )
        return (state, NOTHING) if stuck < 0 else (None, stuck)

    def _started(self, how: Start) -> tuple[State | None, int]:
        state, stuck = self._made(how)
        if state is not None:
            self._improve(state)
            state = self._without_copies(state)
        return state, stuck

    def _without_copies(self, state: State) -> State:
        """The state, or one without replicas if that is better: together they pay for a call on every device, alone none of them does."""
        setting, copies = (
            self.assembly.setting,
            np.array([*self.assembly.spread_replicated, False]),
        )  # the last: in no spread
        items = np.flatnonzero(copies[state.spread] & setting.legal[setting.first[1 : setting.most.size + 1] - 1])
        if not items.size or self.late:
            return state
        tried, before = copy_state(state), self._value(state)
        for item in items.tolist():
            clear_item(setting, tried, item)
            add_piece(tried, setting, item, int(setting.first[item + 1] - setting.first[item]))
        if place_greedily(tried, setting, 0.0) >= 0:
            return state
        self._descend(tried, _POWERS[-1], _WIDEST)
        return tried if self._value(tried) < before else state

    def _adopted(self, carried: Carried, task: Task) -> State | None:
        """A plan as a full state; what the plan does not settle lies as in a start of the search."""
        cold, _ = start(self.assembly, _LIMIT_BESIDE, 0.0, self._strain, self._spread_price)
        if (cold.pieces + (cold.spread >= 0) == 0).any():
            return None  # an item found no way in this start
        return state_of(carried, task, self.assembly, cold)

    def _take_up(self, states: Sequence[State]) -> None:
        """Keep full states as they are, and improve those that are not far behind the best."""
        before = [self._value(state) for state in states]
        for state in states:
            self._keep(copy_state(state))
        near = [state for state, ms in zip(states, before, strict=True) if ms <= self.best_ms * (1 + _PROMISING)]
        if not self.late:
            list(self._pool.map(self._improve, near))
            for state in near:
                self._keep(state)

    def _kicks(self, lane: int, seed: Sequence[int]) -> State:
        """Kick a lane's state, and go on from what is better, on odd lanes also from what is a little worse; returns the best seen."""
        rng = np.random.default_rng(seed)
        state, found = self._lanes[lane]
        best, lowest = state, found
        fewest, most = _KICKS
        for _ in range(min(most, max(fewest, _PIECES_KICKED // max(1, int(state.live[0]))))):
            if self.late:
                break
            kicked = self._kicked(state, rng)
            ms = self._value(kicked) if kicked is not None else np.inf
            if kicked is not None and ms < found * (1 + (_WORSE * rng.random() if lane % 2 else 0.0)):
                state, found = kicked, ms
                if ms < lowest:
                    best, lowest = kicked, ms
        if best is not self._lanes[lane][0]:
            self._respread(best, _POWERS_KICKED[-1], _WIDEST_KICKED)
            found = self._value(state)  # it may be the best one
        self._lanes[lane] = (state, found)
        return best

    def _kicked(self, state: State, rng: np.random.Generator) -> State | None:
        """Take some pieces off a few devices, slow ones rather than others, cut some items anew, place and improve."""
        setting, state = self.assembly.setting, copy_state(state)
        load = state.times.sum(axis=1)
        weight = (load / load.max()) ** 8 + 1e-6
        chosen = rng.choice(load.size, min(load.size, _KICKED), replace=False, p=weight / weight.sum())
        chance = np.zeros(load.size)
        chance[chosen] = rng.uniform(0.05, 0.4)
        count = int(state.live[0])
        for piece in np.flatnonzero(rng.random(count) < chance[state.device[:count]]):
            lift(state, setting, int(piece))
        if rng.random() < 0.5:
            cut_anew(self.assembly, state, rng)
        if place_greedily(state, setting, 0.0) >= 0:
            return None
        join_kin(state, setting)
        for squarings in _POWERS_KICKED:
            self._descend(state, squarings, _WIDEST_KICKED)
        return state

    def _improve(self, state: State) -> None:
        for squarings in _POWERS:
            self._descend(state, squarings, _WIDEST)
        self._respread(state, _POWERS[-1], _WIDEST)

    def _respread(self, state: State, squarings: int, widest: int) -> None:
        """Try every spread of every item, where there is time for that: after each kick there is not."""
        setting = self.assembly.setting
        if setting.most.size * setting.memory.size <= _RESPREAD and not self.late:
            set_objective(state, setting, squarings)
            if respread(state, setting):
                self._descend(state, squarings, widest)

    def _descend(self, state: State, squarings: int, widest: int) -> None:
        made, at_once = 0, min(500, max(20, _AT_ONCE[self._deadline is not None] // state.used.size))
        while made < _MOST_CHANGES and not self.late:
            found = descend(state, self.assembly.setting, squarings, at_once, widest)
            made += found
            if found < at_once:
                break
        if self.assembly.setting.equal.any():
            widen(state, self.assembly.setting)

    def _value(self, state: State) -> float:
        """What a search lowers: the step time of a full state."""
        refresh_times(state, self.assembly.setting)
        return float(step_ms(state))

    def _keep(self, state: State) -> bool:
        """Keep a full state if it is the best so far; whether it is."""
        found = self._value(state)
        better = found < self.best_ms * (1 - 1e-7)
        if better:
            self.best, self.best_ms = state, found
        return better
