"""How far the policy's cost model is from the truth, on devices it has never seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.search.autoshard.strategy import AutoShardWeights
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.worlds import World, compute_ms
from shardwright.task.task import Task

PLACEMENTS = 4
"""Random placements of each task."""


def cost_errors(policy: SavedPolicy, tasks: Sequence[Task], world: World, seed: int) -> dict[str, float]:
    """Relative errors of the predicted forward + backward time of devices, under random placements of all degrees of balance.

    Args:
        policy: whose cost model it is.
        tasks: tasks it was not trained on.
        world: says what placements really cost.
        seed: of the placements.

    Returns:
        "compute", the mean of |predicted − true| / true, "compute_median" and "compute_p95".

    Raises:
        InvalidInput: no device of any task holds a table.
    """
    from shardwright.search.autoshard.network import placements, scattered
    from shardwright.search.learned.environment import PlacementBatch

    weights = AutoShardWeights(policy)
    rng = np.random.default_rng(seed)
    arrays = [found for found in map(PlacementArrays.of, tasks) if len(found)]
    errors = [np.zeros(0)]
    for task in arrays:
        played = scattered(PlacementBatch.of([task] * PLACEMENTS), rng)
        _, placed = placements(played.batch, played.assignment_eu, played.excess_e)
        blocks, fixed = weights.encode(task.features), weights.encode(task.fixed_features)
        for (_, assignment), phases in zip(placed, world.costs(placed), strict=True):
            on = np.concatenate([assignment[task.unit_of][:, None] == np.arange(task.devices), task.fixed_on])
            true, held = compute_ms(phases), on.any(axis=0)
            predicted = weights.cost_ms(on.T.astype(np.float64) @ np.concatenate([blocks, fixed]))
            errors.append(np.abs(predicted - true)[held] / true[held])
    found = np.concatenate(errors)
    if not found.size:
        raise InvalidInput(
            "cost_errors: none of the tasks has a table to place; give tasks with tables that may stay whole"
        )
    return {
        "compute": float(found.mean()),
        "compute_median": float(np.median(found)),
        "compute_p95": float(np.quantile(found, 0.95)),
    }
