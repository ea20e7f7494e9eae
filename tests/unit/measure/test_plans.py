from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import measuring
from shardwright.measure.plans import MeasuredPlan, measure_plans
from shardwright.measure.timing import TimingPolicy
from shardwright.sharding import Plan, Shard
from shardwright.task import Table, Task
from tests.unit.measure.workers import FakeWorker

ONCE = TimingPolicy(warm_up=0, passes=1, runs=1)


def whole(task: Task, *ranks: int) -> Plan:
    """Each table as one block on its rank."""
    return Plan(task, [Shard.whole(table, rank) for table, rank in zip(task.tables, ranks, strict=True)])


def lookups(task: Task) -> np.ndarray[Any, Any]:
    return np.array([table.pooling * task.batch_size for table in task.tables])


def test_the_times_of_each_device(worker: type[FakeWorker], small_task: Task) -> None:
    (measured,) = measure_plans([whole(small_task, 0, 0, 1, 3)], rounds=3)
    user, item, history, country = lookups(small_task)
    np.testing.assert_allclose(measured.forward_ms, [user + item, history, 0, country])
    np.testing.assert_allclose(measured.backward_ms, 3 * measured.forward_ms)
    assert measured.rounds == 3
    assert measured.controls.times_ms == (3.0, 3.0, 3.0)


def test_equal_device_work_is_measured_once(worker: type[FakeWorker], small_task: Task) -> None:
    plans = [whole(small_task, 0, 0, 1, 3), whole(small_task, 2, 2, 0, 1), whole(small_task, 0, 0, 1, 1)]
    first, second, third = measure_plans(plans, rounds=2)
    assert len(set(worker.asked)) == 4  # (user, item), (history), (country), (history, country)
    assert first.forward_ms[0] == second.forward_ms[2] == third.forward_ms[0]
    assert first.compute_ms == pytest.approx(first.forward_ms.max() + first.backward_ms.max())


def test_the_order_of_shards_does_not_matter(worker: type[FakeWorker], small_task: Task) -> None:
    plan = whole(small_task, 0, 0, 0, 0)
    measure_plans([plan, replace(plan, shards=tuple(reversed(plan.shards)))], rounds=1)
    assert len(set(worker.asked)) == 1


def test_blocks_see_the_lookups_of_their_table_in_every_plan(worker: type[FakeWorker], small_task: Task) -> None:
    user, *others = small_task.tables
    halves = [Shard("user", (0, user.rows), columns, (rank,)) for rank, columns in enumerate([(0, 8), (8, 16)])]
    split = Plan(small_task, [*halves, *(Shard.whole(table, 2) for table in others)])
    measure_plans([split, whole(small_task, 0, 1, 2, 3)], rounds=1)
    seeds = {
        work.dim: one.seeds[0] for one in worker.asked if len(one.works) == 1 for work in one.works if work.rows == 1000
    }
    assert set(seeds) == {8, 16}
    assert len(set(seeds.values())) == 1
    worker.asked.clear()
    measure_plans([whole(small_task, 0, 0, 0, 0)], rounds=1, seed=1)
    assert not set(seeds.values()) & set(worker.asked[0].seeds)
    assert len(set(worker.asked[0].seeds)) == 4


def test_a_plan_without_work_costs_nothing(worker: type[FakeWorker], small_task: Task) -> None:
    assert measure_plans([]) == []
    plan = whole(small_task, 0, 0, 0, 0)
    (measured,) = measure_plans([plan], rounds=1)
    assert isinstance(measured, MeasuredPlan)
    assert measured.plan is plan
    np.testing.assert_array_equal(measured.device_ms[1:], 0)


def test_what_does_not_fit_this_machine_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, small_task: Task
) -> None:
    monkeypatch.setattr(measuring, "available_memory", lambda: 300_000_000)
    huge = tuple(Table(table.name, 10**9, table.dim) for table in small_task.tables)
    plan = whole(replace(small_task, tables=huge), 0, 1, 2, 3)
    with pytest.raises(MeasurementFailed, match=r"needs .* this machine has 300\.0 MB free; scale the tables"):
        measure_plans([plan])


def test_impossible_options_are_refused(small_task: Task) -> None:
    with pytest.raises(InvalidInput, match="rounds is 0, must be at least 1"):
        measure_plans([whole(small_task, 0, 1, 2, 3)], rounds=0)
    with pytest.raises(InvalidInput, match="device is 'tpu'"):
        measure_plans([whole(small_task, 0, 1, 2, 3)], device="tpu")


@pytest.mark.parametrize("backend", ["fbgemm", "embedding_bag"])
def test_real_kernels_run_every_kind_of_shard(small_task: Task, backend: str) -> None:
    history, country = small_task.tables[2:]
    shards = [
        Shard("user", (0, 500), (0, 8), (0,)),
        Shard("user", (0, 500), (8, 16), (1,)),
        Shard("user", (500, 1000), (0, 16), (2,)),
        Shard("item", (0, 40), (0, 32), (0, 1, 2, 3), "hotness"),
        Shard("item", (40, 400), (0, 32), (3,), "hotness"),
        Shard.whole(history, 1),
        Shard.whole(country, 0, 1),
    ]
    (measured,) = measure_plans([Plan(small_task, shards)], rounds=1, backend=backend, policy=ONCE)
    assert (measured.forward_ms > 0).all()
    assert (measured.backward_ms > 0).all()
    assert measured.forward_ms.shape == (4,)
