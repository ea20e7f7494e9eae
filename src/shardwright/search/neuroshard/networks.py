"""NeuroShard's own score: kernels and both all-to-alls of each device, by its three networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shardwright._engine import TICKS, grid_placements, placement_times
from shardwright.cost.model import CostModel
from shardwright.search.neuroshard.encoding import Floats, Ints
from shardwright.search.neuroshard.pieces import Pieces
from shardwright.task.task import Task


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

        A device starts the forward all-to-all late by what its kernels and its backward all-to-all take more than those of the fastest.

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
        """As `_engine.best_by_links`."""
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
    """The score by the networks that a cost model brings along; None where it has none, and where nothing is communicated."""
    networks: Communication | None = getattr(cost_model, "communication", None)
    return NetworkScore(networks, task.batch_size) if networks and task.topology.devices > 1 else None
