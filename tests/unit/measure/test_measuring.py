"""Visits in rounds, with a scripted process."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import MeasurementFailed
from shardwright.measure import measurer
from shardwright.measure.campaign import BETWEEN_CONTROLS
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.measurer import _SLACK_BYTES, Measurer
from shardwright.measure.measuring import MeasuredPlan, measure_plans, measure_works
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visits import (
    MOST_VISITS,
    Controls,
    control_works,
    settled,
    standard_error,
    time_of,
    visit_noise,
)
from shardwright.measure.worker import Worker
from shardwright.sharding import Plan, Shard
from shardwright.sharding.work import ShardWork
from shardwright.task import Table, Task
from shardwright.task.access import AccessProfile
from tests.unit.measure.workers import FakeWorker


def work_of(lookups: float) -> DeviceWork:
    return DeviceWork((ShardWork(100, 8, 16, lookups, True, AccessProfile.uniform(100)),), (1,), "sgd")


def visit(forward: float, sentinel: float = 1.0) -> Visit:
    return Visit(forward, 2 * forward, 2, sentinel, 1.0, 0.0)


def test_visits_of_two_processes_are_converted_to_one_state() -> None:
    fast = Visit(1.0, 2.0, 2, 1.0, 1.0, 0.0, elasticity=(0.9, 0.35))
    slow = Visit(2**0.9, 2 * 2**0.35, 2, 1.0, 2.0, 0.0, elasticity=(0.9, 0.35))
    assert time_of([slow], usual_ms=1.0) == pytest.approx(time_of([fast], usual_ms=1.0))
    assert time_of([fast, slow], usual_ms=1.0) == pytest.approx((1.0, 2.0))


@given(st.lists(st.sampled_from([1.0, 1.6]), max_size=12), st.integers(1, 3))
def test_a_work_is_settled_when_enough_visits_were_quiet_or_too_many_were_not(ratios: list[float], quiet: int) -> None:
    visits = [visit(1.0, ratio) for ratio in ratios]
    enough = ratios.count(1.0) >= quiet
    assert settled(visits, quiet) == (enough or len(ratios) >= MOST_VISITS * quiet)


def test_disturbed_works_are_visited_again_at_the_end_of_their_round(worker: type[FakeWorker]) -> None:
    works = [work_of(lookups) for lookups in (10.0, 20.0, 30.0)]
    measured = measure_works(works, rounds=2)
    assert Counter(worker.asked) == dict.fromkeys(works, 3)  # the first visit to each was disturbed
    assert set(worker.asked[:3]) == set(worker.asked[3:6]) == set(works)
    assert [measured.time(work) for work in works] == [(10.0, 30.0), (20.0, 60.0), (30.0, 90.0)]


def test_works_that_are_always_disturbed_are_given_up(
    worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "answer", lambda work, before: visit(5.0 + before, 9.0 - before))
    measured = measure_works([work_of(10.0)], rounds=2)
    assert len(worker.asked) == 2 * MOST_VISITS
    assert measured.time(work_of(10.0)) == (10.0, 20.0)


def test_rounds_have_random_orders_and_controls_among_them(worker: type[FakeWorker]) -> None:
    works = [work_of(lookups) for lookups in range(10, 20)]
    measured = measure_works(works, rounds=3, seed=1)
    assert worker.asked[:10] != worker.asked[10:20]
    assert min(worker.controls.count(work) for work in control_works("cpu", "sgd")) >= 3
    assert measured.of_controls().times_ms == (3.0, 3.0, 3.0)


def test_many_works_have_the_controls_among_them_more_often(worker: type[FakeWorker]) -> None:
    told: list[tuple[int, int, str]] = []
    works = [work_of(10.0 + number) for number in range(2 * BETWEEN_CONTROLS + 1)]
    measure_works(works, progress=lambda *one: told.append(one))
    visits = len(worker.asked)
    assert all(worker.controls.count(work) >= visits / BETWEEN_CONTROLS for work in control_works("cpu", "sgd"))
    assert told[-1][:2] == (len(works) + 9, len(works) + 9)


def test_times_are_those_at_the_median_state_of_the_period(
    worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = iter([2.0, *[1.0] * 50])  # the process starts in a burst
    monkeypatch.setattr(worker, "answer", lambda work, before: Visit(1.0, 2.0, 2, 1.0, next(usual), 0.0))
    measured = measure_works([work_of(10.0), work_of(20.0)], rounds=3)
    assert measured.usual_ms == 1.0
    assert measured.time(work_of(10.0)) == measured.time(work_of(20.0)) == (1.0, 2.0)


def test_the_noise_of_a_visit_is_what_was_put_in() -> None:
    rng = np.random.default_rng(0)
    visits = [
        [Visit(5 * np.exp(0.05 * a), 9 * np.exp(0.01 * b), 2, 1.0, 1.0, 0.0) for a, b in rng.standard_normal((3, 2))]
        for _ in range(400)
    ]
    np.testing.assert_allclose(visit_noise(visits), [0.05, 0.01], rtol=0.1)
    disturbed = [[visit(1.0), visit(3.0, 2.0)]] * 50
    np.testing.assert_allclose(visit_noise(disturbed), [0.02, 0.02])  # as assumed, for nothing is known
    np.testing.assert_allclose(standard_error(np.array([0.04, 0.02]), 2) ** 2 * 2, [0.04**2, 0.02**2])


def test_states_are_not_noise() -> None:
    slow = Visit(2**0.9, 2**0.3, 2, 1.0, 2.0, 0.0, elasticity=(0.9, 0.3))
    fast = Visit(1.0, 1.0, 2, 1.0, 1.0, 0.0, elasticity=(0.9, 0.3))
    assert visit_noise([[slow, fast]] * 1000).max() < 0.004


def test_noise_makes_the_slowest_of_equal_devices_look_slower(small_task: Task) -> None:
    plan = whole(small_task, 0, 1, 2, 3)
    equal, one = np.full(4, 10.0), np.array([10.0, 1.0, 1.0, 1.0])
    assert MeasuredPlan(plan, equal, equal, 2).excess == 0
    assert MeasuredPlan(plan, equal, equal, 2, noise=(0.02, 0.02)).excess == pytest.approx(0.02 * 1.03, rel=0.1)
    assert abs(MeasuredPlan(plan, one, one, 2, noise=(0.02, 0.02)).excess) < 0.002


def test_no_round_begins_when_time_is_up(worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "answer", lambda work, before: visit(1.0))
    measure_works([work_of(1.0)], rounds=9, seconds=0)
    assert len(worker.asked) == 1


def test_nothing_starts_no_process(worker: type[FakeWorker]) -> None:
    empty = DeviceWork((), (), "sgd")
    assert measure_works([empty]).time(empty) == (0.0, 0.0)
    assert not worker.started


def test_a_process_that_ended_is_started_anew(worker: type[FakeWorker]) -> None:
    with Measurer("cpu", "embedding_bag", 2**20) as process:
        process.visit(work_of(1.0))
        process.ready().close()
        process.visit(work_of(1.0))
    assert len(worker.started) == 2


def test_a_worker_that_cannot_restart_raises(worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurer, "sleep", lambda _: None)

    def refuse(options: object) -> Worker:
        raise MeasurementFailed("no device")

    with Measurer("cpu", "embedding_bag", 2**20) as process:
        process.visit(work_of(1.0))
        process.ready().close()
        monkeypatch.setattr(measurer, "Worker", refuse)
        with pytest.raises(MeasurementFailed, match=r"3 attempts .* no device.* is kept"):
            process.visit(work_of(1.0))
    with Measurer("cpu", "embedding_bag", 2**20) as process, pytest.raises(MeasurementFailed, match="^no device$"):
        process.visit(work_of(1.0))


def test_controls_are_the_same_each_time_and_small() -> None:
    assert control_works("cpu", "sgd") == control_works("cpu", "sgd")
    assert control_works("cuda", "sgd")[0].works[0].samples == 16_384
    assert max(work.table_bytes for work in control_works("cpu", "adam")) < _SLACK_BYTES


@pytest.mark.parametrize(
    ("then", "slower"),
    [(Controls((1.0, 4.0)).text(), 2.0), ("4,4", 1.0), ("", None), ("1", None), ("x,y", None), ("0,1", None)],
)
def test_the_state_of_the_machine_is_the_mean_ratio_to_then_if_it_is_known(then: str, slower: float | None) -> None:
    assert Controls((2.0, 8.0)).slower_than({"controls": then}) == (None if slower is None else pytest.approx(slower))
    assert Controls().slower_than({"controls": then}) is Controls((2.0, 8.0)).slower_than({}) is None


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
        work.dim: device.seeds[0]
        for device in worker.asked
        if len(device.works) == 1
        for work in device.works
        if work.rows == 1000
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
    assert measured.plan is plan
    np.testing.assert_array_equal(measured.device_ms[1:], 0)


def test_requests_too_large_for_this_machine_raise_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, small_task: Task
) -> None:
    monkeypatch.setattr(measurer, "available_memory", lambda: 300_000_000)
    huge = tuple(Table(table.name, 10**9, table.dim) for table in small_task.tables)
    plan = whole(replace(small_task, tables=huge), 0, 1, 2, 3)
    with pytest.raises(MeasurementFailed, match=r"needs .* this machine has 300\.0 MB free; scale the tables"):
        measure_plans([plan])


@pytest.mark.slow
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
