"""AutoShard: units placed one after another by a learned policy, greedily."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.schema import Place
from shardwright.search.autoshard.weights import LEAST_SHARE, NAME, AutoShardWeights
from shardwright.search.learned.arrays import Ints, PlacementArrays
from shardwright.search.learned.policy_files import bundled_policy, load_policy
from shardwright.search.strategy import why_not_counted
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task
from shardwright.task.units import format_bytes

if TYPE_CHECKING:
    from shardwright.search.autoshard.inference import Setting

TRIES = 64
"""Most orders tried for tasks whose memory is so tight that the policy's own order leaves a unit without a device."""


@dataclass(frozen=True)
class AutoShard:
    """The learned policy of [autoshard], see `weights`. No communication, no column splits.

    Attributes:
        policy: file of the policy; None for the one that is bundled for the task's device.
        name: name of the strategy.
    """

    policy: Path | None = None
    name: str = NAME

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated, if there is a policy."""
        if self._file(task) is None:
            return (
                f"no policy for device '{task.topology.device}' is bundled; learn one with 'shardwright learn {NAME}' and name it "
                "with --policy"
            )
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy, whose own cost model decides; `cost_model` is not asked.

        Only where a unit finds no device are other orders and random draws tried, until one fits or the deadline has passed.

        Raises:
            InfeasibleTask: every try left a unit without a device, or there is no policy.
            InvalidInput: the policy file cannot be read.
        """
        arrays = PlacementArrays.of(task)
        file = self._file(task)
        if file is None:
            raise InfeasibleTask(f"strategy '{self.name}' cannot plan this task: {self.supports(task)}")
        with Place(str(file)).naming():
            weights = AutoShardWeights(load_policy(file, NAME))
        if not len(arrays):
            return Plan(task, arrays.units.fixed, self.name, seed)
        return arrays.plan(placed(arrays, weights, seed, deadline), self.name, seed)

    def _file(self, task: Task) -> Path | None:
        return self.policy or bundled_policy(NAME, task.topology.device)


def placed(arrays: PlacementArrays, weights: AutoShardWeights, seed: int, deadline: float | None) -> Ints:
    """`(n,)` device of each unit.

    Tries, until one fits: costliest unit first, as in the paper; units with the fewest possible devices first, among those the largest;
    then the same with draws of the policy in place of its best choice. A unit that found no device comes first in the next try.

    Raises:
        InfeasibleTask: none fits.
    """
    from shardwright.search.autoshard.inference import decode

    setting, order = _setting(arrays, weights)
    decoder = weights.decoder()
    unit, assignment = decode(setting, decoder, order)
    order = _hardest_first(arrays)
    rng = np.random.default_rng(seed)
    tries = 1
    while unit >= 0 and tries < TRIES and (deadline is None or time.monotonic() < deadline):
        if tries > 1:
            order = np.concatenate([[unit], order[order != unit]])
        noise = rng.gumbel(size=arrays.allowed.shape) if tries > 2 else None
        unit, assignment = decode(setting, decoder, order, noise)
        tries += 1
    if unit >= 0:
        raise _nowhere(arrays, unit, assignment, tries)
    return assignment


def _setting(arrays: PlacementArrays, weights: AutoShardWeights) -> tuple[Setting, Ints]:
    """The arrays of the greedy, and the units by predicted cost alone, largest first."""
    from shardwright.search.autoshard.inference import Setting

    blocks = weights.encode(arrays.features)
    units = np.zeros((len(arrays), blocks.shape[1]))
    np.add.at(units, arrays.unit_of, blocks)
    fixed = arrays.fixed_on.T.astype(np.float64) @ weights.encode(arrays.fixed_features)
    total = units.sum(axis=0) + fixed.sum(axis=0)
    setting = Setting(
        units=units,
        bytes=arrays.bytes,
        allowed=arrays.allowed,
        rivals=arrays.rivals if arrays.rivals.any() else np.zeros((0, 0), dtype=bool),
        fixed=np.ascontiguousarray(fixed),
        occupied=np.asarray(arrays.fixed_on.any(axis=0)),
        used=arrays.used,
        memory=arrays.memory,
        even=max(LEAST_SHARE, float(weights.relative_cost(total / arrays.devices))),
    )
    return setting, np.argsort(-weights.relative_cost(units), kind="stable")


def _hardest_first(arrays: PlacementArrays) -> Ints:
    """`(n,)` units with the fewest devices that are allowed and large enough first, among those the largest."""
    choices = (arrays.allowed & (arrays.used + arrays.bytes[:, None] <= arrays.memory)).sum(axis=1)
    return np.lexsort((-arrays.bytes, choices))


def _nowhere(arrays: PlacementArrays, unit: int, assignment: Ints, tries: int) -> InfeasibleTask:
    """Names a unit for which no device was left in the last of the tries."""
    done = assignment >= 0
    used = arrays.used + np.bincount(assignment[done], arrays.bytes[done], arrays.devices).astype(np.int64)
    left = max(0, int((arrays.memory - used)[arrays.allowed[unit]].max()))
    return InfeasibleTask(
        f"no device is left for table '{', '.join(arrays.units.free[unit].tables)}', which needs {format_bytes(int(arrays.bytes[unit]))}: "
        f"in the last of {tries} tries the devices it may use had at most {format_bytes(left)} left, or held a table it is to be kept "
        "apart from; allow column_wise or row_wise for it, use more devices or memory, or plan with certified"
    )
