"""The baselines of every paper: sort the tables by a cost, largest first, each to the device with the lowest sum so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.placement import Eligible, place_all
from shardwright.search.support import why_not_whole
from shardwright.search.units import take_apart
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.task import Task


@dataclass(frozen=True)
class SortedGreedy:
    """Greedy by a fixed cost of each table.

    Attributes:
        name: name of the strategy.
        cost: cost of one block, from its work.
    """

    name: str
    cost: Callable[[ShardWork], float]

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the fixed cost; the cost model is not asked."""
        units = take_apart(task)
        load = np.zeros(task.topology.devices)
        for shard in units.fixed:
            load[list(shard.devices)] += self._cost_of(task, shard)
        costs = np.array([sum(self._cost_of(task, block) for block in unit.blocks) for unit in units.free])

        def choose(index: int, eligible: Eligible) -> int:
            device = int(eligible[np.argmin(load[eligible])])
            load[device] += costs[index]
            return device

        order = np.argsort(-costs, kind="stable").tolist()
        return Plan(task, place_all(task, units, order, choose), self.name, seed)

    def _cost_of(self, task: Task, shard: Shard) -> float:
        return self.cost(shard_work(task, shard))


@dataclass(frozen=True)
class Random:
    """Each table to a random device that has memory left."""

    name: str = "random"

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place at random; the cost model is not asked."""
        units = take_apart(task)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(units.free)).tolist()
        shards = place_all(task, units, order, lambda _, eligible: int(rng.choice(eligible)))
        return Plan(task, shards, self.name, seed)


def size(work: ShardWork) -> float:
    """Rows × dim."""
    return work.rows * work.dim


def dim(work: ShardWork) -> float:
    """The dim."""
    return work.dim


def lookup(work: ShardWork) -> float:
    """Dim × pooling factor."""
    return work.dim * work.pooling


def size_lookup(work: ShardWork) -> float:
    """Dim × pooling factor × log10 of the rows."""
    return work.dim * work.pooling * math.log10(work.rows)


HEURISTICS = tuple(SortedGreedy(cost.__name__, cost) for cost in (size, dim, lookup, size_lookup))
