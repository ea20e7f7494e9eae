"""Policies learned with the workers of a real Ray cluster on this machine, some of which are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from tests.ray_cluster import alive, local_cluster, named, needs_ray, wait_until

from shardwright.cluster import Cluster
from shardwright.search.autoshard.learner import learn_autoshard
from shardwright.search.autoshard.strategy import AutoShardOptions
from shardwright.search.dreamshard.learner import learn_dreamshard
from shardwright.search.dreamshard.policy import DreamShardOptions
from shardwright.search.learned.arrays import Floats, PlacementArrays
from shardwright.search.learned.fleet import Fleet, open_fleet
from shardwright.search.learned.fleet_world import FleetWorld
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.worlds import MeasuredWorld, Placed, SimulatedWorld, World
from shardwright.testing.model import simple_cost_model
from shardwright.testing.tasks import task_of
from shardwright.threads import one_thread

pytestmark = [needs_ray, pytest.mark.slow]

LEARN: dict[str, Callable[..., SavedPolicy]] = {
    "autoshard": partial(
        learn_autoshard,
        options=AutoShardOptions(
            steps=320, unroll=20, batch=4, lag=2, buffer=300, buffer_batch=32, cost_updates=3, scattered=4, actors=3
        ),
    ),
    "dreamshard": partial(
        learn_dreamshard,
        options=DreamShardOptions(
            iterations=2, collected=6, explored=6, cost_updates=5, policy_updates=2, episodes=4, variants=1, actors=3
        ),
    ),
}
TASKS = [task_of(8 + number, 3) for number in range(4)]
MEASURING = "shardwright.measure.worker"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    yield from local_cluster()


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    with open_fleet(cluster) as fleet:
        yield fleet
    wait_until(lambda: not named(os.getpid(), MEASURING), "a measuring process is left")


@dataclass
class KillsWorkers:
    """A world at whose first call all workers, which are idle then, are killed: the next jobs are given to dead ones."""

    world: World
    calls: int = 0
    killed: int = 0

    @property
    def name(self) -> str:
        return self.world.name

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        self.calls += 1
        if self.calls == 1:
            for pid in named(os.getpid(), "ray::Keeper"):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1
        return self.world.costs(placed)


@pytest.mark.parametrize("strategy", ["autoshard", "dreamshard"])
def test_actors_on_a_cluster_learn_the_same_bits_though_workers_are_killed(fleet: Fleet, strategy: str) -> None:
    simulated = SimulatedWorld(simple_cost_model())
    world = KillsWorkers(simulated)
    before = redone(fleet)
    with one_thread():
        alone = LEARN[strategy](TASKS, simulated)
        together = LEARN[strategy](TASKS, world, pool=fleet.pool)
    assert world.killed == 2
    assert redone(fleet) > before
    assert together.metadata == alone.metadata
    for name, array in alone.weights.items():
        assert np.array_equal(array, together.weights[name]), name


def test_placements_are_measured_by_workers_and_those_of_a_killed_one_again(fleet: Fleet) -> None:
    arrays = PlacementArrays.of(TASKS[3])
    rng = np.random.default_rng(0)
    placed = [(arrays, rng.integers(3, size=len(arrays))) for _ in range(20)]
    killed: list[int] = []
    orphans: list[int] = []

    class KillingPool:
        """Kills a worker when the first job is done: one that is measuring, or else one that has, whose next job finds it dead."""

        size = fleet.pool.size

        def map(self, method, jobs):  # type: ignore[no-untyped-def]
            for found in fleet.pool.map(method, jobs):
                if not killed:
                    workers = [pid for name in ("ray::Keeper.call", "ray::Keeper") for pid in named(os.getpid(), name)]
                    killed.append(next(pid for pid in workers if named(pid, MEASURING)))
                    orphans.extend(named(killed[0], MEASURING))
                    os.kill(killed[0], signal.SIGKILL)
                yield found

    before = redone(fleet)
    found = FleetWorld(replace(fleet, pool=KillingPool())).costs(placed)  # type: ignore[arg-type]
    assert redone(fleet) == before + 1
    assert orphans
    wait_until(lambda: not any(map(alive, orphans)), "the measuring process of a killed worker is left")
    assert FleetWorld(fleet).name == MeasuredWorld().name
    assert len(found) == 20
    for (_, assignment), phases in zip(placed, found, strict=True):
        assert phases.shape == (3, 4)
        assert (phases[np.unique(assignment)][:, [0, 3]] > 0).all()
        assert np.isfinite(phases).all()


def test_a_policy_learns_from_costs_that_a_fleet_measures(fleet: Fleet) -> None:
    options = AutoShardOptions(steps=60, unroll=20, batch=1, lag=3, cost_updates=2, scattered=2, variations=0, actors=2)
    with one_thread():
        policy = learn_autoshard(TASKS[:2], FleetWorld(fleet, rounds=1), options, pool=fleet.pool)
    assert policy.metadata["world"] == MeasuredWorld().name


def redone(fleet: Fleet) -> int:
    count: int = fleet.pool.redone  # type: ignore[attr-defined]
    return count
