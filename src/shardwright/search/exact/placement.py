"""The ways to make a table, and placement as rows of a program: tiling, memory, colocation and separation.

A table is made in exactly one *way*: cut into column blocks (a whole table is one block of all columns), into row blocks, into a grid of
both, or replicated on every device. A way offers *pieces*, blocks on devices, and rules on how many of each are taken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import Way as Outputs
from shardwright.cost.collectives import dealt_way
from shardwright.linear_programs import Program
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard, equal_sizes
from shardwright.sharding.ways import (
    ROW_UNITS,
    Dealt,
    allowed_devices,
    equal_blocks,
    grid_counts,
    row_block_devices,
    row_counts,
    row_place,
    row_units,
    unit_width,
)
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

Kind: TypeAlias = Literal["columns", "rows", "grid", "replica"]


@dataclass(frozen=True)
class Piece:
    """A block that a way may put on its devices.

    Attributes:
        shard: the block, beginning at the first row and column; its place in the table follows once all pieces are known. Blocks of a
            grid have their own rows.
        share: share of the table it holds on each of its devices, in the dimension that is cut; 1 for row blocks, and the share of the
            columns for blocks of a grid.
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
        kind: the dimension that is cut.
        pieces: blocks it offers.
        rules: the numbers of pieces that make the table.
        outputs: how the outputs of its pieces reach the devices.
    """

    table: Table
    kind: Kind
    pieces: tuple[Piece, ...]
    rules: tuple[Rule, ...]
    outputs: Outputs = "all_to_all"

    def shards(self, taken: Sequence[int]) -> list[Shard]:
        """The shards of the table, pieces side by side in order of their devices.

        Args:
            taken: `(pieces,)` how often each piece is taken.
        """
        blocks = [piece.shard for piece, count in zip(self.pieces, taken, strict=True) for _ in range(count)]
        result, row, column = [], 0, 0
        if self.kind == "grid":  # the devices of a host have the same column blocks, each its own rows of them
            of_rows = Counter[tuple[int, int]]()
            for block in blocks:
                column = of_rows[block.rows] * block.dim
                result.append(replace(block, columns=(column, column + block.dim)))
                of_rows[block.rows] += 1
            return result
        for block in sorted(blocks, key=lambda shard: shard.devices):
            result.append(replace(block, rows=(row, row + block.row_count), columns=(column, column + block.dim)))
            row += block.row_count if self.kind == "rows" else 0
            column += block.dim if self.kind == "columns" else 0
        return result


def row_ways(task: Task, table: Table, limits: TableConstraint, ranks: Sequence[int]) -> Iterator[Way]:
    """Ways of row blocks, one a device: of any sizes on a grid of 16 parts, or of equal size; over any devices, or those of one host."""
    topology = task.topology
    by_host = [[rank for rank in ranks if topology.host_of(rank) == host] for host in range(topology.hosts)]
    if limits.equal_rows:
        sets = [ranks] if limits.allows("row_wise") else []
        sets += by_host if limits.allows("table_row_wise") and topology.hosts > 1 else []
        for among in sets:
            chosen = row_block_devices(table, limits, topology, np.array(among, dtype=np.int64))
            if chosen is not None:
                across = by_host if among is ranks and topology.hosts > 1 else ()
                yield from _equal(task, table, limits, chosen.size, among, across)
        return
    place = row_place(limits, topology, np.array(ranks, dtype=np.int64))
    gridded = row_units(table.rows) == ROW_UNITS
    for among in by_host if place == "one host" else [ranks] if place else []:
        across = by_host if place == "several hosts" else ()
        if gridded and len(among) > 1:
            yield _on_grid(task, table, among, min(len(among), limits.max_shards or ROW_UNITS), across)
        for count in row_counts(task, table, limits):
            on_grid = gridded and ROW_UNITS % count == 0
            yield from _equal(task, table, limits, count, among, across, dealt_only=on_grid)


def _equal(
    task: Task,
    table: Table,
    limits: TableConstraint,
    count: int,
    ranks: Sequence[int],
    across: Sequence[Sequence[int]],
    *,
    dealt_only: bool = False,
) -> Iterator[Way]:
    """`count` row blocks of equal size on different devices of `ranks`, not all of them on one host of `across`.

    Rows that are dealt to all devices, or to one host, are separate ways.
    """
    if len(ranks) < count or count < 2:
        return
    dealt = [place for place in _dealt_places(task, table, ranks) if len(place) == count]
    for place in dealt:
        if not any(set(place) <= set(host) for host in across):
            for cut in equal_sizes(table.rows, count):
                if cut[1] + cut[3] == count:
                    yield _equal_blocks(table, cut, place, (), dealt_way(task, table, place))
    for cut in () if dealt_only else equal_sizes(table.rows, count, as_torchrec=limits.equal_rows):
        apart = dealt if cut[1] + cut[3] == count else []
        if list(ranks) not in apart:
            yield _equal_blocks(table, cut, ranks, [*across, *apart], "all_to_all")


def _equal_blocks(
    table: Table,
    cut: tuple[int, int, int, int],
    ranks: Sequence[int],
    across: Sequence[Sequence[int]],
    outputs: Outputs,
) -> Way:
    """Blocks of a cut (see `equal_sizes`) on different devices of `ranks`, not all of them on one host of `across`."""
    rows, number, fewer_rows, others = cut
    needed = {rows: number, fewer_rows: others} if others else {rows: number}
    pieces = [_block(table, size, rank) for rank in ranks for size in needed]
    rules = _one_each(pieces, ranks)
    for size, blocks in needed.items():
        of_size = [i for i, piece in enumerate(pieces) if piece.shard.row_count == size]
        rules.append(_among(of_size, blocks, blocks))
    rules += _not_all_on_one(pieces, [1] * len(pieces), number + others, across)
    return Way(table, "rows", tuple(pieces), tuple(rules), outputs)


def _dealt_places(task: Task, table: Table, ranks: Sequence[int]) -> list[list[int]]:
    """All devices, and those of each host, among `ranks`, as far as a table's equal row blocks on them have collectives of their own."""
    topology, near = task.topology, task.topology.devices_per_host
    hosts = [list(range(host * near, (host + 1) * near)) for host in range(topology.hosts)]
    places = [list(range(topology.devices)), *(hosts if topology.hosts > 1 and near > 1 else ())]
    apart = [place for place in places if 1 < len(place) <= table.rows and set(place) <= set(ranks)]
    return [place for place in apart if dealt_way(task, table, place) != "all_to_all"]


def _not_dealt(table: Table, pieces: Sequence[Piece], dealt: Sequence[Sequence[int]]) -> list[Rule]:
    """Not all devices of a place have equal blocks, which is a separate way."""
    rules = []
    for place in dealt:
        sizes = {size for cut in equal_sizes(table.rows, len(place), as_torchrec=False) for size in (cut[0], cut[2])}
        if len(sizes) > 1:  # collectives reduce blocks of which none is longer than the longest
            sizes.add(min(sizes) - 1)
        equal = [
            i for i, piece in enumerate(pieces) if piece.shard.devices[0] in place and piece.shard.row_count in sizes
        ]
        rules += [_among(equal, 0, len(place) - 1)] if equal else []
    return rules


def _on_grid(task: Task, table: Table, ranks: Sequence[int], most: int, across: Sequence[Sequence[int]]) -> Way:
    """Up to `most` row blocks of whole sixteenths of the table, each rounded down or up to rows so that they add up.

    They do not all lie on one host of `across`, and are not rows dealt to all devices or to one host. Blocks that are as many sixteenths as
    those may be a row shorter or longer, so that collectives do not take them for those.
    """
    dealt = _dealt_places(task, table, ranks)
    alike = {ROW_UNITS // len(place) for place in dealt if ROW_UNITS % len(place) == 0}
    pieces, units, rounding = [], [], []
    for rank in ranks:
        for wide in range(1, ROW_UNITS):
            down, left = divmod(table.rows * wide, ROW_UNITS)
            nearest = (0, 1) if left else (0,)
            for up in (-1, *nearest, nearest[-1] + 1) if wide in alike else nearest:
                pieces.append(_block(table, down + up, rank))
                units.append(wide)
                rounding.append(ROW_UNITS * up - left)  # sixteenths of a row that the block has more than its part
    everything = tuple(range(len(pieces)))
    rules = [
        Rule(everything, tuple(units), ROW_UNITS, ROW_UNITS),
        Rule(everything, tuple(rounding), 0, 0),
        Rule(everything, (1,) * len(pieces), 2, most),
        *_one_each(pieces, ranks),
        *_not_all_on_one(pieces, units, ROW_UNITS, across),
        *_not_dealt(table, pieces, dealt),
    ]
    return Way(table, "rows", tuple(pieces), tuple(rules))


def _grids(task: Task, table: Table, limits: TableConstraint, ranks: Sequence[int]) -> Iterator[Way]:
    """Column blocks of one width on hosts, any number of them on a host, each with its rows dealt to the host's devices."""
    topology = task.topology
    near = topology.devices_per_host
    hosts = [list(range(first, first + near)) for first in range(0, topology.devices, near)]
    hosts = [host for host in hosts if set(host) <= set(ranks)]
    for count in grid_counts(table, limits, topology) if hosts else ():
        blocks = [shard for host in hosts for shard in Dealt(np.array(host)).shards(table)]
        width = table.dim // count
        pieces = tuple(Piece(replace(block, columns=(0, width)), 1 / count, count) for block in blocks)
        firsts = range(0, len(pieces), near)
        rules = [Rule((first, first + i), (1, -1), 0, 0) for first in firsts for i in range(1, near)]
        everything = Rule(tuple(firsts), (1,) * len(firsts), count, count)
        yield Way(table, "grid", pieces, (everything, *rules), dealt_way(task, table, hosts[0]))


def _block(table: Table, rows: int, rank: int) -> Piece:
    return Piece(Shard(table.name, (0, rows), (0, table.dim), (rank,)), 1.0)


def _one_each(pieces: Sequence[Piece], ranks: Sequence[int]) -> list[Rule]:
    """At most one piece on each device."""
    return [_among([i for i, piece in enumerate(pieces) if piece.shard.devices == (rank,)], 0, 1) for rank in ranks]


def _not_all_on_one(
    pieces: Sequence[Piece], weights: Sequence[int], everything: int, hosts: Sequence[Sequence[int]]
) -> list[Rule]:
    """Less than everything on each of these hosts."""
    rules = []
    for host in hosts:
        inside = tuple(i for i, piece in enumerate(pieces) if piece.shard.devices[0] in host)
        rules += [Rule(inside, tuple(weights[i] for i in inside), 0, everything - 1)] if inside else []
    return rules


def _among(pieces: Sequence[int], low: int, high: int) -> Rule:
    """From `low` to `high` of these pieces."""
    return Rule(tuple(pieces), (1,) * len(pieces), low, high)


def ways_of(task: Task, table: Table, units: int, merging_pays: bool) -> list[Way]:
    """All ways of a table that its constraints allow; memory is not checked.

    Args:
        task: the task.
        table: one of its tables.
        units: equal column units that blocks are made of; see `column_units`.
        merging_pays: whether two blocks of the table on one device are never better than one as wide as both.
    """
    limits = task.constraints.of(table.name)
    ranks = np.flatnonzero(allowed_devices(task.topology, limits)).tolist()
    if limits.equal_columns:
        columns = [_equal_columns(table, limits, ranks, count) for count in _equal_counts(table, limits, units)]
    else:
        columns = [_columns(table, limits, ranks, units, merging_pays)]
    ways = [*columns, *row_ways(task, table, limits, ranks), *_grids(task, table, limits, ranks)]
    devices = task.topology.devices
    if limits.allows("data_parallel") and len(ranks) == devices > 1:
        replica = Piece(Shard.whole(table, *ranks), 1.0)
        ways.append(Way(table, "replica", (replica,), (Rule((0,), (1,), 1, 1),), "data_parallel"))
    return [way for way in ways if way is not None]


def column_units(table: Table, limits: TableConstraint, most: int | None) -> int:
    """Number of equal column units of a table: all, or their largest divisor of at most `most`; 1 if the table may not be cut."""
    if not limits.allows("column_wise"):
        return 1
    if limits.equal_columns:
        return _equal_counts(table, limits, most)[-1]
    units = table.dim // unit_width(table, limits)
    if most is None or units <= most:
        return units
    return max(count for count in range(1, most + 1) if units % count == 0)


def _columns(table: Table, limits: TableConstraint, ranks: Sequence[int], units: int, merging_pays: bool) -> Way | None:
    """The whole table on one device, or column blocks of any widths, several on one device if that may pay."""
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
    """`count` column blocks of one width, any number of them on a device; None if the table may not stay whole and `count` is 1."""
    if count == 1 and not limits.allows("table_wise"):
        return None
    block = (0, table.dim // count)
    pieces = tuple(Piece(Shard(table.name, (0, table.rows), block, (rank,)), 1 / count, count) for rank in ranks)
    everything = tuple(range(len(pieces)))
    return Way(table, "columns", pieces, (Rule(everything, (1,) * len(pieces), count, count),))


_STEPS = 1e6  # a device's memory in the unit of its row: one byte too many is then far above the solver's tolerance
_ORDERED = 6  # tables by which equal devices are ordered


@dataclass(frozen=True, eq=False)
class PlacementVariables:
    """Variables of a placement.

    Attributes:
        ways: all ways of all tables.
        chosen: `(ways,)` variable of each way: 1 if its table is made in it.
        pieces: all pieces of all ways, in order.
        taken: `(pieces,)` variable of each piece: how often it is taken.
        bytes: `(pieces,)` memory of a piece on each of its devices.
    """

    ways: tuple[Way, ...]
    chosen: Ints
    pieces: tuple[Piece, ...]
    taken: Ints
    bytes: Ints

    def on(self, device: int) -> Ints:
        """Indices of the pieces that lie on a device."""
        return np.array([i for i, piece in enumerate(self.pieces) if device in piece.shard.devices], dtype=np.int64)

    def shards(self, values: Floats) -> list[Shard]:
        """The shards of a solution."""
        counts = np.rint(values[self.taken]).astype(int).tolist()
        shards, first = [], 0
        for way, variable in zip(self.ways, self.chosen, strict=True):
            stop = first + len(way.pieces)
            if round(values[variable]):
                shards += way.shards(counts[first:stop])
            first = stop
        return shards


def add_placement(program: Program, task: Task, ways: Sequence[Way]) -> PlacementVariables:
    """Add variables and tiling rows: every table is made in one way, whose pieces tile it."""
    memory = task.topology.memory_bytes
    chosen = program.variables(np.ones(len(ways)), integer=True)
    for table in task.tables:
        program.row([v for v, way in zip(chosen, ways, strict=True) if way.table.name == table.name], 1.0, 1.0, 1.0)
    pieces = tuple(piece for way in ways for piece in way.pieces)
    sizes = np.array([shard_bytes(task, piece.shard) for piece in pieces], dtype=np.int64)
    fits = [
        all(size <= memory[rank] for rank in piece.shard.devices) for piece, size in zip(pieces, sizes, strict=True)
    ]
    most = [piece.most * fit for piece, fit in zip(pieces, fits, strict=True)]
    taken = program.variables(most, integer=True)
    first = 0
    for variable, way in zip(chosen, ways, strict=True):
        for rule in way.rules:
            columns, weights = taken[first + np.array(rule.pieces)], np.array(rule.weights, dtype=np.float64)
            if rule.low == rule.high:
                program.row([*columns, variable], [*weights, -rule.low], 0.0, 0.0)
                continue
            program.row([*columns, variable], [*weights, -rule.high], high=0.0)
            if rule.low > 0:
                program.row([*columns, variable], [*weights, -rule.low], low=0.0)
        first += len(way.pieces)
    return PlacementVariables(tuple(ways), chosen, pieces, taken, sizes)


def add_memory(program: Program, placement: PlacementVariables, memory: Sequence[int]) -> None:
    """Add rows: no device holds more than its memory."""
    for rank, limit in enumerate(memory):
        held = placement.on(rank)
        sizes = np.minimum(placement.bytes[held] / limit, 2.0)  # pieces that are too large alone may count alike
        program.row(placement.taken[held], sizes * _STEPS, high=_STEPS)


def add_relations(program: Program, task: Task, placement: PlacementVariables) -> None:
    """Add rows: colocated tables lie on the same devices, and no two tables kept apart share a device."""
    constraints = task.constraints
    group_of = {name: group for group in constraints.colocated_groups() for name in group}
    tied = dict.fromkeys([*group_of, *(name for names in constraints.apart for name in names)])
    devices = task.topology.devices
    lies: dict[frozenset[str], Ints] = {}
    for name in tied:
        group = group_of.get(name, frozenset((name,)))
        if group not in lies:
            lies[group] = program.variables(np.ones(devices), integer=True)
        _tie(program, placement, name, lies[group])
    for names in constraints.apart:
        variables = np.array([lies[group_of.get(name, frozenset((name,)))] for name in dict.fromkeys(names)])
        for rank in range(devices):
            program.row(variables[:, rank], 1.0, high=1.0)


def add_order(program: Program, task: Task, placement: PlacementVariables) -> None:
    """Add rows: devices that can be swapped hold non-increasing shares of the busiest tables, so that one of many equal plans remains."""
    busiest = sorted(task.tables, key=lambda table: -table.pooling * table.dim)[:_ORDERED]
    weight = {table.name: 3.0**-place for place, table in enumerate(busiest)}
    loads = []
    for rank in range(task.topology.devices):
        held = placement.on(rank)
        pieces = [placement.pieces[i] for i in held]
        loads.append((held, np.array([weight.get(piece.shard.table, 0.0) * piece.share for piece in pieces])))
    for ranks in _alike(task).values():
        for first, second in pairwise(ranks):
            columns = placement.taken[np.concatenate([loads[first][0], loads[second][0]])]
            program.row(columns, np.concatenate([loads[first][1], -loads[second][1]]), low=0.0)


def _alike(task: Task) -> dict[Hashable, list[int]]:
    """Groups of devices that can be swapped: on one host, with equal memory, and with the same tables allowed."""
    topology, groups = task.topology, defaultdict[Hashable, list[int]](list)
    pinned = [limits.devices for limits in task.constraints.tables.values() if limits.devices is not None]
    for rank, memory in enumerate(topology.memory_bytes):
        groups[topology.host_of(rank), memory, tuple(rank in ranks for ranks in pinned)].append(rank)
    return groups


def add_present(program: Program, placement: PlacementVariables, held: Ints) -> int:
    """Add a variable that is 1 if some of the pieces `held`, all on one device, are taken."""
    (present,) = program.variables([1.0], integer=True)
    names = np.array([placement.pieces[i].shard.table for i in held])
    for name in dict.fromkeys(names.tolist()):
        mine = held[names == name]
        shares = np.array([placement.pieces[i].share for i in mine])
        program.row([*placement.taken[mine], present], [*shares, -1.0], high=0.0)
    return int(present)


def _tie(program: Program, placement: PlacementVariables, name: str, lies: Ints) -> None:
    """Add rows: `lies` is 1 exactly on the devices that hold a piece of the table."""
    for rank, variable in enumerate(lies):
        held = _held(placement, name, rank)
        columns = [*placement.taken[held], variable]
        shares = np.array([placement.pieces[i].share for i in held])
        program.row(columns, [*shares, -1.0], high=0.0)
        program.row(columns, [*np.ones(held.size), -1.0], low=0.0)


def _held(placement: PlacementVariables, name: str, rank: int) -> Ints:
    on_device = placement.on(rank)
    return np.array([i for i in on_device if placement.pieces[i].shard.table == name], dtype=np.int64)
