"""Tasks, worlds and policies that the tests of AutoShard share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.errors import MeasurementFailed
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.network import AutoShardNetwork, new_network, placements, scattered
from shardwright.learned.autoshard.policy import AutoShardWeights
from shardwright.learned.environment import PlacementBatch
from shardwright.learned.options import AutoShardOptions
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld, compute_ms
from shardwright.task import Table, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import tables

QUICK = AutoShardOptions(
    steps=320, unroll=20, batch=4, lag=2, buffer=300, buffer_batch=32, cost_updates=3, scattered=4, variations=1
)
"""Two rounds of two learner steps."""


def varied_task(seed: int, count: int = 10, devices: int = 3) -> Task:
    """A task whose tables differ by a factor of some hundreds in cost."""
    return Task(tables(count, seed), Topology(devices_per_host=devices, memory="4 GB"), 256)


def two_sizes(devices: int = 2) -> Task:
    """Two tables of 6 MB, which are rarely looked up, and two of 4 MB: devices of a little more than 10 MB hold one of each."""
    made = [
        Table(f"table_{index}", rows=rows, dim=16, pooling=pooling)
        for index, (rows, pooling) in enumerate([(100_000, 1.0), (100_000, 1.0), (66_000, 20.0), (66_000, 20.0)])
    ]
    return Task(made, Topology(devices_per_host=devices, memory="11.5 MB"), 256, "sgd")


def simulated() -> SimulatedWorld:
    return SimulatedWorld(SimpleCostModel())


def random_policy(seed: int) -> SavedPolicy:
    """Random weights, and features scaled as those of a `varied_task`."""
    return saved_policy(random_network(seed))


def saved_policy(network: AutoShardNetwork, **metadata: str) -> SavedPolicy:
    """A network as it is saved."""
    weights = {name: value.numpy().copy() for name, value in network.state_dict().items()}
    return SavedPolicy("autoshard", weights, {"world": "none", **metadata})


def random_network(seed: int, published: bool = False) -> AutoShardNetwork:
    network = new_network(seed, published)
    features = PlacementArrays.of(varied_task(0, 40)).features
    network.feature_mean.copy_(as_tensor(features.mean(axis=0)))
    network.feature_scale.copy_(as_tensor(1 / np.maximum(features.std(axis=0), 0.01)))
    return network


def as_tensor(values):
    import torch

    return torch.as_tensor(values, dtype=torch.float32)


def learned(seed: int = 0, **options: int | float) -> SavedPolicy:
    tasks = [varied_task(number) for number in range(6)]
    return learn(tasks, simulated(), replace(QUICK, seed=seed, **options))


@dataclass(eq=False)
class FailsAt:
    """The simulated world, which fails at one of its calls: with an error, or by NaN for the ms of devices.

    Attributes:
        call: which call fails, from 1.
        nan: whether it returns NaN instead of raising.
        calls: calls so far.
    """

    call: int
    nan: bool = False
    calls: int = 0
    world: SimulatedWorld = field(default_factory=simulated)

    @property
    def name(self) -> str:
        return self.world.name

    def costs(self, placed: Sequence[object]):
        self.calls += 1
        costs = self.world.costs(placed)
        if self.calls != self.call:
            return costs
        if not self.nan:
            raise MeasurementFailed("the machine is gone; start it again")
        return [np.full_like(phases, np.nan) for phases in costs]


def cost_error(policy: SavedPolicy, tasks: Sequence[Task]) -> float:
    """Median relative error of the predicted forward + backward time of devices under random placements."""
    weights, unit_ms, rng = AutoShardWeights(policy), policy.weights["cost_scale"], np.random.default_rng(0)
    errors = []
    for task in map(PlacementArrays.of, tasks):
        played = scattered(PlacementBatch.of([task] * 4), rng)
        _, placed = placements(played.batch, played.assignment_eu, played.excess_e)
        blocks, fixed = weights.encode(task.features), weights.encode(task.fixed_features)
        for (_, assignment), phases in zip(placed, simulated().costs(placed), strict=True):
            on = np.concatenate([assignment[task.unit_of][:, None] == np.arange(task.devices), task.fixed_on])
            true, held = compute_ms(phases), on.any(axis=0)
            predicted = weights.relative_cost(on.T.astype(np.float64) @ np.concatenate([blocks, fixed])) * unit_ms
            errors.append(np.abs(predicted - true)[held] / true[held])
    return float(np.median(np.concatenate(errors)))
