"""From a task to the arrays of NeuroShard's search: every unit whole, halved, quartered, … as far as it can be.

A *row* is one width of one unit. Rows are numbered by the predicted time of the piece alone, longest first, so that a sorted array of
rows is a set of pieces in the order in which the greedy places them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from shardwright import _engine
from shardwright.cost.model import CostModel
from shardwright.cost.score import traffic
from shardwright.search.engine.assembly import link_facts
from shardwright.search.neuroshard.encoding import Arrays, Bools, Floats, Ints, encode, single_ticks
from shardwright.search.units import Unit, Units
from shardwright.sharding.calls import Call
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task

MULTIPLE = 4  # the columns of a half are divisible by it
NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Pieces:
    """What the inner search reads. Letters: r rows, u units, d devices, c fused calls, h hidden units of the cost model.

    Attributes:
        part: `(r + 1,)` this and the next two: what a piece adds to the calls of its device, see `engine.blocks.Added`.
        call: see above.
        vectors: see above.
        bytes: `(r,)` memory.
        dims: `(r,)` columns; of a colocated group, of its tables together.
        served: `(r, 2)` bytes of values and of ids.
        unit: `(r,)` whose piece it is.
        forbidden: `(u, d)` where no piece of a unit may lie.
        rivals: `(u, u)` which units may not share a device; `(0, 0)` where all may.
        mix: `(2, h)` see `cost.model`.
        base: `(h + 2,)` the sums of a call with nothing in it.
        once: `(2,)` ms that a device with a piece takes besides its calls.
        memory: `(d,)` bytes.
        links: `(6,)` see `engine.assembly.link_facts`.
        reduced: `(d, 2)` bytes that fixed replicas send to reduce gradients, inside a host and between hosts.
        sums: `(d, c, h + 2)` biases and fixed shards by call, as are the next five.
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
    def native(self) -> _engine.Pieces:
        """The arrays as the engine holds them."""
        return _engine.Pieces(**{field.name: getattr(self, field.name) for field in fields(self)})


def step_ticks(pieces: Pieces, state: Ints, device: Ints) -> float:
    """Step time of a placement `(n,)` of a state `(n,)` by the link model: the sum over the four phases of the maximum over devices."""
    return _engine.step_ticks(pieces.native, state, device)


@dataclass(frozen=True, eq=False)
class Cuts:
    """What the beam reads of every row.

    Attributes:
        whole: `(u,)` rows of the units before any split, sorted.
        half: `(r,)` row of a half; -1 where the piece cannot be halved.
        size_rank: `(r,)` place of the row by size in bytes, largest first.
        table: `(r,)` which table the piece is of; of a colocated group, its first.
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
        ShardwrightError: the cost model predicted NaN.
    """
    halvings = [list(_halvings(task, unit)) for unit in units.free]
    flat = [blocks for widths in halvings for blocks in widths]
    unit = np.repeat(np.arange(len(halvings)), [len(widths) for widths in halvings])
    calls: dict[Call, int] = {}
    arrays = encode(task, flat, cost_model, calls)
    order: Ints = np.lexsort((np.arange(unit.size), -single_ticks(arrays.added, cost_model)))
    sizes = np.array([_weight_bytes(task, blocks) for blocks in flat], dtype=np.int64)
    cuts = _cuts(task, units, unit, order, sizes, calls)
    return _pieces(task, units, cost_model, arrays.take(order), unit[order], calls), cuts


def _cuts(task: Task, units: Units, unit: Ints, order: Ints, sizes: Ints, calls: dict[Call, int]) -> Cuts:
    """What the beam reads; `unit` and `sizes` `(r,)` come unit by unit, the whole first, `order` `(r,)` is how the rows are numbered."""
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
        multiple = math.lcm(MULTIPLE, limits.column_multiple or 1)
        # Halves of some blocks and not of others are no equal blocks: of these there are two, or those that the table was cut into before.
        narrowest = dim // (2 if dim == task.table_by_name[block.table].dim else 1) if limits.equal_columns else 1
        while dim % (2 * multiple) == 0 and dim // 2 >= max(limits.min_columns or 1, narrowest):
            dim //= 2
            yield [replace(block, columns=(left, left + dim))]


def _weight_bytes(task: Task, blocks: Sequence[Shard]) -> int:
    return sum(shard_work(task, block).weight_bytes for block in blocks)


def _pieces(
    task: Task, units: Units, cost_model: CostModel, arrays: Arrays, unit: Ints, calls: dict[Call, int]
) -> Pieces:
    """The arrays of the rows, with those of the devices."""
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
        forbidden=_forbidden(task, units),
        rivals=_rivals(task, units),
        mix=np.ascontiguousarray(pricing.mix),
        base=base,
        once=pricing.once,
        memory=np.array(topology.memory_bytes, dtype=np.int64),
        links=link_facts(topology),
        # Fixed replicas lie on every device: they look nothing up elsewhere.
        reduced=np.ascontiguousarray(flows.backward.sent.T),
        sums=sums,
        counts=counts,
        fixed_served=served,
        fixed_dims=dims,
        used=memory_account(task, units.fixed).total,
        occupied=occupied,
    )


def _forbidden(task: Task, units: Units) -> Bools:
    """Pinning, and devices with a fixed shard of a table that the unit is to be kept apart from."""
    masks = np.array([~unit.allowed for unit in units.free], dtype=bool).reshape(-1, task.topology.devices)
    pairs = task.constraints.apart_pairs()
    for shard in units.fixed if pairs else ():
        for index, unit in enumerate(units.free):
            if any(frozenset((shard.table, name)) in pairs for name in unit.tables):
                masks[index, list(shard.devices)] = True
    return masks


def _rivals(task: Task, units: Units) -> Bools:
    pairs = task.constraints.apart_pairs()
    holders: dict[str, list[int]] = {}
    for index, unit in enumerate(units.free if pairs else ()):
        for name in unit.tables:
            holders.setdefault(name, []).append(index)
    rivals = np.zeros((len(units.free) if pairs else 0,) * 2, dtype=bool)
    for one, other in map(sorted, pairs):
        for index in holders.get(one, ()):
            rivals[index, holders.get(other, [])] = rivals[holders.get(other, []), index] = True
    return rivals
