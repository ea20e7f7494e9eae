"""The arrays of NeuroShard's search, made from a task and turned back into shards: every unit whole, halved, quartered, … if it can be.

A *row* is one width of one unit. Rows are numbered by the predicted time of the piece alone, longest first. So a sorted array of rows is
a set of pieces in the order in which the greedy places them. Predicted times are compared in whole ticks: rounding must not decide which
of two equals is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np

from shardwright._engine import TICKS, link_ticks
from shardwright._engine import Pieces as NativePieces
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.cost.score import served_bytes, traffic
from shardwright.search.engine.assembly import link_facts
from shardwright.search.engine.catalog import Added, check_finite, vectors_of
from shardwright.search.units import Unit, Units, beside_fixed, rivals_of
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.work import Call, call_of, shard_work
from shardwright.task.task import Task


class Arrays(NamedTuple):
    """n pieces as arrays.

    Attributes:
        added: what each piece adds to the fused calls of its device.
        bytes: `(n,)` memory.
        dims: `(n,)` columns; of a colocated group, of its tables together.
        served: `(n, 2)` bytes of values and of ids.
    """

    added: Added
    bytes: Ints
    dims: Ints
    served: Floats

    def take(self, order: Ints) -> Arrays:
        """The pieces in this order."""
        return Arrays(self.added.take(order), self.bytes[order], self.dims[order], self.served[order])


def encode(task: Task, pieces: Sequence[Sequence[Shard]], cost_model: CostModel, calls: dict[Call, int]) -> Arrays:
    """The arrays of pieces given as blocks.

    Args:
        task: the task.
        pieces: the blocks of each piece.
        cost_model: encodes them.
        calls: the numbers of the fused calls seen so far; new ones are added.

    Raises:
        ShardwrightError: the cost model predicted a time that is not finite.
    """
    flat = [block for blocks in pieces for block in blocks]
    works = [shard_work(task, block) for block in flat]
    begins = np.cumsum([0, *(len(blocks) for blocks in pieces)])
    call = np.array([calls.setdefault(call_of(work), len(calls)) for work in works], dtype=np.int64)
    groups = np.split(np.arange(len(flat)), begins[1:-1])
    added = Added.of_groups(call, vectors_of(cost_model, cost_model.encode(works)), groups)
    check_finite(single_ticks(added, cost_model), cost_model)
    return Arrays(
        added,
        np.add.reduceat(np.array([shard_bytes(task, block) for block in flat], dtype=np.int64), begins[:-1]),
        np.add.reduceat(np.array([block.dim for block in flat], dtype=np.int64), begins[:-1]),
        np.add.reduceat(np.array([served_bytes(work) for work in works]).reshape(-1, 2), begins[:-1]),
    )


def single_ticks(added: Added, cost_model: CostModel) -> Floats:
    """`(n,)` predicted forward + backward ticks of each piece alone."""
    pricing = cost_model.pricing
    active = np.maximum(added.vectors[:, :-2] + pricing.hidden_bias, 0.0)
    times = np.maximum(active @ pricing.mix.T + added.vectors[:, -2:] + pricing.bias, 0.0)
    ticks: Floats = np.rint(added.summed(times.sum(axis=1)) * TICKS)
    return ticks


NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Pieces:
    """What the inner search reads. Letters: r rows, u units, d devices, c fused calls, h hidden units of the cost model.

    Attributes:
        part: `(r + 1,)` this and the next two: what a piece adds to the calls of its device, see `engine.catalog.Added`.
        call: see above.
        vectors: see above.
        bytes: `(r,)` memory.
        dims: `(r,)` columns; of a colocated group, of its tables together.
        served: `(r, 2)` bytes of values and of ids.
        unit: `(r,)` the unit that the piece is of.
        forbidden: `(u, d)` where no piece of a unit may lie.
        rivals: `(u, u)` which units may not share a device; `(0, 0)` if all may.
        mix: `(2, h)` see `cost.model`.
        base: `(h + 2,)` the sums of a call with nothing in it.
        once: `(2,)` ms that a device with a piece takes besides its calls.
        memory: `(d,)` bytes.
        links: `(6,)` see `engine.assembly.link_facts`.
        reduced: `(d, 2)` bytes that fixed replicas send to reduce gradients, inside a host and between hosts.
        sums: `(d, c, h + 2)` biases plus fixed shards by call; the next five are of fixed shards, too.
        counts: `(d, c)` shards in each call.
        fixed_served: `(d, 2)` bytes of values and of ids.
        fixed_dims: `(d,)` columns.
        used: `(d,)` bytes.
        occupied: `(d,)` whether a fixed shard lies there.
    """

    part: Ints
    call: Ints
    vectors: Floats
    bytes: Ints
    dims: Ints
    served: Floats
    unit: Ints
    forbidden: Bools
    rivals: Bools
    mix: Floats
    base: Floats
    once: Floats
    memory: Ints
    links: Floats
    reduced: Floats
    sums: Floats
    counts: Ints
    fixed_served: Floats
    fixed_dims: Ints
    used: Ints
    occupied: Bools

    @cached_property
    def native(self) -> NativePieces:
        """The arrays as the engine holds them."""
        return NativePieces(**{field.name: getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True, eq=False)
class Placed:
    """The best placement of a state that the inner search found.

    Attributes:
        ticks: its score; infinite if there is no placement.
        state: `(n,)` sorted rows of the pieces.
        device: `(n,)` their ranks.
    """

    ticks: float
    state: Ints
    device: Ints


def step_ticks(pieces: Pieces, state: Ints, device: Ints) -> float:
    """Step time of a placement `(n,)` of a state `(n,)` by the link model: the sum over the four phases of the maximum over devices."""
    return link_ticks(pieces.native, state, device, embedding=False)


def embedding_ticks(pieces: Pieces, state: Ints, device: Ints) -> float:
    """Embedding cost of a placement by the link model: the maximum over devices of the sum of their four phases."""
    return link_ticks(pieces.native, state, device, embedding=True)


@dataclass(frozen=True, eq=False)
class Cuts:
    """What the beam reads of every row.

    Attributes:
        whole: `(u,)` rows of the units before any split, sorted.
        half: `(r,)` row of a half; -1 where the piece cannot be halved.
        size_rank: `(r,)` place of the row by size in bytes, largest first.
        table: `(r,)` which table the piece is of; for a colocated group, its first table.
        most: `(r,)` most shards the table may have.
        calls: the numbers of fused calls.
    """

    whole: Ints
    half: Ints
    size_rank: Ints
    table: Ints
    most: Ints
    calls: dict[Call, int]


def make_pieces(task: Task, units: Units, cost_model: CostModel) -> tuple[Pieces, Cuts]:
    """The arrays of a task.

    Raises:
        ShardwrightError: the cost model predicted a time that is not finite.
    """
    halvings = [list(_halvings(task, unit)) for unit in units.free]
    flat = [blocks for widths in halvings for blocks in widths]
    unit = np.repeat(np.arange(len(halvings)), [len(widths) for widths in halvings])
    calls: dict[Call, int] = {}
    arrays = encode(task, flat, cost_model, calls)
    order: Ints = np.lexsort((np.arange(unit.size), -single_ticks(arrays.added, cost_model)))
    sizes = np.array([sum(shard_work(task, block).weight_bytes for block in blocks) for blocks in flat], dtype=np.int64)
    cuts = _cuts(task, units, unit, order, sizes, calls)
    return _pieces(task, units, cost_model, arrays.take(order), unit[order], calls), cuts


def _cuts(task: Task, units: Units, unit: Ints, order: Ints, sizes: Ints, calls: dict[Call, int]) -> Cuts:
    """What the beam reads. `unit` and `sizes` `(r,)` come unit by unit, the whole first; `order` `(r,)` says how rows are numbered."""
    row = np.empty_like(order)
    row[order] = np.arange(order.size)  # from the place in `unit` to the row
    new = unit[1:] != unit[:-1]
    half = np.where(np.append(new, True), -1, np.append(row[1:], -1))
    place = {table.name: index for index, table in enumerate(task.tables)}
    names = [unit.tables[0] for unit in units.free]
    limits = [task.constraints.of(name).max_shards or NO_LIMIT for name in names]
    return Cuts(
        whole=np.sort(row[np.append(True, new)]),
        half=half[order],
        size_rank=np.argsort(np.argsort(-sizes[order], kind="stable")),
        table=np.array([place[name] for name in names], dtype=np.int64)[unit[order]],
        most=np.array(limits, dtype=np.int64)[unit[order]],
        calls=calls,
    )


def _halvings(task: Task, unit: Unit) -> Iterator[list[Shard]]:
    """The blocks of the whole unit, then of a half of it, of a quarter, and so on."""
    yield list(unit.blocks)
    if len(unit.blocks) > 1:
        return  # colocated tables stay together
    (block,) = unit.blocks
    limits = task.constraints.of(block.table)
    if limits.allows("column_wise") and limits.max_shards != 1:
        left, dim = block.columns[0], block.dim
        multiple = math.lcm(COLUMN_UNIT, limits.column_multiple or 1)
        # With `equal_columns`, halving some blocks only would leave unequal ones: a whole table may be halved once, its cut blocks never.
        narrowest = dim // (2 if dim == task.table_by_name[block.table].dim else 1) if limits.equal_columns else 1
        while dim % (2 * multiple) == 0 and dim // 2 >= max(limits.min_columns or 1, narrowest):
            dim //= 2
            yield [replace(block, columns=(left, left + dim))]


def _pieces(
    task: Task, units: Units, cost_model: CostModel, arrays: Arrays, unit: Ints, calls: dict[Call, int]
) -> Pieces:
    """The arrays of the rows, together with those of the devices."""
    topology, pricing = task.topology, cost_model.pricing
    devices = topology.devices
    held = encode(task, [[shard] for shard in units.fixed], cost_model, calls) if units.fixed else None
    base = np.concatenate([pricing.hidden_bias, pricing.bias])
    sums, counts = np.tile(base, (devices, len(calls), 1)), np.zeros((devices, len(calls)), dtype=np.int64)
    served, dims, occupied = np.zeros((devices, 2)), np.zeros(devices, dtype=np.int64), np.zeros(devices, dtype=bool)
    for index, shard in enumerate(units.fixed):
        assert held is not None
        ranks = list(shard.devices)
        sums[ranks, held.added.call[index]] += held.added.vectors[index]
        counts[ranks, held.added.call[index]] += 1
        dims[ranks] += shard.dim
        occupied[ranks] = True
        if len(ranks) == 1:
            served[ranks[0]] += held.served[index]
    flows = traffic(task, [shard for shard in units.fixed if len(shard.devices) > 1])
    return Pieces(
        **arrays.added._asdict(),
        bytes=arrays.bytes,
        dims=arrays.dims,
        served=np.ascontiguousarray(arrays.served),
        unit=unit,
        forbidden=~beside_fixed(task, units),
        rivals=rivals_of(task, [unit.tables for unit in units.free]),
        mix=np.ascontiguousarray(pricing.mix),
        base=base,
        once=pricing.once,
        memory=np.array(topology.memory_bytes, dtype=np.int64),
        links=link_facts(topology),
        # Fixed replicas lie on every device, so they look nothing up elsewhere.
        reduced=np.ascontiguousarray(flows.backward.sent.T),
        sums=sums,
        counts=counts,
        fixed_served=served,
        fixed_dims=dims,
        used=memory_account(task, units.fixed).total,
        occupied=occupied,
    )


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
    """The shards of a placement; pieces of one table on one device are joined if that does not raise the score.

    The pieces of a unit take its columns in the order of their ranks; on one rank the widest comes first.

    Args:
        task: the task.
        units: its units.
        pieces: the arrays of the search.
        calls: the numbers of fused calls in them.
        placed: the placement.
        cost_model: prices the joined pieces.
        score: score of a placement, from the arrays, the rows and their ranks.
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
    """The arrays with one more row for each group, its pieces joined; and that row by the first piece of the group."""
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
    """`dim` columns from `start` on, of a unit that is one block."""
    (block,) = unit.blocks
    left = block.columns[0] + start
    return replace(block, columns=(left, left + dim))
