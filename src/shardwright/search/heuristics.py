"""The baselines: tables sorted by a cost, largest first, each to the device with the lowest sum so far; and `greedy`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.strategy import why_not_whole
from shardwright.search.units import Eligible, place_all, take_apart
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, numbered_calls, shard_work
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


@dataclass(frozen=True)
class FusedGreedy:
    """The inner step of NeuroShard's search, without its bound on dims: fused, not summed, costs decide."""

    name: str = "greedy"

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the predicted kernel time of each device with the table on it."""
        units = take_apart(task)
        blocks = [block for unit in units.free for block in unit.blocks]
        works = [shard_work(task, shard) for shard in (*blocks, *units.fixed)]
        encoded, call = cost_model.encode(works), np.array(numbered_calls(works), dtype=np.int64)
        calls = int(call.max(initial=-1)) + 1
        owner = np.repeat(np.arange(len(units.free)), [len(unit.blocks) for unit in units.free])
        latents = np.zeros((len(units.free), calls, encoded.shape[1]))
        np.add.at(latents, (owner, call[: len(blocks)]), encoded[: len(blocks)])
        within = np.zeros(latents.shape[:2], dtype=bool)
        within[owner, call[: len(blocks)]] = True
        sums, present = (
            np.zeros((task.topology.devices, *latents.shape[1:])),
            np.zeros((task.topology.devices, calls), bool),
        )
        for shard, kind, latent in zip(units.fixed, call[len(blocks) :], encoded[len(blocks) :], strict=True):
            sums[list(shard.devices), kind] += latent
            present[list(shard.devices), kind] = True
        # What a device pays once it pays with any table on it, so it decides nothing.
        price = cost_model.pricing.price
        times = np.where(present, price(sums).sum(axis=2), 0.0)

        def choose(index: int, eligible: Eligible) -> int:
            some = np.flatnonzero(within[index])
            now = price(sums[eligible[:, None], some] + latents[index, some]).sum(axis=2)
            after = times[eligible].sum(axis=1) - times[eligible[:, None], some].sum(axis=1) + now.sum(axis=1)
            best = int(np.argmin(after))
            device = int(eligible[best])
            sums[device, some] += latents[index, some]
            times[device, some] = now[best]
            return device

        alone = np.where(within, price(latents).sum(axis=2), 0.0).sum(axis=1)
        order = np.argsort(-alone, kind="stable").tolist()
        return Plan(task, place_all(task, units, order, choose), self.name, seed)
