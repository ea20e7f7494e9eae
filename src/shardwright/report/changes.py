"""Changes of a plan or of its task, priced: what an advice may rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.score import Traffic, score, traffic
from shardwright.errors import InvalidPlan, ShardwrightError
from shardwright.report.marginal import Marginals
from shardwright.sharding.checking import check_constraints, shards_by_table
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.topology import Topology
from shardwright.task.units import format_bytes

Kind: TypeAlias = Literal["plan", "memory", "constraint", "batch", "links", "latency"]

_TABLES = 2  # tables of which other ways to lie are priced
_LEAST = 0.01  # share of a step that a table must be worth for that
_NAME = 40  # characters of a table's name


@dataclass(frozen=True)
class Change:
    """One change, and what it saves by the cost model.

    Attributes:
        kind: what it needs: another "plan" of the same task; more "memory", or a looser "constraint", and then another plan; a larger
            "batch", faster "links", or links without "latency".
        text: the change, as the beginning of a sentence.
        gain: share of a step's time that it saves; with a larger batch, of the time that a sample takes.
    """

    kind: Kind
    text: str
    gain: float


def priced_changes(plan: Plan, cost_model: CostModel, found: Marginals) -> tuple[Change, ...]:
    """Changes that save time, the most first.

    Other ways to lie are priced for the tables without which a step would be shortest, one table at a time. All else stays as it is, so
    what a change saves is what it saves without another search.

    Args:
        plan: the plan.
        cost_model: prices it before and after each change.
        found: the plan's marginal times by that model.
    """
    base = float(found.times.max(axis=0).sum())
    if base <= 0:
        return ()
    worth = found.phase_ms.sum(axis=1) / base
    costliest = [int(table) for table in np.argsort(-worth, kind="stable")[:_TABLES] if worth[table] >= _LEAST]
    changes = [_replaced(plan, cost_model, base, way) for table in costliest for way in _ways(plan, table, found)]
    changes += [_larger_batch(plan, cost_model, base), *_other_links(plan, base)]
    return tuple(sorted((one for one in changes if one and one.gain > 0), key=lambda one: -one.gain))


def _ways(plan: Plan, index: int, found: Marginals) -> Iterator[tuple[str, list[Shard]]]:
    """Other ways in which one table could lie, all of them ways that TorchRec runs."""
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
    idle = int(np.argmin(np.where(np.arange(devices) == home, np.inf, found.times.sum(axis=1))))
    yield f"{name} on device {idle}", [Shard.whole(table, idle)]
    half = table.dim // 8 * 4
    if half:
        parts = (((0, half), home), ((half, table.dim), idle))
        shards = [Shard(table.name, (0, table.rows), columns, (rank,)) for columns, rank in parts]
        yield f"half the columns of {name} on device {idle}", shards


def _replaced(plan: Plan, cost_model: CostModel, base: float, way: tuple[str, list[Shard]]) -> Change | None:
    """The change of one table's shards; None where it needs more than one thing."""
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
    """Bytes that the device which lacks most would need more."""
    limits = plan.task.topology.memory_bytes
    return max(0, *(one.memory_bytes - limit for one, limit in zip(cost.devices, limits, strict=True)))


def _larger_batch(plan: Plan, cost_model: CostModel, base: float) -> Change | None:
    """The same plan with twice the batch; None where it does not fit, or the model did not learn from such batches."""
    size = 2 * plan.task.batch_size
    trained = getattr(cost_model, "metadata", {}).get("batch_sizes", "")
    known = [int(one) for one in trained.split(", ") if one.isdigit()]
    if known and not min(known) <= plan.task.batch_size < size <= max(known):
        return None
    try:
        cost = score(replace(plan.task, batch_size=size), plan.shards, cost_model)
    except ShardwrightError:  # more than a task may have, or than the model can price
        return None
    if _lacking(plan, cost) or cost.step_ms < base:  # no larger batch takes less time: such a prediction is wrong
        return None
    return Change("batch", f"a batch of {size:,}", 1 - cost.step_ms / (2 * base))


def _other_links(plan: Plan, base: float) -> Iterator[Change]:
    """Links of twice the bandwidth, class by class, and links without latency."""
    topology = plan.task.topology
    if topology.devices == 1:
        return
    flows, (intra, inter) = traffic(plan.task, plan.shards), topology.link_bandwidth
    now = _links_ms(flows, topology)
    others: list[tuple[Kind, str, Topology]] = [
        ("latency", "links without latency", replace(topology, intra_latency_ms=0.0, inter_latency_ms=0.0)),
        ("links", "twice the bandwidth inside a host", replace(topology, intra_bandwidth=2 * intra)),
        ("links", "twice the bandwidth between hosts", replace(topology, inter_bandwidth=2 * inter)),
    ]
    for kind, text, other in others:
        yield Change(kind, text, (now - _links_ms(flows, other)) / base)


def _links_ms(flows: Traffic, topology: Topology) -> float:
    return float(sum(flow.milliseconds(topology).max() for flow in (flows.forward, flows.backward)))


def quoted(table: Table) -> str:
    """A table's name in a sentence, cut where it is long."""
    return f"'{table.name}'" if len(table.name) <= _NAME else f"'{table.name[: _NAME - 1]}…'"
