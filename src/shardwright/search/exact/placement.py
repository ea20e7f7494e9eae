"""Placing as rows of a program: tiling, memory, colocation and separation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.search.exact.ways import Piece, Way
from shardwright.search.program import Program
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_STEPS = (
    1e6  # what a device's memory counts for in its row: a byte too many then stays far above the solver's tolerance
)
_ORDERED = 6  # tables that tell equal devices apart


@dataclass(frozen=True, eq=False)
class Placement:
    """Variables of a placement.

    Attributes:
        ways: all ways of all tables.
        chosen: `(ways,)` variable of each way: 1 if it is the table's.
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


def add_placement(program: Program, task: Task, ways: Sequence[Way]) -> Placement:
    """Variables and tiling rules: every table is made in one way, whose pieces tile it."""
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
    return Placement(tuple(ways), chosen, pieces, taken, sizes)


def add_memory(program: Program, placement: Placement, memory: Sequence[int]) -> None:
    """No device holds more than its memory."""
    for rank, limit in enumerate(memory):
        held = placement.on(rank)
        sizes = np.minimum(placement.bytes[held] / limit, 2.0)  # all that is too large alone is alike
        program.row(placement.taken[held], sizes * _STEPS, high=_STEPS)


def add_relations(program: Program, task: Task, placement: Placement) -> None:
    """Colocated tables lie on the same devices; of tables kept apart no two share a device."""
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


def add_order(program: Program, task: Task, placement: Placement) -> None:
    """Devices that can be swapped hold non-increasing shares of the busiest tables: one order of each set of equal plans is enough."""
    busiest = sorted(task.tables, key=lambda table: -table.pooling * table.dim)[:_ORDERED]
    weight = {table.name: 3.0**-place for place, table in enumerate(busiest)}
    loads = []
    for rank in range(task.topology.devices):
        held = placement.on(rank)
        pieces = [placement.pieces[i] for i in held]
        loads.append((held, np.array([weight.get(piece.shard.table, 0.0) * piece.share for piece in pieces])))
    for ranks in _alike(task).values():
        for one, other in pairwise(ranks):
            columns = placement.taken[np.concatenate([loads[one][0], loads[other][0]])]
            program.row(columns, np.concatenate([loads[one][1], -loads[other][1]]), low=0.0)


def _alike(task: Task) -> dict[Hashable, list[int]]:
    """Devices of one host with equal memory on which the same tables are allowed."""
    topology, groups = task.topology, defaultdict[Hashable, list[int]](list)
    pinned = [limits.devices for limits in task.constraints.tables.values() if limits.devices is not None]
    for rank, memory in enumerate(topology.memory_bytes):
        groups[topology.host_of(rank), memory, tuple(rank in ranks for ranks in pinned)].append(rank)
    return groups


def add_present(program: Program, placement: Placement, held: Ints) -> int:
    """A variable that is 1 where some of the pieces `held`, all on one device, are taken."""
    (present,) = program.variables([1.0], integer=True)
    names = np.array([placement.pieces[i].shard.table for i in held])
    for name in dict.fromkeys(names.tolist()):
        mine = held[names == name]
        shares = np.array([placement.pieces[i].share for i in mine])
        program.row([*placement.taken[mine], present], [*shares, -1.0], high=0.0)
    return int(present)


def _tie(program: Program, placement: Placement, name: str, lies: Ints) -> None:
    """`lies` is 1 exactly on the devices that hold a piece of the table."""
    for rank, variable in enumerate(lies):
        held = _held(placement, name, rank)
        columns = [*placement.taken[held], variable]
        shares = np.array([placement.pieces[i].share for i in held])
        program.row(columns, [*shares, -1.0], high=0.0)
        program.row(columns, [*np.ones(held.size), -1.0], low=0.0)


def _held(placement: Placement, name: str, rank: int) -> Ints:
    on_device = placement.on(rank)
    return np.array([i for i in on_device if placement.pieces[i].shard.table == name], dtype=np.int64)
