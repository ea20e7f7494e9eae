"""The ways to make a table of row blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardwright.search.exact.pieces import Piece, Rule, Way
from shardwright.search.row_blocks import row_block_devices
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

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
