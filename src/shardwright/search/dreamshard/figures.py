"""How far a policy's cost network is off on tasks that it has not learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from shardwright.errors import InfeasibleTask
from shardwright.search.dreamshard.buffer import Buffer, CostErrors, mean_errors
from shardwright.search.dreamshard.mdp import Rollout, anywhere, encode, sampler
from shardwright.search.dreamshard.network import DreamShardNetwork
from shardwright.search.dreamshard.policy import Objective, checked
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.worlds import World
from shardwright.task.task import Task


def cost_errors(
    policy: SavedPolicy,
    tasks: Sequence[Task],
    world: World,
    seed: int = 0,
    *,
    placed_by: Literal["policy", "chance"] = "policy",
) -> dict[str, float]:
    """Mean absolute relative errors of the cost network.

    Args:
        policy: the policy.
        tasks: tasks that it has not learned from.
        world: prices one placement of each task.
        seed: of the placements.
        placed_by: whether placements are samples of the policy, or uniformly random among devices with room.

    Returns:
        Errors of "forward", "backward" and "backward_communication" over the devices that hold something, and of the "overall" cost over
        the placements.

    Raises:
        InfeasibleTask: no task has a sampled placement that keeps memory and constraints.
    """
    network = network_of(policy)
    arrays = [PlacementArrays.of(task) for task in tasks]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        encoded = encode(network, PlacementBatch.of(arrays))
        choose = sampler(generator) if placed_by == "policy" else anywhere(generator)
        episodes = Rollout(network, encoded).play(choose)
        kept_e = (episodes.excess_e == 0).nonzero()[:, 0]
        if not len(kept_e):
            raise InfeasibleTask(
                "no sampled placement of any task keeps memory and constraints; give tasks with more memory"
            )
        kept = [arrays[row] for row in kept_e.tolist()]
        placements = [episodes.assignment_eu[row, : len(arrays[row])].numpy() for row in kept_e.tolist()]
        costs = world.costs(list(zip(kept, placements, strict=True)))
        buffer = Buffer(encoded.batch.units, encoded.batch.devices)
        buffer.add(kept_e, episodes.assignment_eu[kept_e], costs)
        return mean_errors(CostErrors(network, encoded.batch, buffer, _objective(policy)).of(torch.arange(len(buffer))))


def network_of(policy: SavedPolicy) -> DreamShardNetwork:
    """The torch networks of a policy.

    Raises:
        InvalidInput: an array is missing or has another shape.
    """
    weights = {name: torch.from_numpy(array.copy()) for name, array in checked(policy).items()}
    network = DreamShardNetwork(weights["feature_mean"], weights["feature_std"], torch.Generator(), _objective(policy))
    network.load_state_dict(weights)
    return network


def _objective(policy: SavedPolicy) -> Objective:
    return "embedding" if policy.metadata.get("objective") == "embedding" else "step"
