"""What the searches of `ablations` run in place of the parts that are taken out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from shardwright._engine import greedy
from shardwright.arrays import Ints
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.search.engine.catalog import Added
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.neuroshard.pieces import NO_LIMIT, Pieces, embedding_ticks, encode, make_pieces, shards_of
from shardwright.search.neuroshard.strategy import Beam, Width
from shardwright.search.units import Unit, Units, take_apart
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import Call
from shardwright.task import Task


@dataclass(frozen=True)
class UncachedNeuroShard(NeuroShard):
    """`neuroshard` that keeps nothing which it computed for one set of pieces for the next.

    The paper's cache holds predictions of sets of tables. This search needs none: every width of every table is encoded once before the
    beam, sums of encodings are kept by device, and bounds of the grid that cannot change a placement are passed over. Here every set of
    pieces is encoded anew, and all bounds are tried. Encoding once a set is the least that a search without a cache has to do: for the
    paper's, it would be once for every device that the greedy considers. The plan is the same.
    """

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search; at the deadline the best plan so far is returned."""
        units = take_apart(task)
        pieces, cuts = make_pieces(task, units, cost_model)
        limits = self._limits(pieces, cuts.whole)
        beam = Beam(
            cuts,
            lambda state: _best_of_all(
                _encoded_anew(task, units, pieces, cuts.calls, state, cost_model), state, limits
            ),
            Width(self.tables_tried, self.beam_width, self.most_splits),
            self.threads or len(os.sched_getaffinity(0)),
            deadline,
        )
        found = beam.search()
        if np.isinf(found.ticks):
            raise InfeasibleTask("no device is left for a table, and no split that was tried makes room")
        return Plan(
            task, shards_of(task, units, pieces, cuts.calls, found, cost_model, embedding_ticks), self.name, seed
        )


def _encoded_anew(
    task: Task, units: Units, pieces: Pieces, calls: dict[Call, int], state: Ints, cost_model: CostModel
) -> Pieces:
    """The arrays with the encodings of a state's pieces as if they were seen for the first time."""
    rows = np.unique(state)
    blocks = [_blocks(units.free[pieces.unit[row]], int(pieces.dims[row])) for row in rows]
    vectors = np.zeros_like(pieces.vectors)
    parts = Added(pieces.part, np.arange(len(vectors)), vectors).take(rows).call  # where those of the rows are
    vectors[parts] = encode(task, blocks, cost_model, calls).added.vectors
    return replace(pieces, vectors=vectors)


def _blocks(unit: Unit, dim: int) -> list[Shard]:
    if len(unit.blocks) > 1:
        return list(unit.blocks)
    (block,) = unit.blocks
    return [replace(block, columns=(block.columns[0], block.columns[0] + dim))]


def _best_of_all(pieces: Pieces, state: Ints, limits: Ints) -> tuple[float, Ints]:
    """As `_engine.best_by_links`, without passing over any bound."""
    best, chosen = np.inf, np.zeros(0, dtype=np.int64)
    for limit in [*limits[::-1], NO_LIMIT]:
        if limit == NO_LIMIT and np.isfinite(best):
            break  # as published: without a bound only where no bound lets every piece find a device
        placed, _, device = greedy(pieces.native, state, limit)
        if placed == state.size and (ticks := embedding_ticks(pieces, state, device)) <= best:
            best, chosen = ticks, device
    return best, chosen
