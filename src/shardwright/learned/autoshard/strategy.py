"""The strategy `autoshard`: a learned policy places units one after another, with numpy alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import Ints, PlacementArrays
from shardwright.learned.autoshard.policy import NAME, AutoShardWeights, Setting, decode
from shardwright.learned.policy_files import INPUTS, ByPolicy, SavedPolicy
from shardwright.learned.priced.placing import priced_plan
from shardwright.learned.priced.policy import PricedPolicy
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

TRIES = 64
"""Most orders tried when memory is so tight that the policy's own order leaves a unit without a device."""


@dataclass(frozen=True)
class AutoShard(ByPolicy):
    """Placement by a policy that AutoShard's actor and critic learned [autoshard]; it makes no column splits.

    The bundled policy reads the prices of the task's cost model, links included (see `priced.policy`). A policy learned as published
    (`preset=published`) reads table features, has its own cost network, and considers kernels only.

    Attributes:
        policy: as in `ByPolicy`.
        name: name of the strategy.
    """

    learner: ClassVar[str] = NAME

    name: str = NAME

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy. If a unit finds no device, try other orders and random draws, until one fits or the deadline has passed.

        Raises:
            InfeasibleTask: every try left a unit without a device.
            InvalidInput: the policy file cannot be read.
        """
        policy = self.read_policy(_policy)
        if isinstance(policy, PricedPolicy):
            return priced_plan(policy, task, cost_model, self.name, seed, deadline)
        arrays = PlacementArrays.of(task)
        return arrays.plan(placed(arrays, policy, seed, deadline), self.name, seed)


def _policy(saved: SavedPolicy) -> PricedPolicy | AutoShardWeights:
    return PricedPolicy(saved) if INPUTS in saved.metadata else AutoShardWeights(saved)


def placed(arrays: PlacementArrays, weights: AutoShardWeights, seed: int, deadline: float | None) -> Ints:
    """`(n,)` device of each unit.

    The first try places the costliest unit first, as in the paper. The second places units with the fewest possible devices first, larger
    ones before smaller. Later tries draw from the policy and begin with the unit that found no device in the previous try.

    Raises:
        InfeasibleTask: no try fits.
    """
    setting = Setting.of(arrays, weights)
    unit, assignment = decode(setting, weights, setting.order)
    order = arrays.hardest_first()
    rng = np.random.default_rng(seed)
    tries = 1
    while unit >= 0 and tries < TRIES and (deadline is None or time.monotonic() < deadline):
        if tries > 1:
            order = np.concatenate([[unit], order[order != unit]])
        noise = rng.gumbel(size=arrays.allowed.shape) if tries > 2 else None
        unit, assignment = decode(setting, weights, order, noise)
        tries += 1
    if unit >= 0:
        raise InfeasibleTask(arrays.left_over(unit, assignment, f"in the last of {tries} tries"))
    return assignment
