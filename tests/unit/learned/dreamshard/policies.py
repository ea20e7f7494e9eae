"""Policies of random weights, and small training sets, for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.dreamshard.buffer import CostErrors, PlacementBuffer, mean_errors
from shardwright.learned.dreamshard.mdp import encode, play, sampler
from shardwright.learned.dreamshard.network import DreamShardNetwork
from shardwright.learned.dreamshard.policy import NAME, SHAPES
from shardwright.learned.environment import PlacementBatch
from shardwright.learned.options import DreamShardOptions
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.worlds import World
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.tasks import tables

BRIEF = DreamShardOptions(
    iterations=3, collected=6, cost_updates=10, cost_batch=8, policy_updates=2, policy_tasks=2, episodes=4, explored=6,
    variants=1,
)  # fmt: skip


def random_policy(seed: int = 0) -> SavedPolicy:
    """Weights of about the size that training gives them."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in SHAPES.items():
        spread = 1.0 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2
        weights[name] = rng.normal(0.0, spread, shape).astype(np.float32)
    weights["feature_std"] = rng.uniform(0.5, 2.0, SHAPES["feature_std"]).astype(np.float32)
    weights["cost.scale"] = rng.uniform(0.5, 2.0, SHAPES["cost.scale"]).astype(np.float32)
    return SavedPolicy(NAME, weights, {"world": "none"})


def network_of(policy: SavedPolicy) -> DreamShardNetwork:
    """The networks in torch that have the policy's weights."""
    weights = {name: torch.from_numpy(array.copy()) for name, array in policy.weights.items()}
    objective, method = policy.metadata.get("objective", "step"), policy.metadata.get("method", "shardwright")
    network = DreamShardNetwork(weights["feature_mean"], weights["feature_std"], torch.Generator(), objective, method)
    network.load_state_dict(weights)
    return network


def whole_tables(drawn: Sequence[Table], devices: int, memory: object = "4 GB") -> Task:
    """A task whose tables may not be cut."""
    limits = {table.name: TableConstraint(sharding_types=("table_wise",)) for table in drawn}
    topology = Topology(devices_per_host=devices, memory=memory)  # type: ignore[arg-type]
    return Task(drawn, topology, 256, constraints=Constraints(limits))


def training_set(count: int, first_seed: int = 0, size: int = 10, devices: int = 3) -> list[Task]:
    """Small tasks of varied whole tables."""
    return [whole_tables(tables(size, seed), devices) for seed in range(first_seed, first_seed + count)]


def cost_errors(
    policy: SavedPolicy,
    tasks: Sequence[Task],
    world: World,
) -> dict[str, float]:
    """Mean absolute relative errors of a policy's cost network on placements that it samples, by output."""
    network = network_of(policy)
    arrays = [PlacementArrays.of(task) for task in tasks]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        encoded = encode(network, PlacementBatch.of(arrays))
        episodes = play(network, encoded, sampler(generator))
        kept_e = (episodes.excess_e == 0).nonzero()[:, 0]
        kept = [arrays[row] for row in kept_e.tolist()]
        placements = [episodes.assignment_eu[row, : len(arrays[row])].numpy() for row in kept_e.tolist()]
        costs = world.costs(list(zip(kept, placements, strict=True)))
        buffer = PlacementBuffer(encoded.batch)
        buffer.add(kept_e, episodes.assignment_eu[kept_e], costs)
        return mean_errors(CostErrors(network, encoded.batch, buffer).of(torch.arange(len(buffer))))
