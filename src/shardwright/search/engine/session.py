"""One search: starts and kicks on a board, and the best state so far."""

from __future__ import annotations

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.engine.board import Board, add_to_device, refresh, step_ms
from shardwright.search.engine.greedy import place_greedily
from shardwright.search.engine.improve import improve, join_parts
from shardwright.search.engine.setup import copy_board, cut_evenly, empty_board, link_weights, make_setting, shards_on
from shardwright.search.units import Units
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

_CHANGES = 2000  # most changes of one descent: a stop for degenerate cost models


class Session:
    """A search under way.

    Attributes:
        setting: arrays that stay the same.
        best: the best full board so far; None before the first.
        best_ms: its step time.
        goal: step time at which the search may stop.
    """

    def __init__(self, task: Task, units: Units, cost_model: CostModel, rng: np.random.Generator) -> None:
        self.setting, self._items = make_setting(task, units, cost_model)
        self._empty = empty_board(task, units, cost_model, self.setting, self._items)
        self._units = units
        self._links = link_weights(task.topology)
        self._rng = rng
        vectors = self.setting.vectors + self.setting.base
        hidden = self.setting.mix.shape[1]
        times = np.maximum(vectors[:, :hidden], 0) @ self.setting.mix.T + vectors[:, hidden:]
        self._alone = np.maximum(times, 0).sum(axis=1) + self.setting.served @ self._links
        self.best: Board | None = None
        self.best_ms = np.inf
        self.goal = 0.0

    def mean_cost(self) -> float:
        """Rough step time of a perfectly balanced plan: what all items cost alone, shared out."""
        return float(self._alone[self._items.first[1:] - 1].sum() / self.setting.memory.size)

    def start(self, limit: float, memory_weight: float) -> str | None:
        """Cut items that cost more than `limit` ms, place all, improve; returns a table that found no device, or None."""
        board = copy_board(self._empty)
        cut_evenly(self.setting, self._items, board, self._alone, limit)
        stuck = place_greedily(self.setting, board, self._links, memory_weight)
        if stuck >= 0:
            return ", ".join(self._units.free[int(board.item[stuck])].tables)
        join_parts(self.setting, board)
        self._descend(board)
        return None

    def kick(self, share: float) -> bool:
        """Take a random share of the pieces off, more of those on slow devices, place and improve anew; whether that was better."""
        assert self.best is not None
        board = copy_board(self.best)
        count = int(board.live[0])
        load = board.times.sum(axis=1)
        chance = share * (load / load.max())[board.device[:count]] ** 4
        for piece in np.flatnonzero(self._rng.random(count) < chance):
            add_to_device(self.setting, board, board.item[piece], board.width[piece], board.device[piece], -1)
            board.device[piece] = -1
        refresh(self.setting, board)
        if place_greedily(self.setting, board, self._links, 0.0) >= 0:
            return False
        join_parts(self.setting, board)
        return self._descend(board)

    def shards(self) -> list[Shard]:
        """The shards of the best board."""
        assert self.best is not None
        return shards_on(self._units, self._items, self.best)

    def _descend(self, board: Board) -> bool:
        """Improve a full board, and keep it if it is the best so far; whether it is."""
        improve(self.setting, board, _CHANGES, True)
        refresh(self.setting, board)
        found = float(step_ms(board))
        better = found < self.best_ms * (1 - 1e-6)
        if better:
            self.best, self.best_ms = board, found
        return better
