"""The default: the best of all strategies, at any time, and for the runtime of the plan."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.learned.dreamshard.strategy import DreamShardPlus
from shardwright.search import certified
from shardwright.search.certified import Certified
from shardwright.search.engine import session
from shardwright.search.registry import strategy_named
from shardwright.sharding import memory_account
from shardwright.task.topology import Exchange
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from tests.strategies import tasks

MODEL = SimpleCostModel()
AUTO = strategy_named("auto")
OTHERS = (
    *("random", "size", "dim", "lookup", "size_lookup", "greedy", "neuroshard", "dreamshard+", "certified", "flexshard", "two_tiers"),
    *("row_wise", "table_row_wise", "column_wise", "table_wise", "data_parallel"),
)  # fmt: skip


def interrupting(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)  # the signal is answered before that
    raise AssertionError("no KeyboardInterrupt came")


@pytest.fixture
def answered():
    """Handle Ctrl-C as in a terminal; a process that a shell starts in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_the_default_is_never_above_any_other_strategy(data):
    """Sequences, latencies and tight memory are among the tasks."""
    task = data.draw(tasks(max_tables=4, constrained=True))
    if data.draw(st.booleans()):
        latency = data.draw(st.floats(0, 50))
        task = replace(task, topology=replace(task.topology, intra_latency_ms=latency, inter_latency_ms=2 * latency))
    runs_on = data.draw(st.sampled_from(["shardwright", "torchrec"]))
    steps = {}
    for name in ("auto", *OTHERS):
        try:
            steps[name] = sw.plan(task, strategy=name, cost_model=MODEL, runs_on=runs_on).cost.step_ms
        except InfeasibleTask:
            steps[name] = np.inf
    assert steps["auto"] <= min(steps.values()) * 1.002 + 1e-12, steps


@pytest.mark.slow
def test_a_plan_carries_the_name_of_the_strategy_that_found_it_and_the_bound_of_all():
    plan = sw.plan(task_of(20, 4), cost_model=MODEL)
    assert plan.strategy in OTHERS
    assert 0 < plan.bound_ms <= plan.cost.step_ms


def test_another_strategys_plan_is_taken_if_certified_has_none(monkeypatch):
    def refuse(*_, **__):
        raise InfeasibleTask("certified: no")

    monkeypatch.setattr(Certified, "_search", refuse)
    task = task_of(12, 4)
    plan = sw.plan(task, cost_model=MODEL)
    assert plan.cost.step_ms <= sw.plan(task, strategy="greedy", cost_model=MODEL).cost.step_ms


def test_the_error_gives_the_reason_if_no_strategy_has_a_plan():
    limits = {f"table_{index}": sw.TableConstraint(sharding_types=("table_wise",)) for index in range(6)}
    task = task_of(6, 2, constraints=sw.Constraints(limits))
    held = memory_account(task, [sw.Shard.whole(table, 0) for table in task.tables]).total[0]
    tight = replace(task, topology=replace(task.topology, memory=int(held * 0.505)))
    with pytest.raises(InfeasibleTask, match="no device has room for table"):
        AUTO.search(tight, MODEL, seed=0, deadline=None)


@pytest.mark.parametrize("limit", [0.0, 1e-6])
def test_without_time_greedy_has_planned(limit):
    task = task_of(30, 4)
    greedy = sw.plan(task, strategy="greedy", cost_model=MODEL)
    assert sw.plan(task, strategy="certified", cost_model=MODEL, time_limit=limit).shards == greedy.shards
    sw.plan(task, cost_model=MODEL, time_limit=limit).check()


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("where", [(session, "prepare"), (certified.NeuroShard, "search")])
def test_ctrl_c_ends_the_search_with_the_best_plan_so_far(monkeypatch, where):
    """No further strategy runs, even if a strategy answers Ctrl-C with its own plan."""

    def never(*_, **__):
        raise AssertionError("asked after Ctrl-C")

    monkeypatch.setattr(*where, interrupting)
    monkeypatch.setattr(DreamShardPlus, "search", never)
    task = task_of(30, 4)
    plan = AUTO.search(task, MODEL, seed=0, deadline=None)
    plan.check()
    assert plan.strategy in ("greedy", "certified", "flexshard", "two_tiers")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_compiled_function_returns_is_ctrl_c(monkeypatch):
    def as_compiled(*_, **__):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr(certified.NeuroShard, "search", as_compiled)
    plan = Certified(tolerance=0.0).search(task_of(30, 4), MODEL, seed=0, deadline=None)
    greedy = sw.plan(task_of(30, 4), strategy="greedy", cost_model=MODEL)
    assert sw.cost.score(plan.task, plan.shards, MODEL).step_ms < greedy.cost.step_ms
    monkeypatch.setattr(session, "prepare", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Certified().search(task_of(30, 4), MODEL, seed=0, deadline=None)


def test_a_search_in_another_thread_leaves_signals_alone():
    from threading import Thread

    plans = []
    thread = Thread(target=lambda: plans.append(sw.plan(task_of(8, 2), cost_model=MODEL)))
    thread.start()
    thread.join()
    plans[0].check()


@pytest.mark.parametrize("group", ["colocate", "apart"])
def test_a_tied_sequence_table_with_an_exchange_of_its_own_is_planned(group):
    """`certified` counts plain exchanges only, and `flexshard` takes no tied sequence tables; `greedy` takes both."""
    tables = [sw.Table("a", 100, 8, pooled=False), sw.Table("b", 100, 8)]
    task = sw.Task(
        tables, sw.Topology(1, 2), 64, constraints=sw.Constraints(**{group: [("a", "b")]}), exchange=Exchange("device")
    )
    for strategy in ("certified", "flexshard"):
        with pytest.raises(InfeasibleTask, match="use (strategy|flexshard or) auto"):
            sw.plan(task, strategy=strategy, cost_model=SimpleCostModel())
    plan = sw.plan(task, cost_model=SimpleCostModel())
    assert plan.bound_ms is None
    assert plan.runs_on == ("shardwright",)


def test_a_heavy_table_that_is_de_duplicated_and_kept_apart_is_cut():
    """`greedy` leaves it whole on one device, and `flexshard` takes no tied sequence tables."""
    tables = [sw.Table("heavy", 20_000, 128, pooling=60, pooled=False), sw.Table("light", 1000, 16, pooling=2)]
    task = sw.Task(
        tables,
        sw.Topology(4, 1, device="cpu"),
        1024,
        constraints=sw.Constraints(apart=[("heavy", "light")]),
        exchange=Exchange("host"),
    )
    plan = sw.plan(task)
    assert len(plan.by_table["heavy"]) > 1
    assert plan.cost.step_ms < 0.8 * sw.plan(task, strategy="greedy").cost.step_ms


def test_a_task_that_only_flexshard_counts_cannot_start_from_a_plan():
    task = replace(task_of(8, 2), exchange=sw.task.Exchange("device"))
    start = sw.plan(task, cost_model=MODEL)
    with pytest.raises(InvalidInput, match="cannot be planned from a plan.*leave the plan out"):
        sw.plan(task, cost_model=MODEL, start=start)


def test_few_tables_that_no_search_can_place_are_left_to_exact():
    """Two row blocks and two column blocks on the same two of four devices."""
    kinds = {"a": "row_wise", "b": "column_wise"}
    limits = {name: sw.TableConstraint((kind,), max_shards=2) for name, kind in kinds.items()}
    tables = [sw.Table(name, 1000, 16) for name in kinds]
    constraints = sw.Constraints(limits, (("a", "b"),))
    task = sw.Task(tables, sw.Topology(devices_per_host=4), 512, constraints=constraints)
    plan = sw.plan(task, strategy="auto", cost_model=MODEL)
    assert {name: plan.sharding_type(name) for name in kinds} == kinds
