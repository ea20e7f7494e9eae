from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.questions.drift import moves
from shardwright.search.auto import Auto
from shardwright.task import AccessProfile
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()
TASK = replace(task_of(12, 4), tables=[replace(table, pooled=True) for table in task_of(12, 4).tables])


@pytest.fixture(scope="module")
def plan():
    return sw.plan(TASK, cost_model=MODEL, strategy=Auto(patience=1))


@pytest.fixture
def drifted(plan):
    return lambda tables, **options: sw.drift(plan, tables, cost_model=MODEL, **options)


def test_the_same_lookups_need_no_new_plan(plan, drifted):
    drift = drifted(TASK.tables)
    assert drift.now_ms == drift.before_ms == pytest.approx(plan.cost.step_ms)
    assert not drift.is_worth_it
    assert all(table.lookups == table.skew == 0 for table in drift.tables)


@pytest.mark.slow
def test_hotter_tables_make_a_new_plan_worth_it(plan, drifted):
    hot = plan.by_device[0][0].table
    now = [replace(table, pooling=table.pooling * (40 if table.name == hot else 1)) for table in TASK.tables]
    drift = drifted(now)
    assert drift.tables[0].before.name == hot
    assert drift.tables[0].lookups == pytest.approx(39)
    assert drift.before_ms < drift.now_ms
    assert drift.better_ms < drift.now_ms
    assert drift.gain == pytest.approx(1 - drift.better_ms / drift.now_ms)
    assert drift.is_worth_it == (drift.gain > 0.05)
    assert moves(drift).moved_bytes > 0
    assert not drifted(now, worth_it=0.999).is_worth_it


@pytest.mark.slow
def test_rows_and_dims_stay_those_of_the_model(drifted):
    table = TASK.tables[0]
    fewer = sw.Table(table.name, 10, 8, 2.0, access=AccessProfile.zipf(10, 1.1))
    more = sw.Table(table.name, table.rows * 3, 8, 2.0)
    tables_now = [drifted([profiled]).tables[0].now for profiled in (fewer, more)]
    for now in tables_now:
        assert (now.rows, now.dim, now.pooling) == (table.rows, table.dim, 2.0)
        assert now.access.total_rows == table.rows
    assert tables_now[0].access.share_of(0, 10) == pytest.approx(1.0)


def test_tables_of_one_side_alone_are_reported(drifted):
    drift = drifted([TASK.tables[0], sw.Table("stranger", 5, 8)])
    assert drift.unknown == ("stranger",)
    assert drift.absent == tuple(table.name for table in TASK.tables[1:])


def test_a_plan_that_keeps_memory_no_more_has_to_go():
    table = sw.Table("t", 1000, 64, 1.0)
    task = sw.Task([table, sw.Table("u", 1000, 64, 1.0)], sw.Topology(1, 2, "cpu", "8 MB"), 4096)
    older = sw.plan(task, cost_model=MODEL, strategy="table_wise")
    drift = sw.drift(older, [replace(table, pooling=260.0)], cost_model=MODEL)
    assert drift.plan is None
    assert drift.now_ms is None
    assert drift.is_worth_it
    drift.better.check()
    with pytest.raises(InvalidPlan, match=r"does not fit any more \(rank .*; compare by older"):
        moves(drift)
    assert older.diff(drift.better).moved_bytes >= 0


def test_logs_of_another_model_are_refused(drifted):
    with pytest.raises(InvalidInput, match="none of the profiled tables"):
        drifted([sw.Table("stranger", 5, 8)])


def test_the_skew_is_the_share_of_lookups_that_changed_rows(plan):
    flat, hot = TASK.tables[0], TASK.tables[0]
    rows = np.array([0.0, flat.rows / 2, flat.rows])
    even, uneven = (AccessProfile(rows, np.array([0.0, share, 1.0])) for share in (0.5, 0.9))
    older = replace(TASK, tables=[replace(flat, access=even), *TASK.tables[1:]])
    drift = sw.drift(replace(plan, task=older), [replace(hot, access=uneven)], cost_model=MODEL)
    assert drift.tables[0].skew == pytest.approx(0.4)
