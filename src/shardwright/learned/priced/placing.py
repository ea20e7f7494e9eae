"""The best of a policy's placements of a task, by the cost model's own prices; other orders of the units if memory is tight."""

from __future__ import annotations

import time

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.priced.policy import Placements, PricedPolicy, place
from shardwright.learned.priced.task import PricedTask
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

COPIES = 32
"""Most copies of a placement; the policy's likeliest choices and samples of it."""
MOST_NUMBERS = 131_072
"""Most units times devices times copies: as long as one placement of 1,000 units on 128 devices takes."""
TRIES = 8
"""Most orders tried if memory is so tight that no copy places every unit."""


def copies_for(arrays: PlacementArrays) -> int:
    """Number of copies of a task's placement: `COPIES` for small tasks, one for large ones."""
    return int(np.clip(MOST_NUMBERS // max(1, len(arrays) * arrays.devices), 1, COPIES))


def priced_plan(
    policy: PricedPolicy,
    task: Task,
    cost_model: CostModel,
    name: str,
    seed: int,
    deadline: float | None,
    copies: int | None = None,
) -> Plan:
    """The plan of the fastest placement, of strategy `name`; by default out of `copies_for` placements.

    Raises:
        InfeasibleTask: every try left a unit without a device.
    """
    arrays = PlacementArrays.of(task, features=False)
    priced = PricedTask.of(arrays, cost_model)
    return arrays.plan(placements(policy, priced, copies or copies_for(arrays), seed, deadline)[0], name, seed)


def placements(policy: PricedPolicy, priced: PricedTask, copies: int, seed: int, deadline: float | None) -> list[Ints]:
    """`(n,)` devices of the units in each distinct whole placement, fastest first; at least one.

    If every copy leaves a unit without a device, the hardest units come first: those with the fewest devices to choose from, then the
    largest. Later tries begin with the unit that found no device before.

    Raises:
        InfeasibleTask: every try left a unit without a device.
    """
    rng = np.random.default_rng(seed)
    arrays, order = priced.arrays, None
    for _ in range(TRIES + 1):
        placed = place(policy, priced, rng, copies, order)
        if placed.whole.any():
            return _fastest_first(placed)
        stuck = int(np.argmin(placed.assignment[0] >= 0))
        if deadline is not None and time.monotonic() > deadline:
            break
        copies = max(copies, 2)
        order = arrays.hardest_first() if order is None else np.concatenate([[stuck], order[order != stuck]])
    raise InfeasibleTask(arrays.left_over(stuck, placed.assignment[0], "in the last of several orders"))


def _fastest_first(placed: Placements) -> list[Ints]:
    ranked = np.argsort(placed.step, kind="stable")
    return list(
        {placed.assignment[copy].tobytes(): placed.assignment[copy] for copy in ranked if placed.whole[copy]}.values()
    )
