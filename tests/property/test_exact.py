"""The exact strategy against every plan of tiny tasks, and against every other strategy of small ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost.model import Pricing
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search.baselines import HEURISTICS, FusedGreedy, Random
from shardwright.search.bound import lower_bound
from shardwright.search.exact import Exact
from shardwright.search.exact.formulation import Effort, all_ways, solve
from shardwright.sharding.checking import check_plan
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task import Constraints, Exchange, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from tests.proofs.plans import AllPlans, ways_of
from tests.strategies import constraints, dense_exchanges, faster_alone, tables

MODEL = SimpleCostModel()
PRECISION = 1e-5  # the solver's, on sums of a few hundred numbers
MOST_PLANS = 1500


class Crooked(SimpleCostModel):
    """A random convex head, falling units included, and encodings that are not linear in the columns."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        bends = 8
        object.__setattr__(self, "name", f"testing/crooked{seed}")
        object.__setattr__(self, "_power", rng.uniform(0.6, 1.4, 3))
        head = Pricing(
            rng.normal(0, 1, (bends, 3)),
            rng.normal(0, 0.5, bends),
            rng.random((2, bends)),
            rng.normal(0.7, 0.5, (2, 3)),
            rng.normal(0.2, 0.3, 2),
        )
        object.__setattr__(self, "_head", head)

    def encode_arrays(self, works):
        return super().encode_arrays(works) ** self._power

    @property
    def pricing(self) -> Pricing:
        return self._head


def model_of(seed: int) -> SimpleCostModel:
    return MODEL if seed == 0 else Crooked(seed)


@st.composite
def tiny_tasks(draw: st.DrawFn) -> Task:
    """One to three tables with at most a few thousand plans, tight memory and constraints included."""
    hosts, near = draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]))
    count = draw(st.integers(1, 3))
    made = []
    for index in range(count):
        table = draw(tables(f"t{index}", max_rows=draw(st.sampled_from([40, 1000, 3000])), max_dim=1, max_pooling=20.0))
        made.append(replace(table, dim=draw(st.sampled_from([1, 2, 3, 4, 8, 12]))))
    latency = st.sampled_from([0.0, 0.02, 1.0])
    topology = Topology(
        hosts, near, "cpu", "1 GB", draw(st.sampled_from([1e5, 1e7])), 1e6, draw(latency), draw(latency)
    )
    topology = draw(st.sampled_from([topology, topology, faster_alone(topology, 3.0)]))
    task = Task(made, topology, draw(st.integers(1, 300)))
    rng = np.random.default_rng(0)
    assume(np.prod([float(len(ways_of(task, table, rng, any_grids=False)[0])) for table in made]) <= MOST_PLANS)
    need = [shard_bytes(task, Shard.whole(table, 0)) for table in made]
    share = draw(st.sampled_from([0.4, 0.6, 1.0, 3.0]))
    sizes = [max(1, int(share * sum(need) * draw(st.sampled_from([0.5, 1.0, 1.0])))) for _ in range(topology.devices)]
    limits = draw(st.one_of(st.just(Constraints()), constraints([t.name for t in made], topology.devices)))
    exchange = draw(st.sampled_from([Exchange(), Exchange(collectives="shared")]) | dense_exchanges())
    return replace(task, topology=replace(topology, memory=sizes), constraints=limits, exchange=exchange)


@given(tiny_tasks(), st.integers(0, 6))
@settings(max_examples=20)
def test_it_finds_the_best_of_all_plans_or_that_there_is_none(task, seed):
    model = model_of(seed)
    assume(Exact().supports(task) is None)
    plans = AllPlans(task, model, np.random.default_rng(0))
    assume(plans.complete)
    expected = plans.best_ms
    answer = solve(task, model, all_ways(task, model, None), Effort(None, None, 1e-6))
    assert answer.bound_ms == pytest.approx(expected, rel=PRECISION, abs=1e-7)
    if answer.shards is None:
        assert expected == np.inf
        return
    check_plan(task, answer.shards)
    assert score(task, answer.shards, model).step_ms == pytest.approx(expected, rel=PRECISION, abs=1e-7)


def test_rows_are_cut_unevenly_over_hosts_with_unequal_memory():
    """A table that may be row_wise but not table_row_wise: no host may hold all of its blocks, any host may hold more than its half."""
    tables = [Table(f"t{i}", rows, 1, 2.0 - i, pooled=False, dtype="fp16") for i, rows in enumerate((1, 1024))]
    limits = Constraints({"t1": TableConstraint(("column_wise", "row_wise", "table_wise"))})
    task = Task(tables, Topology(2, 1, "cpu", [3115, 6230], 1e5, 1e6, 0.0, 0.0), 1, constraints=limits)
    best_ms = AllPlans(task, MODEL, np.random.default_rng(0)).best_ms
    for strategy in ("exact", "certified"):
        plan = sw.plan(task, strategy=strategy, cost_model=MODEL, runs_on="shardwright")
        assert plan.cost.step_ms == pytest.approx(best_ms)
        assert plan.sharding_type("t1") == "row_wise"


@st.composite
def small_tasks(draw: st.DrawFn) -> Task:
    """Up to five tables on up to three devices, with constraints or without, memory ample or tight."""
    topology = draw(st.sampled_from([Topology(1, 2), Topology(1, 3), Topology(2, 1)]))
    names = [f"t{index}" for index in range(draw(st.integers(1, 5)))]
    made = [replace(draw(tables(name, max_rows=2000, max_dim=1)), dim=4 * draw(st.integers(1, 4))) for name in names]
    task = Task(made, topology, draw(st.integers(1, 500)))
    need = sum(shard_bytes(task, Shard.whole(table, 0)) for table in made)
    memory = max(1, int(need * draw(st.sampled_from([0.6, 1.0, 5.0]))))
    limits = draw(st.one_of(st.just(Constraints()), constraints(names, topology.devices)))
    return replace(task, topology=replace(topology, memory=memory), constraints=limits)


@given(small_tasks(), st.integers(0, 3))
@settings(max_examples=12)
def test_no_other_strategy_is_better_and_the_lower_bound_is_below(task, seed):
    model = model_of(seed)
    assume(Exact().supports(task) is None)
    others = []
    for strategy in (Random(), FusedGreedy(), *HEURISTICS):
        try:
            plan = strategy.search(task, model, seed=seed, deadline=None)
            plan.check()
        except (InfeasibleTask, InvalidPlan):
            continue
        others.append(score(task, plan.shards, model).step_ms)
    try:
        exact = Exact().search(task, model, seed=0, deadline=None)
    except InfeasibleTask:
        assert not others
        return
    exact.check()
    found = score(task, exact.shards, model).step_ms
    assert all(found <= other * (1 + 1e-9) for other in others)
    bound = lower_bound(task, model)
    assert found >= bound.ms * (1 - 1e-9)
