"""What a search places: items, each cut into pieces of whole column units.

An item is a unit of `search.units`: a table, a part of one that had to be cut, or a colocated group. A table that may be column-wise, and
whose dim is a multiple of 4, can be cut anywhere between its units of 4 columns; every other item is one piece of one unit.

A piece's *vector* is what it adds to a device: the pre-activations of the cost model's hidden units and the linear parts of forward and
backward time. Sums of vectors price a device in O(hidden units), whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.communication import served_bytes
from shardwright.cost.model import CostModel
from shardwright.search.units import Unit, Units
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

UNIT = 4  # columns; narrower blocks waste vector units and are not aligned to 16 bytes


@dataclass(frozen=True, eq=False)
class Items:
    """n items as arrays; a piece of item i that is w units wide is row `first[i] + w - 1` of the piece tables.

    Attributes:
        units: `(n,)` width of each item in column units.
        first: `(n + 1,)` where the rows of each item begin.
        vectors: `(rows, hidden + 2)` what a piece adds to its device.
        bytes: `(rows,)` memory of a piece.
        values: `(rows,)` bytes of values its holder sends in a pass, its own samples included.
        ids: `(rows,)` bytes of ids its holder receives, likewise.
        most: `(n,)` most pieces an item may be cut into.
        allowed: `(n, devices)` where pieces of an item may go; `(0, 0)` where every item may go everywhere.
        rivals: `(n, n)` which items may not share a device; `(0, 0)` where all may.
    """

    units: Ints
    first: Ints
    vectors: Floats
    bytes: Ints
    values: Floats
    ids: Floats
    most: Ints
    allowed: npt.NDArray[np.bool_]
    rivals: npt.NDArray[np.bool_]


def make_items(task: Task, units: Units, cost_model: CostModel) -> Items:
    """The items of a task, every width of every piece encoded at once."""
    widths = [_width(task, unit) for unit in units.free]
    pieces = [blocks for unit, width in zip(units.free, widths, strict=True) for blocks in _pieces(unit, width)]
    flat = [block for blocks in pieces for block in blocks]
    works = [shard_work(task, block) for block in flat]
    begins = np.concatenate([[0], np.cumsum([len(blocks) for blocks in pieces])])[:-1].astype(np.int64)
    served = np.array([served_bytes(work) for work in works]).reshape(-1, 2)
    return Items(
        units=np.array(widths, dtype=np.int64),
        first=np.concatenate([[0], np.cumsum(widths)]).astype(np.int64),
        vectors=np.add.reduceat(vectors_of(cost_model, cost_model.encode(works)), begins),
        bytes=np.add.reduceat(np.array([shard_bytes(task, block) for block in flat], dtype=np.int64), begins),
        values=np.add.reduceat(served[:, 0], begins),
        ids=np.add.reduceat(served[:, 1], begins),
        most=np.array(
            [_most_pieces(task, unit, width) for unit, width in zip(units.free, widths, strict=True)], dtype=np.int64
        ),
        allowed=_allowed(task, units),
        rivals=_rivals(task, units),
    )


def vectors_of(cost_model: CostModel, latents: Floats) -> Floats:
    """`(n, hidden + 2)` vectors of `(n, latent)` encodings."""
    pricing = cost_model.pricing
    return np.hstack([latents @ pricing.hidden.T, latents @ pricing.linear.T])


def piece_shards(unit: Unit, start: int, stop: int, width: int) -> list[Shard]:
    """The blocks of a unit's piece of the column units `[start, stop)`, its devices still to be chosen."""
    if width == 1:
        return list(unit.blocks)
    (block,) = unit.blocks
    left = block.columns[0]
    return [replace(block, columns=(left + UNIT * start, left + UNIT * stop))]


def _pieces(unit: Unit, width: int) -> Iterator[list[Shard]]:
    """The blocks of a piece of each width, from one unit on; where a piece begins does not change its cost."""
    for wide in range(1, width + 1):
        yield piece_shards(unit, 0, wide, width)


def _width(task: Task, unit: Unit) -> int:
    """Column units of an item that may be cut, 1 of any other."""
    if len(unit.blocks) != 1:
        return 1
    (block,) = unit.blocks
    table = task.table_by_name[block.table]
    whole = block.dim == table.dim and block.row_count == table.rows
    limits = task.constraints.of(block.table)
    cuttable = whole and limits.allows("column_wise") and (limits.max_shards or 2) > 1
    # A part of a table on every device would leave no device to tables that are to be kept apart from it.
    tied = any(block.table in group for group in (*task.constraints.colocated_groups(), *task.constraints.apart))
    return block.dim // UNIT if cuttable and not tied and block.dim % UNIT == 0 else 1


def _most_pieces(task: Task, unit: Unit, width: int) -> int:
    limit = task.constraints.of(unit.blocks[0].table).max_shards
    return 1 if width == 1 else min(width, limit or width)


def _allowed(task: Task, units: Units) -> npt.NDArray[np.bool_]:
    """Pinning, and devices where fixed shards of a table lie that an item is to be kept apart from."""
    masks = np.array([unit.allowed for unit in units.free]).reshape(len(units.free), task.topology.devices)
    pairs = task.constraints.apart_pairs()
    for shard in units.fixed:
        for index, unit in enumerate(units.free):
            if any(frozenset((shard.table, name)) in pairs for name in unit.tables):
                masks[index, list(shard.devices)] = False
    return masks if not masks.all() else np.zeros((0, 0), dtype=bool)


def _rivals(task: Task, units: Units) -> npt.NDArray[np.bool_]:
    pairs = task.constraints.apart_pairs()
    if not pairs:
        return np.zeros((0, 0), dtype=bool)
    rivals = np.zeros((len(units.free),) * 2, dtype=bool)
    holders: dict[str, list[int]] = {}
    for index, unit in enumerate(units.free):
        for name in unit.tables:
            holders.setdefault(name, []).append(index)
    for one, other in map(sorted, pairs):
        for i in holders.get(one, ()):
            rivals[i, holders.get(other, [])] = rivals[holders.get(other, []), i] = True
    return rivals
