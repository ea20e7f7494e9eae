"""Greedy by predicted fused cost: costliest table first, each to the device that is then the cheapest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.placement import Eligible, place_all
from shardwright.search.support import why_not_whole
from shardwright.search.units import take_apart
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task


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
        encoded = cost_model.encode([shard_work(task, shard) for shard in (*blocks, *units.fixed)])
        owner = np.repeat(np.arange(len(units.free)), [len(unit.blocks) for unit in units.free])
        latents = np.zeros((len(units.free), encoded.shape[1]))
        np.add.at(latents, owner, encoded[: len(blocks)])
        sums = np.zeros((task.topology.devices, encoded.shape[1]))
        for shard, latent in zip(units.fixed, encoded[len(blocks) :], strict=True):
            sums[list(shard.devices)] += latent

        price = cost_model.pricing.price

        def choose(index: int, eligible: Eligible) -> int:
            candidates = sums[eligible] + latents[index]
            device = int(eligible[np.argmin(price(candidates).sum(axis=1))])
            sums[device] += latents[index]
            return device

        order = np.argsort(-price(latents).sum(axis=1), kind="stable").tolist()
        return Plan(task, place_all(task, units, order, choose), self.name, seed)
