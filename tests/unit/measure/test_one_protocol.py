"""Samples, plans, requests of other machines, calibration and learning time kernels in one way; none can drift from the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.plan_requests import measure_requests, read_results, requests_of

from shardwright.calibration.visits import Observed
from shardwright.learned.worlds import MeasuredWorld
from shardwright.measure.device_work import DeviceWork, Job, Visit, device_works
from shardwright.measure.measurer import Measurer
from shardwright.measure.measuring import measure_plans
from shardwright.sharding import Plan, Shard
from shardwright.task import Task
from tests.unit.measure.workers import FakeWorker


@pytest.fixture
def plan(small_task: Task) -> Plan:
    return Plan(small_task, [Shard.whole(table, rank % 2) for rank, table in enumerate(small_task.tables)])


def test_all_ways_find_the_same_times(
    worker: type[FakeWorker], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(work: DeviceWork, before: int) -> Visit:
        """The first visit to each work is disturbed, and finds twice as much."""
        forward = sum(one.lookups for one in work.works) * (1 if before else 2)
        return Visit(forward, 3 * forward, 2, 1.0 if before else 2.0, 1.5, 0.0)

    monkeypatch.setattr(worker, "answer", answer)
    works = [work for work in device_works(plan, 0) if work.works]

    (of_plan,) = measure_plans([plan], rounds=1, backend="embedding_bag")
    expected = [pair for pair in zip(of_plan.forward_ms, of_plan.backward_ms, strict=True) if pair[0]]

    worker.asked.clear()
    requests = requests_of([plan])
    measure_requests(requests, tmp_path / "results.jsonl", device="cpu", backend="embedding_bag", rounds=2)
    results = read_results(tmp_path / "results.jsonl")
    assert [results.times[place] for place in range(len(works))] == expected

    worker.asked.clear()
    (phases,) = MeasuredWorld(rounds=1).costs([(_Arrays(plan), np.zeros(0))])  # type: ignore[list-item]
    assert [(row[0], row[3]) for row in phases if row[0]] == expected

    worker.asked.clear()
    with Measurer("cpu", "embedding_bag", 2**20) as measurer:
        observed = Observed(measurer)
        observed.visit_sets(Job(work, "task") for work in works)
        while disturbed := observed.disturbed():
            observed.visit_sets(disturbed[:1])
    assert [tuple(times) for times in observed.samples().times] == expected
    assert all(options.policy is None for options in worker.started)


class _Arrays:
    """A placement that is a plan already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, *_: object) -> Plan:
        return self._plan
