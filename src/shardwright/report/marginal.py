"""By how much a step would get shorter without a table: leave-one-out times by the cost model.

A fused kernel does not cost the sum of its tables, and a collective waits for the busiest link: no share of a table can be read off a
device's time. What can be asked is what the device would take without the table. These times do not add up to the device's: together they
fall short of it where tables share a launch, and exceed it where tables hinder each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.groups import with_groups
from shardwright.cost.model import CostModel
from shardwright.cost.score import LinkTraffic, score, traffic
from shardwright.sharding.calls import numbered_calls
from shardwright.sharding.costs import PHASES, PlanCost
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import shard_work

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_NOISE = 1e-9  # of a device's bytes: what is left of them after all have been subtracted again
_AT_ONCE = 16_384  # cells: their hidden units stay in the processor's caches


@dataclass(frozen=True, eq=False)
class Marginals:
    """What each table adds to the times of a plan. A *cell* is a table on a device that holds a block of it.

    Attributes:
        times: `(devices, 4)` ms of the phases, by the cost model that priced the rest.
        cells: `(n, 2)` table (its place in the task) and device of each cell, ascending.
        cell_ms: `(n, 4)` by how much the phases of the cell's device would get shorter without the table.
        slowest: `(4,)` the device that takes longest in each phase, by the plan's own predicted cost where it has one.
        slowest_ms: `(tables, 4)` by how much that device's phase would get shorter; it may only exchange values of the table, not hold it.
        phase_ms: `(tables, 4)` by how much the phase would get shorter, which may be less: the next slowest device then decides.
        cost_model: name of the cost model.
    """

    times: Floats
    cells: Ints
    cell_ms: Floats
    slowest: Ints
    slowest_ms: Floats
    phase_ms: Floats
    cost_model: str


def marginals(plan: Plan, cost_model: CostModel) -> Marginals:
    """Leave-one-out times of all tables of a plan.

    Args:
        plan: a plan.
        cost_model: prices the plan and its parts.

    Raises:
        ShardwrightError: the cost model predicted NaN.
    """
    cost_model = with_groups(cost_model, plan.task)
    cost = score(plan.task, plan.shards, cost_model)
    times = _times(cost)
    number = {table.name: index for index, table in enumerate(plan.task.tables)}
    places = sorted({(number[shard.table], rank) for shard in plan.shards for rank in shard.devices})
    cells = np.array(places, dtype=np.int64)
    cell_ms = np.zeros((len(cells), len(PHASES)))
    cell_ms[:, [0, 3]] = _compute_ms(plan, cost_model, cells)
    starts = np.searchsorted(cells[:, 0], np.arange(len(plan.task.tables) + 1))
    slowest = _times(plan.cost or cost).argmax(axis=0)
    slowest_ms, phase_ms = np.zeros((2, len(plan.task.tables), len(PHASES)))
    links = _Links(plan)
    for index, table in enumerate(plan.task.tables):
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
    """`(n, 2)` by how much the forward and the backward kernels of each cell's device would get shorter without its table."""
    works = [shard_work(plan.task, shard) for shard in plan.shards]
    latents, kinds = cost_model.encode(works), numbered_calls(works)
    place = {(table, device): row for row, (table, device) in enumerate(cells.tolist())}
    number = {table.name: index for index, table in enumerate(plan.task.tables)}
    # A part is what a cell has in one fused call of its device: one, as a rule.
    held = [
        (place[number[shard.table], rank], kind, index)
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
        rest[fellows[of_call] == 1] = 0.0  # a call with nothing in it is not made
        np.add.at(less, keys[0, some], pricing.price(sums[of_call]) - rest)
    alone = np.bincount(cells[:, 1], minlength=plan.task.topology.devices)[cells[:, 1]] == 1
    less[alone] += pricing.once
    return less


class _Links:
    """Communication times of a plan without one of its tables: traffic is a sum over tables, time is not."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all = traffic(plan.task, plan.shards)

    def without(self, table: str) -> Floats:
        """`(devices, 2)` forward and backward communication ms."""
        part = traffic(self._plan.task, self._plan.by_table[table])
        passes = ((self._all.forward, part.forward), (self._all.backward, part.backward))
        topology = self._plan.task.topology
        return np.stack([_difference(whole, less).milliseconds(topology) for whole, less in passes], axis=1)


def _difference(whole: LinkTraffic, part: LinkTraffic) -> LinkTraffic:
    result = replace(whole)
    for field in ("sent", "received"):
        before, less = getattr(whole, field), getattr(part, field)
        left = before - less
        setattr(result, field, np.where(left > _NOISE * before, left, 0.0))
    return result
