"""What can be made of each table, as whole numbers of pieces and linear rules on them.

A table is made in exactly one *way*: cut into column blocks (a whole table is one block of all columns), into row blocks, or replicated
on every device. A way offers *pieces*, blocks on devices, and rules on how many of each are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from shardwright.search.cuts import equal_blocks, row_block_devices, unit_width
from shardwright.search.units import allowed_devices
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

Kind: TypeAlias = Literal["columns", "rows", "replica"]


@dataclass(frozen=True)
class Piece:
    """A block that a way may put on its devices.

    Attributes:
        shard: the block, beginning at the first row and column; its place in the table follows once all pieces are known.
        share: share of the table it holds on each of its devices, in the dimension that is cut; 1 for row blocks.
        most: how often it may be taken.
    """

    shard: Shard
    share: float
    most: int = 1


@dataclass(frozen=True)
class Rule:
    """low ≤ weights · (pieces taken) ≤ high, if the way is chosen; no pieces are taken if it is not.

    Attributes:
        pieces: indices into the way's pieces.
        weights: of these pieces.
        low: least sum.
        high: greatest sum.
    """

    pieces: tuple[int, ...]
    weights: tuple[int, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Way:
    """One way to make a table.

    Attributes:
        table: the table.
        kind: what is cut.
        pieces: blocks it offers.
        rules: which numbers of them make the table.
    """

    table: Table
    kind: Kind
    pieces: tuple[Piece, ...]
    rules: tuple[Rule, ...]

    def shards(self, taken: Sequence[int]) -> list[Shard]:
        """The shards of the table, pieces side by side in order of their devices.

        Args:
            taken: `(pieces,)` how often each piece is taken.
        """
        blocks = [piece.shard for piece, count in zip(self.pieces, taken, strict=True) for _ in range(count)]
        result, row, column = [], 0, 0
        for block in sorted(blocks, key=lambda shard: shard.devices):
            result.append(replace(block, rows=(row, row + block.row_count), columns=(column, column + block.dim)))
            row += block.row_count if self.kind == "rows" else 0
            column += block.dim if self.kind == "columns" else 0
        return result


ROW_UNITS = 16  # parts of a table that row blocks of different sizes are made of, as in the bound
FEWEST_ROWS = 64  # of a part; smaller tables are cut into equal blocks only


def row_ways(task: Task, table: Table, limits: TableConstraint, ranks: Sequence[int]) -> Iterator[Way]:
    """Row blocks, one a device: of any sizes on a grid of 16 parts, or of equal size; over any devices, or those of one host."""
    topology = task.topology
    by_host = [[rank for rank in ranks if topology.host_of(rank) == host] for host in range(topology.hosts)]
    if limits.equal_rows:
        sets = [ranks] if limits.allows("row_wise") else []
        sets += by_host if limits.allows("table_row_wise") and topology.hosts > 1 else []
        for among in sets:
            chosen = row_block_devices(table, limits, topology, np.array(among, dtype=np.int64))
            if chosen is not None:
                yield from _equal(table, chosen.size, among, by_host if among is ranks and topology.hosts > 1 else None)
        return
    anywhere = limits.allows("row_wise") and (topology.hosts == 1 or limits.allows("table_row_wise"))
    gridded = anywhere and table.rows >= ROW_UNITS * FEWEST_ROWS and (limits.max_shards or 2) > 1 and len(ranks) > 1
    if gridded:
        yield _on_grid(table, ranks, min(len(ranks), limits.max_shards or ROW_UNITS))
    for count in _row_counts(task, table, limits, len(ranks)):
        if gridded and ROW_UNITS % count == 0:
            continue
        if anywhere:
            yield from _equal(table, count, ranks, None)
        elif limits.allows("row_wise"):  # on one host they would be table_row_wise
            yield from _equal(table, count, ranks, by_host)
        elif limits.allows("table_row_wise") and topology.hosts > 1:
            for near in by_host:
                yield from _equal(table, count, near, None)


def _row_counts(task: Task, table: Table, limits: TableConstraint, allowed: int) -> list[int]:
    """2, 4, 8, … blocks, and as many as there are devices, devices of a host, or devices the table is pinned to."""
    devices = task.topology.devices
    most = min(devices, table.rows, limits.max_shards or devices)
    counts = {2**power for power in range(1, most.bit_length())}
    counts |= {min(most, wide) for wide in (devices, task.topology.devices_per_host, allowed)}
    return sorted(count for count in counts if 2 <= count <= most)


def _equal(table: Table, count: int, ranks: Sequence[int], across: Sequence[Sequence[int]] | None) -> Iterator[Way]:
    """`count` row blocks of equal size on different devices of `ranks`, not all of them on one host of `across`."""
    if len(ranks) < count or count < 2:
        return
    longer = table.rows % count
    needed = {
        size: blocks
        for size, blocks in ((table.rows // count, count - longer), (table.rows // count + 1, longer))
        if blocks
    }
    pieces = [_block(table, size, rank) for rank in ranks for size in needed]
    rules = _one_each(pieces, ranks)
    for size, number in needed.items():
        rules.append(_among([i for i, piece in enumerate(pieces) if piece.shard.row_count == size], number, number))
    for host in across or ():
        near = [i for i, piece in enumerate(pieces) if piece.shard.devices[0] in host]
        rules += [_among(near, 0, count - 1)] if near else []
    yield Way(table, "rows", tuple(pieces), tuple(rules))


def _on_grid(table: Table, ranks: Sequence[int], most: int) -> Way:
    """Up to `most` row blocks of whole sixteenths of the table, each rounded down or up to rows so that they add up."""
    pieces, units, rounding = [], [], []
    for rank in ranks:
        for wide in range(1, ROW_UNITS):
            down, left = divmod(table.rows * wide, ROW_UNITS)
            for up in (0, 1) if left else (0,):
                pieces.append(_block(table, down + up, rank))
                units.append(wide)
                rounding.append(ROW_UNITS * up - left)  # sixteenths of a row that the block has more than its part
    everything = tuple(range(len(pieces)))
    rules = [
        Rule(everything, tuple(units), ROW_UNITS, ROW_UNITS),
        Rule(everything, tuple(rounding), 0, 0),
        Rule(everything, (1,) * len(pieces), 2, most),
        *_one_each(pieces, ranks),
    ]
    return Way(table, "rows", tuple(pieces), tuple(rules))


def _block(table: Table, rows: int, rank: int) -> Piece:
    return Piece(Shard(table.name, (0, rows), (0, table.dim), (rank,)), 1.0)


def _one_each(pieces: Sequence[Piece], ranks: Sequence[int]) -> list[Rule]:
    """At most one piece on each device."""
    return [_among([i for i, piece in enumerate(pieces) if piece.shard.devices == (rank,)], 0, 1) for rank in ranks]


def _among(pieces: Sequence[int], low: int, high: int) -> Rule:
    """From `low` to `high` of these pieces."""
    return Rule(tuple(pieces), (1,) * len(pieces), low, high)


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
