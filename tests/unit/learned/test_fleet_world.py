"""Placements measured by a fleet: each device in every round, lost ones again, on one kind of machine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shardwright.errors import MeasurementFailed
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import MeasuredWorld
from shardwright.measure.remote import open_fleet
from shardwright.testing.tasks import task_of
from shardwright.threads import one_thread
from tests.kills import DiesAfter, Killed
from tests.unit.learned.autoshard.made import QUICK, varied_task
from tests.unit.measure.fleets import HARDWARE, Machine, MadeUpCluster
from tests.unit.measure.workers import FakeWorker

MACHINES = (Machine("a", "a", cores=2), Machine("b", "b", cores=1))


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    for notes in ("started", "asked", "controls"):
        monkeypatch.setattr(FakeWorker, notes, [])
    monkeypatch.setattr("shardwright.measure.measurer.Worker", FakeWorker)
    monkeypatch.setattr("shardwright.hardware.fingerprint", lambda device, backend: HARDWARE)
    return FakeWorker


@pytest.fixture
def placed():
    tasks = [PlacementArrays.of(task_of(count, 3)) for count in (4, 7)]
    rng = np.random.default_rng(0)
    return [(task, rng.integers(3, size=len(task))) for task in tasks for _ in range(6)]


def as_lists(costs):
    return [phases.tolist() for phases in costs]


@pytest.mark.parametrize("deaths", [0.0, 0.4])
def test_a_fleet_finds_what_this_machine_finds(placed, processes, deaths):
    alone = MeasuredWorld(rounds=2, seed=3)
    expected = alone.costs(placed)
    counts = Counter(processes.asked)
    processes.asked.clear()
    with open_fleet(MadeUpCluster(MACHINES, deaths=deaths)) as fleet:
        world = MeasuredWorld(rounds=2, seed=3, fleet=fleet)
        costs = world.costs(placed)
        assert bool(fleet.pool.redone) is bool(deaths)
    assert as_lists(costs) == as_lists(expected)
    assert (
        world.name
        == alone.name
        == "measured: device_kind cpu, processor Abacus 1, cores 4, backend embedding_bag, torch 2.9, fbgemm absent, python 3.11.1"
    )
    seen = Counter(processes.asked)
    assert set(seen) == set(counts)
    assert seen == counts if not deaths else all(seen[key] >= times for key, times in counts.items())


def test_one_device_a_round_is_disturbed_and_the_quiet_rounds_count(placed, processes):
    with open_fleet(MadeUpCluster(MACHINES)) as fleet:
        (by_fleet,) = MeasuredWorld(rounds=1, fleet=fleet).costs(placed[:1])
    (alone,) = MeasuredWorld(rounds=1).costs(placed[:1])
    assert by_fleet.tolist() == alone.tolist()  # by then no visit is disturbed any more
    assert by_fleet[:, 3].tolist() == (3 * by_fleet[:, 0]).tolist()


def test_a_measuring_process_is_kept_while_its_arena_is_large_enough(processes):
    big, small = (PlacementArrays.of(task_of(count, 2)) for count in (400, 3))
    with open_fleet(MadeUpCluster(MACHINES[1:])) as fleet:
        world = MeasuredWorld(fleet=fleet)
        for arrays, started in ((small, 1), (small, 1), (big, 2), (small, 2)):
            world.costs([(arrays, np.zeros(len(arrays), int))])
            assert len(processes.started) == started
        fleet.pool.states[0]._measurer._worker.alive = False  # it crashed
        world.costs([(small, np.zeros(3, int))])
        assert len(processes.started) == 3


def test_nothing_to_measure_asks_nobody(processes):
    with open_fleet(MadeUpCluster(MACHINES)) as fleet:
        assert MeasuredWorld(fleet=fleet).costs([]) == []
    assert not processes.started


def test_a_set_too_large_for_the_workers_memory_raises(placed, monkeypatch):
    monkeypatch.setattr("shardwright.measure.measurer.available_memory", lambda: 1000)
    with (
        open_fleet(MadeUpCluster(MACHINES)) as fleet,
        pytest.raises(MeasurementFailed, match="this machine has 1.0 KB free"),
    ):
        MeasuredWorld(fleet=fleet).costs(placed)


@pytest.mark.parametrize("fleet_first", [True, False])
def test_a_training_goes_on_with_or_without_a_fleet(tmp_path, fleet_first, processes, monkeypatch):
    monkeypatch.setattr(processes, "visit", lambda self, work: steady(work.works))
    tasks = [varied_task(number) for number in range(3)]

    with one_thread(), open_fleet(MadeUpCluster(MACHINES, deaths=0.2)) as fleet:
        whole = learn(tasks, MeasuredWorld(), QUICK)
        worlds = [MeasuredWorld(fleet=fleet), MeasuredWorld()]
        first, second = worlds if fleet_first else reversed(worlds)
        state = tmp_path / "state"

        with pytest.raises(Killed):
            learn(tasks, first, QUICK, record=DiesAfter(2), checkpoint=state)
        resumed = learn(tasks, second, QUICK, checkpoint=state)
    assert all(np.array_equal(array, resumed.weights[name]) for name, array in whole.weights.items())
    assert resumed.metadata == whole.metadata


def steady(works):
    from shardwright.measure.device_work import Visit

    forward = sum(work.lookups * work.dim for work in works) / 1e6
    return Visit(forward, 2 * forward, 2, 1.0, 1.0, 0.0)
