"""Overlap with dense layers: no plan is below the bound, the search prices the overlap, and more dense layers never cost time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import score
from shardwright.errors import InfeasibleTask
from shardwright.search.bound import lower_bound
from shardwright.search.certified import Certified
from shardwright.search.engine.session import prepare
from shardwright.task import DenseTime, Exchange, Task
from tests.property.test_bound import model_of, plans_of, tasks_in_units
from tests.strategies import dense_exchanges


def drawn(data) -> Task:
    """A task with dense layers, of dims that the bound covers."""
    return replace(data.draw(tasks_in_units()), exchange=data.draw(dense_exchanges()))


@given(st.data(), st.integers(0, 11))
@settings(max_examples=60)
def test_no_random_plan_is_cheaper(data, seed):
    task, model = drawn(data), model_of(seed)
    slack = 1e-9 * (1 + task.exchange.hidden.total_ms)
    step_ms = score(task, data.draw(plans_of(task)), model).step_ms
    assert lower_bound(task, model).ms <= step_ms * (1 + 1e-9) + slack


@given(st.data(), st.integers(0, 5))
@settings(max_examples=12)
def test_no_random_plan_is_cheaper_than_the_tightened_bound(data, seed):
    task, model = drawn(data), model_of(seed)
    slack = 1e-9 * (1 + task.exchange.hidden.total_ms)
    prepared = prepare(task, model)
    known, other = (score(task, data.draw(plans_of(task)), model).step_ms for _ in range(2))
    plain = prepared.bound_ms
    bounds = [prepared.tighten(known), prepared.refined(known, lambda: False)]
    assert plain - slack <= bounds[0] <= bounds[1] + slack <= known + 2 * slack
    assert other >= bounds[1] * (1 - 1e-9) - slack


@given(st.data())
@settings(max_examples=60)
def test_longer_dense_layers_never_make_a_step_longer_and_each_saves_at_most_its_time(data):
    task = drawn(data)
    shards, model = data.draw(plans_of(task)), model_of(0)
    hidden = replace(task.exchange, dense_ms=task.exchange.hidden)
    task, bare = replace(task, exchange=hidden), replace(task, exchange=replace(hidden, dense_ms=0.0))
    without, now = (score(one, shards, model).step_ms for one in (bare, task))
    assert without - hidden.hidden.total_ms - 1e-9 * without <= now <= without * (1 + 1e-12)
    longer = replace(task, exchange=replace(hidden, dense_ms=hidden.hidden.scaled(2.0)))
    assert score(longer, shards, model).step_ms <= now * (1 + 1e-12)


BESIDE = DenseTime(1.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("pipeline", "hidden"),
    [("none", BESIDE), *(("sparse_dist", one) for one in (DenseTime(ids=3.0), BESIDE, DenseTime(1e6, 1e6, 1e6)))],
)
def test_plans_of_every_strategy_lie_above_the_bound(pipeline, hidden):
    tables = [sw.Table(f"t{n}", 2000 * (n + 1), 8 * (1 + n % 4), 5.0 + n) for n in range(5)]
    topology = sw.Topology(
        hosts=2, devices_per_host=2, device="cpu", memory="4 GB", intra_bandwidth=1e9, inter_bandwidth=1e8
    )
    task = Task(tables, topology, 4096, exchange=Exchange(pipeline=pipeline, dense_ms=hidden))
    plans = [sw.plan(task, strategy=one) for one in (Certified(patience=2), "greedy", "size", "neuroshard")]
    bound = plans[0].bound_ms
    assert bound is not None
    assert all(plan.cost.step_ms >= bound * (1 - 1e-9) for plan in plans)
    assert plans[0].cost.step_ms <= min(plan.cost.step_ms for plan in plans) * (1 + 1e-9)
    if hidden.total_ms > 1e5:
        assert plans[0].cost.step_ms == pytest.approx(plans[0].cost.compute_ms)
    for plan in plans:
        np.testing.assert_allclose(plan.cost.step_ms, score(task, plan.shards, sw.cost.cost_model_for("cpu")).step_ms)


@given(st.data(), st.integers(0, 11))
@settings(max_examples=8)
def test_a_search_beside_dense_layers_is_no_worse_than_one_that_knows_of_none(data, seed):
    task, model = drawn(data), model_of(seed)
    bare = replace(task, exchange=replace(task.exchange, dense_ms=0.0))
    try:
        alone = Certified(patience=2).search(bare, model, seed=0, deadline=None)
    except InfeasibleTask:
        return
    beside = Certified(patience=2).search(task, model, seed=0, deadline=None)
    assert score(task, beside.shards, model).step_ms <= score(task, alone.shards, model).step_ms * (1 + 1e-9)
