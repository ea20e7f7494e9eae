"""AutoShard as a strategy: units placed one after another by a learned policy, greedily, with numpy alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.schema import Place
from shardwright.search.autoshard.policy import NAME, AutoShardWeights, Setting, decode
from shardwright.search.learned.arrays import Ints, PlacementArrays
from shardwright.search.learned.policy_files import load_policy, policy_file, why_not_placed
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

TRIES = 64
"""Most orders tried for tasks whose memory is so tight that the policy's own order leaves a unit without a device."""


@dataclass(frozen=True)
class AutoShard:
    """The learned policy of [autoshard], see `policy`. No communication, no column splits.

    Attributes:
        policy: file of the policy; None for the one that is bundled for the task's device.
        name: name of the strategy.
    """

    policy: Path | None = None
    name: str = NAME

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated, if there is a policy."""
        return why_not_placed(task, self.policy, NAME)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy, whose own cost model decides; `cost_model` is not asked.

        Only where a unit finds no device are other orders and random draws tried, until one fits or the deadline has passed.

        Raises:
            InfeasibleTask: every try left a unit without a device, or there is no policy.
            InvalidInput: the policy file cannot be read.
        """
        arrays = PlacementArrays.of(task)
        file = policy_file(task, self.policy, NAME)
        if file is None:
            raise InfeasibleTask(f"strategy '{self.name}' cannot plan this task: {self.supports(task)}")
        with Place(str(file)).naming():
            weights = AutoShardWeights(load_policy(file, NAME))
        if not len(arrays):
            return Plan(task, arrays.units.fixed, self.name, seed)
        return arrays.plan(placed(arrays, weights, seed, deadline), self.name, seed)


def placed(arrays: PlacementArrays, weights: AutoShardWeights, seed: int, deadline: float | None) -> Ints:
    """`(n,)` device of each unit.

    Tries, until one fits: costliest unit first, as in the paper; units with the fewest possible devices first, among those the largest;
    then the same with draws of the policy in place of its best choice. A unit that found no device comes first in the next try.

    Raises:
        InfeasibleTask: none fits.
    """
    setting = Setting.of(arrays, weights)
    unit, assignment = decode(setting, weights, setting.order)
    order = _hardest_first(arrays)
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


def _hardest_first(arrays: PlacementArrays) -> Ints:
    """`(n,)` units with the fewest devices that are allowed and large enough first, among those the largest."""
    choices = (arrays.allowed & (arrays.used + arrays.bytes[:, None] <= arrays.memory)).sum(axis=1)
    return np.lexsort((-arrays.bytes, choices))
