from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import PublishedModel
from shardwright.errors import InfeasibleTask, InvalidInput, ShardwrightError
from shardwright.search.certified import Certified
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from shardwright.workload import random_task

MODEL = SimpleCostModel()


@pytest.mark.parametrize("name", sw.strategy_names(task_of(1, 1)))
def test_a_plan_is_complete_and_scored(name):
    plan = sw.plan(task_of(8, 2), strategy=name, cost_model=MODEL, seed=3)
    plan.check()
    assert plan.strategy == name
    assert plan.seed == 3
    assert plan.cost_model == MODEL.name
    assert plan.cost is not None
    assert plan.cost.step_ms >= plan.cost.compute_ms > 0
    assert plan.search_s is not None


def test_random_depends_on_the_seed_and_the_heuristics_do_not():
    task = task_of(20, 4)
    random = {sw.plan(task, strategy="random", cost_model=MODEL, seed=s).shards for s in range(5)}
    size = {sw.plan(task, strategy="size", cost_model=MODEL, seed=s).shards for s in range(5)}
    assert len(random) == 5
    assert len(size) == 1


BASELINES = ("random", "size", "dim", "lookup", "size_lookup")


def test_greedy_beats_every_baseline_on_its_own_cost_model_on_average():
    ratios = []
    for count in (20, 30, 40):
        task = task_of(count, 4)
        cost = {name: sw.plan(task, strategy=name, cost_model=MODEL).cost.compute_ms for name in (*BASELINES, "greedy")}
        ratios.append(cost["greedy"] / min(cost[name] for name in BASELINES))
    assert np.mean(ratios) < 1


def test_a_table_too_large_for_any_device_is_cut_where_that_is_allowed():
    table = sw.Table("item", rows=1_000_000, dim=16, pooling=2)
    topology = sw.Topology(devices_per_host=4, memory="40 MB")
    plan = sw.plan(sw.Task([table], topology, 256), cost_model=MODEL)
    assert plan.sharding_type("item") == "column_wise"
    narrow = sw.Table("item", rows=1_000_000, dim=1, pooling=2)
    plan = sw.plan(sw.Task([narrow], sw.Topology(devices_per_host=4, memory="4 MB"), 256), cost_model=MODEL)
    assert plan.sharding_type("item") == "row_wise"


def test_a_strategy_that_does_not_support_a_task_gives_the_reason():
    constraints = sw.Constraints({"table_0": sw.TableConstraint(sharding_types=("tiered",))})
    with pytest.raises(InfeasibleTask, match="table_0.*only tiered"):
        sw.plan(task_of(3, 2, constraints=constraints), cost_model=MODEL)


@pytest.mark.parametrize("limit", [5, 5.5, np.float32(5), np.int64(5)])
def test_any_number_can_be_a_time_limit(limit):
    sw.plan(task_of(3, 2), time_limit=limit, cost_model=MODEL).check()


def test_a_search_ends_once_the_gap_that_is_asked_for_is_proven():
    task = random_task(3, tables=20, devices=2)
    wide, narrow = (sw.plan(task, gap=gap, time_limit=30, cost_model=MODEL) for gap in (0.05, 0.002))
    assert wide.search_end == narrow.search_end == "proven"
    assert narrow.gap <= 0.002
    assert wide.gap <= 0.05
    assert narrow.cost.step_ms <= wide.cost.step_ms


def test_a_search_reports_why_it_ended(tmp_path):
    task = random_task(3, tables=12, devices=4)
    limited = sw.plan(task, gap=0.0, time_limit=0.3, cost_model=MODEL)
    settled = sw.plan(task, strategy=Certified(tolerance=0.0, patience=1), cost_model=MODEL)
    assert (limited.search_end, settled.search_end) == ("deadline", "settled")
    assert sw.plan(task, strategy="greedy", cost_model=MODEL).search_end is None
    limited.save(tmp_path / "plan.json")
    assert sw.Plan.load(tmp_path / "plan.json").search_end == "deadline"


def test_a_user_can_register_a_strategy_under_a_new_name_only():
    class Mine:
        name = "greedy"

        def supports(self, task):
            return None

        def search(self, task, cost_model, *, seed, deadline):
            raise InfeasibleTask("never")

    with pytest.raises(InvalidInput, match="is taken"):
        sw.register(Mine())


def test_rounding_does_not_lift_the_bound_above_the_step():
    """One device: the only plan, and the bound is its step."""
    tables = [sw.Table(f"t{i}", 1000 + i, 16, 5.0 + i / 3, pooled=i % 2 == 0) for i in range(3)]
    for count in (1, 2, 3):
        plan = sw.plan(sw.Task(tables[:count], sw.Topology(devices_per_host=1), 512))
        assert 0 <= plan.gap < 1e-6


class Narrower(PublishedModel):
    """The same costs for searches that may cut blocks of any width, and trust every gain."""

    narrowest = None
    cut_error = 0.0


CUT = TableConstraint(("table_wise", "column_wise"))


def few_tables(memory="1 TB", rows=20_000_000, **fields):
    tables = [Table(f"t{i}", rows, 128, 10.0) for i in range(3)]
    topology = Topology.preset("h100-8", memory=memory)
    return Task(tables, topology, 65_536, constraints=Constraints({table.name: CUT for table in tables}), **fields)


def narrowest(plan):
    return min(shard.dim for shard in plan.shards)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["certified", "neuroshard"])
def test_narrow_blocks_are_not_cut_if_the_cost_model_prices_them_higher(strategy):
    task = few_tables(optimizer="adam")
    wide = sw.plan(task, strategy=strategy, cost_model=PublishedModel("h100", "adam"))
    assert narrowest(wide) >= 32
    assert wide.bound_scope == "torchrec_wide"
    assert wide.task is task
    free = sw.plan(task, strategy="certified", cost_model=Narrower("h100", "adam"))
    assert narrowest(free) < 32
    assert free.bound_scope == "torchrec"
    again = sw.plan(task, strategy="certified", cost_model=PublishedModel("h100", "adam"), start=wide)
    assert narrowest(again) >= 32
    kept = sw.plan(
        task, strategy="certified", cost_model=PublishedModel("h100", "adam"), start=free, move_cost=float("inf")
    )
    assert kept.shards == free.shards


def test_narrow_blocks_are_cut_if_memory_requires_it():
    task = few_tables(memory="700 MB", rows=3_000_000)  # a block of 32 columns has 384 MB: only one fits a device
    plan = sw.plan(task, strategy="certified", cost_model=PublishedModel("h100"))
    assert narrowest(plan) < 32
    assert plan.bound_scope == "torchrec"


@pytest.mark.slow
def test_a_cut_below_the_models_error_is_not_made():
    tables = [Table(f"t{i}", 500_000, 64, 5.0 * (1 + i % 4)) for i in range(12)]
    task = Task(tables, Topology.preset("h100-8"), 65_536)

    class Doubtful(Narrower):
        cut_error = 5.0

    brief = Certified(patience=2)
    sure, doubtful = (sw.plan(task, strategy=brief, cost_model=model("h100")) for model in (Narrower, Doubtful))
    assert len(doubtful.shards) < len(sure.shards)
    assert doubtful.cost.step_ms >= sure.cost.step_ms


def test_a_search_reports_its_best_step_and_bound():
    told = []
    plan = sw.plan(task_of(12, 4), strategy="certified", gap=0.0, progress=lambda *what: told.append(what))
    steps, bounds = zip(*told, strict=True)
    assert min(steps) >= plan.cost.step_ms * (1 - 1e-9)
    assert max(bound or 0.0 for bound in bounds) <= plan.cost.step_ms
    assert any(bounds)


class LostEncoder(SimpleCostModel):
    def encode_arrays(self, works):
        return super().encode_arrays(works) * np.nan


class LostHead(SimpleCostModel):
    @property
    def pricing(self):
        return replace(super().pricing, bias=np.array([0.0, np.nan]))


@pytest.mark.parametrize("model", [LostEncoder("lost"), LostHead("lost")], ids=["encoder", "head"])
@pytest.mark.parametrize("name", ["size", "greedy", "certified", "exact", "neuroshard"])
def test_a_model_that_gives_nan_is_refused_by_its_name(name, model):
    with pytest.raises(ShardwrightError, match="lost predicted (NaN|a time that is not finite)"):
        sw.plan(task_of(4, 2), strategy=name, cost_model=model)
