"""What can be made of each table, as whole numbers of pieces and linear rules on them.

A table is made in exactly one *way*: cut into column blocks (a whole table is one block of all columns), into row blocks, or
replicated on every device. A way offers *pieces*, blocks on devices, and rules on how many of each are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.search.column_blocks import equal_blocks, unit_width
from shardwright.search.exact.pieces import Piece, Rule, Way
from shardwright.search.exact.row_ways import row_ways
from shardwright.search.units import allowed_devices
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task


def ways_of(task: Task, table: Table, units: int, merging_pays: bool) -> list[Way]:
    """All ways of a table that its constraints allow; memory is not looked at.

    Args:
        task: the task.
        table: one of its tables.
        units: equal column units that blocks are made of; see `column_units`.
        merging_pays: whether two blocks of the table on one device are never better than one as wide as both.
    """
    limits = task.constraints.of(table.name)
    ranks = np.flatnonzero(allowed_devices(task, limits)).tolist()
    if limits.equal_columns:
        columns = [_equal_columns(table, limits, ranks, count) for count in _equal_counts(table, limits, units)]
    else:
        columns = [_columns(table, limits, ranks, units, merging_pays)]
    ways = [*columns, *row_ways(task, table, limits, ranks)]
    devices = task.topology.devices
    if limits.allows("data_parallel") and len(ranks) == devices > 1:
        replica = Piece(Shard.whole(table, *ranks), 1.0)
        ways.append(Way(table, "replica", (replica,), (Rule((0,), (1,), 1, 1),)))
    return [way for way in ways if way is not None]


def column_units(table: Table, limits: TableConstraint, most: int | None) -> int:
    """Equal column units a table is cut into, fewer than `most` by a common factor; 1 where it may not be cut."""
    if not limits.allows("column_wise"):
        return 1
    if limits.equal_columns:
        return _equal_counts(table, limits, most)[-1]
    units = table.dim // unit_width(table, limits)
    if most is None or units <= most:
        return units
    return max(count for count in range(1, most + 1) if units % count == 0)


def _columns(table: Table, limits: TableConstraint, ranks: Sequence[int], units: int, merging_pays: bool) -> Way | None:
    """The whole table on one device, or column blocks of any widths, several on one device where that may pay."""
    least = 1 if limits.allows("table_wise") else 2
    most = min(units, limits.max_shards or units)
    if most < least:
        return None
    widest = units if least == 1 else units - 1
    narrowest = -(-min(limits.min_columns or 1, table.dim) * units // table.dim)
    widths = range(narrowest, widest + 1) if most > 1 else (units,)
    if not widths:
        return None
    # A table that must be cut may still lie on one device: in two blocks.
    on_one = least if merging_pays else most
    pieces: list[Piece] = []
    together: list[Rule] = []
    for rank in ranks:
        first = len(pieces)
        for width in widths:
            block = Shard(table.name, (0, table.rows), (0, table.dim * width // units), (rank,))
            pieces.append(Piece(block, width / units, min(on_one, units // width)))
        indices = tuple(range(first, len(pieces)))
        together.append(Rule(indices, (1,) * len(indices), 0, on_one))
    everything = tuple(range(len(pieces)))
    all_columns = Rule(everything, tuple(widths) * len(ranks), units, units)
    count = Rule(everything, (1,) * len(pieces), least, most)
    return Way(table, "columns", tuple(pieces), (all_columns, count, *together))


def _equal_counts(table: Table, limits: TableConstraint, most: int | None) -> list[int]:
    """Numbers of equal column blocks, ascending, at most `most`; 1 for the whole table."""
    return [1, *(count for count in equal_blocks(table, limits) if most is None or count <= most)]


def _equal_columns(table: Table, limits: TableConstraint, ranks: Sequence[int], count: int) -> Way | None:
    """So many column blocks of one width, any number of them on a device."""
    if count == 1 and not limits.allows("table_wise"):
        return None
    block = (0, table.dim // count)
    pieces = tuple(Piece(Shard(table.name, (0, table.rows), block, (rank,)), 1 / count, count) for rank in ranks)
    everything = tuple(range(len(pieces)))
    return Way(table, "columns", pieces, (Rule(everything, (1,) * len(pieces), count, count),))
