"""Price changes of a plan or its task, as a basis for advice, and compute by how much a step would be shorter without each table.

A table has no share of its device's time: a fused kernel does not cost the sum of its tables, and a collective waits for the busiest
link. But the device's time without the table can be computed, and so can the saving. These savings do not add up to the
device's time: their sum is smaller if tables share a launch, and larger if tables hinder each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import sets_of
from shardwright.cost.flows import LinkTraffic
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel
from shardwright.cost.score import communication_ms, score, timed, traffic
from shardwright.errors import InvalidPlan, ShardwrightError
from shardwright.sharding.checking import check_constraints, shards_by_table
from shardwright.sharding.costs import PHASES, PlanCost
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.work import numbered_calls, shard_work
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Table
from shardwright.task.topology import Topology

_NOISE = 1e-9  # share of a device's bytes: a remainder below it is rounding, after all bytes have been subtracted
_MOST_OUTPUTS = 100
_AT_ONCE = 16_384  # cells priced together: so few that their hidden units stay in the processor's caches


@dataclass(frozen=True, eq=False)
class Marginals:
    """The times that each table adds to a plan. A *cell* is a pair of a table and a device that holds a block of it.

    Attributes:
        times: `(devices, 4)` ms of the phases, by the cost model that also priced the savings below.
        cells: `(n, 2)` table (its index in the task) and device of each cell, ascending.
        cell_ms: `(n, 4)` ms that each phase of the cell's device would save without the table.
        slowest: `(4,)` slowest device of each phase, by the plan's own predicted cost if it has one.
        slowest_ms: `(tables, 4)` ms that the slowest device would save without the table; it may only exchange the table's values.
        phase_ms: `(tables, 4)` ms that the phase would save without the table; may be less, as the next slowest device then decides.
        cost_model: name of the cost model.
    """

    times: Floats
    cells: Ints
    cell_ms: Floats
    slowest: Ints
    slowest_ms: Floats
    phase_ms: Floats
    cost_model: str


def busiest_tables(plan: Plan) -> set[str]:
    """The tables without which a step may be much shorter: those on the slowest device of a phase, and those with most outputs.

    The slowest device exchanges outputs of all tables, but far more of those that it holds.
    """
    assert plan.cost is not None
    slowest = set(_times(plan.cost).argmax(axis=0).tolist())
    outputs = {
        table.name: table.dim * (len(table.poolings) if table.pooled else table.pooling) for table in plan.task.tables
    }
    most = sorted(outputs, key=lambda name: -outputs[name])[:_MOST_OUTPUTS]
    return {*most, *(shard.table for shard in plan.shards if not slowest.isdisjoint(shard.devices))}


def marginals(plan: Plan, cost_model: CostModel, tables: Collection[str] | None = None) -> Marginals:
    """Leave-one-out times: the saving in each phase of a plan without each of its tables.

    Args:
        plan: the plan.
        cost_model: prices the plan and its parts.
        tables: tables whose savings are computed, 0 for the others; None for all. A table takes about a millisecond.

    Raises:
        ShardwrightError: the cost model predicted NaN.
    """
    cost_model = for_task(cost_model, plan.task)
    cost = score(plan.task, plan.shards, cost_model)
    times = _times(cost)
    places = sorted({(plan.task.table_number[shard.table], rank) for shard in plan.shards for rank in shard.devices})
    cells = np.array(places, dtype=np.int64)
    cell_ms = np.zeros((len(cells), len(PHASES)))
    cell_ms[:, [0, 3]] = _compute_ms(plan, cost_model, cells)
    starts = np.searchsorted(cells[:, 0], np.arange(len(plan.task.tables) + 1))
    slowest = _times(plan.cost or cost).argmax(axis=0)
    slowest_ms, phase_ms = np.zeros((2, len(plan.task.tables), len(PHASES)))
    links = _Links(plan)
    for index, table in enumerate(plan.task.tables):
        if tables is not None and table.name not in tables:
            continue
        here = slice(starts[index], starts[index + 1])
        device = cells[here, 1]
        less = np.zeros_like(times)
        less[device] = cell_ms[here]
        less[:, 1:3] = times[:, 1:3] - links.without(table.name)
        cell_ms[here] = less[device]
        slowest_ms[index] = less[slowest, np.arange(len(PHASES))]
        phase_ms[index] = times.max(axis=0) - (times - less).max(axis=0)
    return Marginals(times, cells, cell_ms, slowest, slowest_ms, phase_ms, cost_model.name)


def _times(cost: PlanCost) -> Floats:
    return np.array([[getattr(device, phase) for phase in PHASES] for device in cost.devices], dtype=np.float64)


def _compute_ms(plan: Plan, cost_model: CostModel, cells: Ints) -> Floats:
    """`(n, 2)` ms that the forward and backward kernels of each cell's device would save without the cell's table."""
    works = [shard_work(plan.task, shard) for shard in plan.shards]
    latents, kinds = cost_model.encode(works), numbered_calls(works)
    place = {(table, device): row for row, (table, device) in enumerate(cells.tolist())}
    # A part is the blocks of a cell in one fused call of its device. Most cells have one part.
    held = [
        (place[plan.task.table_number[shard.table], rank], kind, index)
        for index, (shard, kind) in enumerate(zip(plan.shards, kinds, strict=True))
        for rank in shard.devices
    ]
    cell, kind, index = np.array(held, dtype=np.int64).T
    keys, part_of = np.unique(np.stack([cell, kind]), axis=1, return_inverse=True)
    parts = np.zeros((keys.shape[1], latents.shape[1]))
    np.add.at(parts, part_of.ravel(), latents[index])
    _, call, fellows = np.unique(
        np.stack([cells[keys[0], 1], keys[1]]), axis=1, return_inverse=True, return_counts=True
    )
    sums = np.zeros((fellows.size, latents.shape[1]))
    np.add.at(sums, call.ravel(), parts)
    pricing, less = cost_model.pricing, np.zeros((len(cells), 2))
    for start in range(0, len(parts), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        of_call = call.ravel()[some]
        rest = pricing.price(sums[of_call] - parts[some])
        rest[fellows[of_call] == 1] = 0.0  # an empty call is not made
        np.add.at(less, keys[0, some], pricing.price(sums[of_call]) - rest)
    alone = np.bincount(cells[:, 1], minlength=plan.task.topology.devices)[cells[:, 1]] == 1
    less[alone] += pricing.once
    return less


class _Links:
    """Communication times of a plan without one of its tables. Traffic is a sum over tables; time is not."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all = traffic(plan.task, plan.shards)
        self._sets = {table: sets_of(plan.task, blocks) for table, blocks in plan.by_table.items()}
        self._users = Counter(each for own in self._sets.values() for each in own)

    def without(self, table: str) -> Floats:
        """`(devices, 2)` forward and backward communication ms."""
        part = traffic(self._plan.task, self._plan.by_table[table])
        forward, backward, ids = (
            _difference(getattr(self._all, way), getattr(part, way)) for way in ("forward", "backward", "ids")
        )
        left = [each for each, users in self._users.items() if users > (each in self._sets[table])]
        rest = timed(self._plan.task, forward, backward, ids, left)
        return np.stack(rest.milliseconds(self._plan.task), axis=1)


def _difference(whole: LinkTraffic, part: LinkTraffic) -> LinkTraffic:
    result = replace(whole)
    for field in ("sent", "received", "apart"):
        before, less = getattr(whole, field), getattr(part, field)
        left = before - less
        setattr(result, field, np.where(left > _NOISE * before, left, 0.0))
    return result


Kind: TypeAlias = Literal["plan", "memory", "constraint", "batch", "links", "latency"]

_TABLES = 2  # number of costliest tables whose other placements are priced
_LEAST = 0.01  # least share of a step that such a table must be worth
_NAME = 40  # most characters of a table's name in a text


@dataclass(frozen=True)
class Change:
    """A change and its saving by the cost model.

    Attributes:
        kind: requirement of the change: another "plan" of the same task; another plan and more "memory" or a looser "constraint"; a larger
            "batch"; faster "links"; or links without "latency".
        text: the change, worded as the beginning of a sentence.
        gain: share of a step's time that the change saves; for a larger batch, share of the time per sample.
    """

    kind: Kind
    text: str
    gain: float


def priced_changes(plan: Plan, cost_model: CostModel, marginal: Marginals) -> tuple[Change, ...]:
    """Changes that save time, the largest saving first.

    Other placements are priced for the tables whose absence would shorten a step most, one table at a time. Everything else stays in
    place, so a gain does not count what another search could add.
    """
    base = float(marginal.times.max(axis=0).sum())
    if base <= 0:
        return ()
    worth = marginal.phase_ms.sum(axis=1) / base
    costliest = [int(table) for table in np.argsort(-worth, kind="stable")[:_TABLES] if worth[table] >= _LEAST]
    changes = [_replaced(plan, cost_model, base, way) for table in costliest for way in _ways(plan, table, marginal)]
    changes += [_larger_batch(plan, cost_model, base), *_other_links(plan, base)]
    return tuple(sorted((change for change in changes if change and change.gain > 0), key=lambda change: -change.gain))


def best_use_of(plan: Plan, cost_model: CostModel, ranks: Collection[int]) -> Change | None:
    """The best change of one of the costliest tables that gives some of these devices work; it may make a step longer.

    Returns:
        The change; None if no table can be cut or moved there.
    """
    marginal = marginals(plan, cost_model)
    base, worth = float(marginal.times.max(axis=0).sum()), marginal.phase_ms.sum(axis=1)
    if base <= 0:
        return None
    costliest = [int(table) for table in np.argsort(-worth, kind="stable")[:_TABLES]]
    ways = [way for table in costliest for way in _ways(plan, table, marginal)]
    used = [way for way in ways if any(rank in ranks for shard in way[1] for rank in shard.devices)]
    priced = [_replaced(plan, for_task(cost_model, plan.task), base, way) for way in used]
    return max(
        (change for change in priced if change and change.kind == "plan"), key=lambda change: change.gain, default=None
    )


def _ways(plan: Plan, index: int, marginal: Marginals) -> Iterator[tuple[str, list[Shard]]]:
    """Other placements of one table, all of them kinds that TorchRec runs."""
    table, devices = plan.task.tables[index], plan.task.topology.devices
    now, name = plan.by_table[table.name], quoted(table)
    if devices == 1:
        return
    if now[0].devices != tuple(range(devices)) or len(now) > 1:
        yield f"replicas of {name} on all devices", [Shard.whole(table, *range(devices))]
    size = -(-table.rows // devices)
    if len(now) < devices <= table.rows:
        blocks = [(start, min(start + size, table.rows)) for start in range(0, table.rows, size)]
        shards = [Shard(table.name, rows, (0, table.dim), (rank,)) for rank, rows in enumerate(blocks)]
        yield f"row blocks of {name} on all devices", shards
    if len(now) > 1 or len(now[0].devices) > 1:
        return
    home = now[0].devices[0]
    idle = int(np.argmin(np.where(np.arange(devices) == home, np.inf, marginal.times.sum(axis=1))))
    yield f"{name} on device {idle}", [Shard.whole(table, idle)]
    half = table.dim // (2 * COLUMN_UNIT) * COLUMN_UNIT
    if half:
        parts = (((0, half), home), ((half, table.dim), idle))
        shards = [Shard(table.name, (0, table.rows), columns, (rank,)) for columns, rank in parts]
        yield f"half the columns of {name} on device {idle}", shards


def _replaced(plan: Plan, cost_model: CostModel, base: float, way: tuple[str, list[Shard]]) -> Change | None:
    """Price other shards of one table; None if they need both more memory and a looser constraint."""
    text, new = way
    task = plan.task
    shards = [shard for shard in plan.shards if shard.table != new[0].table] + new
    cost = score(task, shards, cost_model)
    gain, lacking = 1 - cost.step_ms / base, _lacking(plan, cost)
    try:
        check_constraints(task, shards_by_table(task, shards))
    except InvalidPlan:
        return None if lacking else Change("constraint", f"{text}, which a constraint forbids,", gain)
    if lacking:
        return Change("memory", f"{text}, which needs {format_bytes(lacking)} more on a device,", gain)
    return Change("plan", text, gain)


def _lacking(plan: Plan, cost: PlanCost) -> int:
    """Bytes that the device most over its memory lacks; 0 if every device has room."""
    limits = plan.task.topology.memory_bytes
    return max(0, *(device.memory_bytes - limit for device, limit in zip(cost.devices, limits, strict=True)))


def _larger_batch(plan: Plan, cost_model: CostModel, base: float) -> Change | None:
    """Price the plan with twice the batch; None if it does not fit, or if the model did not learn from such batches."""
    size = 2 * plan.task.batch_size
    trained = cost_model.metadata.get("batch_sizes", "")
    known = [int(number) for number in trained.split(", ") if number.isdigit()]
    if known and not min(known) <= plan.task.batch_size < size <= max(known):
        return None
    try:
        exchange = replace(plan.task.exchange, dense_ms=plan.task.exchange.hidden.scaled(2.0))
        cost = score(replace(plan.task, batch_size=size, exchange=exchange), plan.shards, cost_model)
    except ShardwrightError:  # the batch is larger than a task allows or the model can price
        return None
    if _lacking(plan, cost) or cost.step_ms < base:  # a larger batch never takes less time: the prediction is wrong
        return None
    return Change("batch", f"a batch of {size:,}", 1 - cost.step_ms / (2 * base))


def _other_links(plan: Plan, base: float) -> Iterator[Change]:
    """Price links of twice the bandwidth, class by class, and links without latency."""
    topology = plan.task.topology
    if topology.devices == 1:
        return
    now = _links_ms(plan, topology)
    others: list[tuple[Kind, str, Topology]] = [
        ("latency", "links without latency", _scaled(topology, latency=0.0)),
        ("links", "twice the bandwidth inside a host", _scaled(topology, intra=2.0)),
        ("links", "twice the bandwidth between hosts", _scaled(topology, inter=2.0)),
    ]
    for kind, text, other in others:
        yield Change(kind, text, (now - _links_ms(plan, other)) / base)


def _scaled(topology: Topology, *, latency: float = 1.0, intra: float = 1.0, inter: float = 1.0) -> Topology:
    """The topology with other links, measured ones included."""
    scaled = replace(
        topology,
        intra_bandwidth=intra * topology.link_bandwidth[0],
        inter_bandwidth=inter * topology.link_bandwidth[1],
        intra_latency_ms=latency * topology.intra_latency_ms,
        inter_latency_ms=latency * topology.inter_latency_ms,
    )
    return replace(scaled, links=topology.links.scaled(latency, (intra, inter))) if topology.links else scaled


def _links_ms(plan: Plan, topology: Topology) -> float:
    """Ms of the collectives on other links."""
    return float(sum(ms.max() for ms in communication_ms(replace(plan.task, topology=topology), plan.shards)))


def quoted(table: Table) -> str:
    """A table's name in quotation marks, cut if it is long."""
    return f"'{table.name}'" if len(table.name) <= _NAME else f"'{table.name[: _NAME - 1]}…'"
