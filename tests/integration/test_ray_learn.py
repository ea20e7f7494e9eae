"""Policies learned with the workers of a real Ray cluster on this machine, some of which are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.processes import alive, named, wait_until
from tests.ray_cluster import needs_ray

from shardwright.cluster import Cluster
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.options import AutoShardOptions
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import MeasuredWorld
from shardwright.measure.remote import Fleet, open_fleet
from shardwright.testing.tasks import task_of
from shardwright.threads import one_thread

pytestmark = [needs_ray, pytest.mark.slow]

TASKS = [task_of(8 + number, 3) for number in range(4)]
MEASURING = "shardwright.measure.worker"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    with open_fleet(cluster) as fleet:
        yield fleet
    wait_until(lambda: not named(os.getpid(), MEASURING), "a measuring process is left")


def test_placements_are_measured_by_workers_and_those_of_a_killed_one_again(fleet: Fleet) -> None:
    arrays = PlacementArrays.of(TASKS[3])
    rng = np.random.default_rng(0)
    placed = [(arrays, rng.integers(3, size=len(arrays))) for _ in range(20)]
    killed: list[int] = []
    orphans: list[int] = []

    class KillingPool:
        """Kills a worker when the first job is done: one that is measuring, or else an idle one, so that its next job finds it dead."""

        size, given_up = fleet.pool.size, ()

        def map(self, method, jobs):  # type: ignore[no-untyped-def]
            for finished in fleet.pool.map(method, jobs):
                if not killed:
                    workers = [
                        pid
                        for name in ("ray::StatefulWorker.call", "ray::StatefulWorker")
                        for pid in named(os.getpid(), name)
                    ]
                    killed.append(next(pid for pid in workers if named(pid, MEASURING)))
                    orphans.extend(named(killed[0], MEASURING))
                    os.kill(killed[0], signal.SIGKILL)
                yield finished

    costs = MeasuredWorld(fleet=replace(fleet, pool=KillingPool())).costs(placed)  # type: ignore[arg-type]
    assert orphans
    wait_until(lambda: not any(map(alive, orphans)), "the measuring process of a killed worker is left")
    assert MeasuredWorld(fleet=fleet).name == MeasuredWorld().name
    assert len(costs) == 20
    for (_, assignment), phases in zip(placed, costs, strict=True):
        assert phases.shape == (3, 4)
        assert (phases[np.unique(assignment)][:, [0, 3]] > 0).all()
        assert np.isfinite(phases).all()


def test_a_policy_learns_from_costs_that_a_fleet_measures(fleet: Fleet) -> None:
    options = AutoShardOptions(steps=60, unroll=20, batch=1, lag=3, cost_updates=2, scattered=2, variations=0)
    with one_thread():
        policy = learn(TASKS[:2], MeasuredWorld(rounds=1, fleet=fleet), options)
    assert policy.metadata["world"] == MeasuredWorld().name
