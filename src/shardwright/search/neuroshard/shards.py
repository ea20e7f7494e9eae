"""From a placement of NeuroShard's search to shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.engine.blocks import Added
from shardwright.search.neuroshard.beam import Placed
from shardwright.search.neuroshard.encoding import Ints, encode
from shardwright.search.neuroshard.pieces import Pieces
from shardwright.search.units import Unit, Units
from shardwright.sharding.calls import Call
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

Score: TypeAlias = Callable[[Pieces, Ints, Ints], float]


def shards_of(
    task: Task,
    units: Units,
    pieces: Pieces,
    calls: dict[Call, int],
    placed: Placed,
    cost_model: CostModel,
    score: Score,
) -> list[Shard]:
    """The shards of a placement; pieces of one table on one device are joined where that does not raise the score.

    The pieces of a unit take its columns in order of their ranks, and on one rank the widest first.

    Args:
        task: the task.
        units: its units.
        pieces: the arrays of the search.
        calls: the numbers of fused calls in them.
        placed: the placement.
        cost_model: prices the joined pieces.
        score: of a placement given as arrays, rows and ranks.
    """
    order = np.lexsort((-pieces.dims[placed.state], placed.device, pieces.unit[placed.state]))
    state, device = placed.state[order], placed.device[order]
    groups = [list(group) for _, group in groupby(range(state.size), lambda i: (pieces.unit[state[i]], device[i]))]
    several = [group for group in groups if len(group) > 1]
    pieces, joined = _with_joined(task, units, pieces, dict(calls), state, several, cost_model)
    ticks = placed.ticks
    gone = np.zeros(state.size, dtype=bool)
    for group in (group for group in groups if group[0] in joined):
        rows, left = state.copy(), gone.copy()
        rows[group[0]] = joined[group[0]]
        left[group[1:]] = True
        now = score(pieces, rows[~left], device[~left])
        if now <= ticks:
            ticks, state, gone = now, rows, left
    return list(units.fixed) + _shards(units, pieces, state[~gone], device[~gone])


def _with_joined(
    task: Task,
    units: Units,
    pieces: Pieces,
    calls: dict[Call, int],
    state: Ints,
    groups: list[list[int]],
    cost_model: CostModel,
) -> tuple[Pieces, dict[int, int]]:
    """The arrays with a row for the join of each group, and that row by the first piece of the group."""
    if not groups:
        return pieces, {}
    owners = [int(pieces.unit[state[group[0]]]) for group in groups]
    dims = [int(pieces.dims[state[group]].sum()) for group in groups]
    joins = [[_columns(units.free[owner], 0, dim)] for owner, dim in zip(owners, dims, strict=True)]
    arrays, (devices, before) = encode(task, joins, cost_model, calls), pieces.counts.shape
    new = (devices, len(calls) - before)  # sequences of a width that no piece had are in calls of their own
    longer = replace(
        pieces,
        **Added(pieces.part, pieces.call, pieces.vectors).then(arrays.added)._asdict(),
        bytes=np.concatenate([pieces.bytes, arrays.bytes]),
        dims=np.concatenate([pieces.dims, arrays.dims]),
        served=np.concatenate([pieces.served, arrays.served]),
        unit=np.append(pieces.unit, owners),
        sums=np.concatenate([pieces.sums, np.tile(pieces.base, (*new, 1))], axis=1),
        counts=np.concatenate([pieces.counts, np.zeros(new, dtype=np.int64)], axis=1),
    )
    rows = range(pieces.unit.size, pieces.unit.size + len(groups))
    return longer, {group[0]: row for group, row in zip(groups, rows, strict=True)}


def _shards(units: Units, pieces: Pieces, state: Ints, device: Ints) -> list[Shard]:
    """The shards of pieces sorted by unit."""
    shards: list[Shard] = []
    begins = [0] * len(units.free)
    for row, rank in zip(state.tolist(), device.tolist(), strict=True):
        index, dim = int(pieces.unit[row]), int(pieces.dims[row])
        unit = units.free[index]
        if len(unit.blocks) > 1:
            shards += unit.on(rank)
        else:
            shards.append(replace(_columns(unit, begins[index], dim), devices=(rank,)))
        begins[index] += dim
    return shards


def _columns(unit: Unit, start: int, dim: int) -> Shard:
    """`dim` columns of a unit of one block."""
    (block,) = unit.blocks
    left = block.columns[0] + start
    return replace(block, columns=(left, left + dim))
