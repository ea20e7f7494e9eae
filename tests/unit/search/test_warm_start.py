"""Planning from a plan, through the main call: rules that hold for any search."""

import math
from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.cost import score
from shardwright.errors import InvalidInput
from shardwright.search.certified import Certified
from shardwright.search.strategy import WarmStrategy
from shardwright.sharding import Plan, Shard
from shardwright.sharding.diff import element_bytes
from shardwright.sharding.runtimes import crossing
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, task_of

MODEL = SimpleCostModel()
TASK = task_of(24, 4)
GROWN = task_of(27, 4)
TASKS = conformance_tasks()


@pytest.fixture(scope="module")
def old() -> Plan:
    """A searched plan of `TASK`."""
    return sw.plan(TASK, strategy="certified", cost_model=MODEL)


def replan(task, start, move_cost=0.0, **options) -> Plan:
    return sw.plan(task, strategy="certified", cost_model=MODEL, start=start, move_cost=move_cost, **options)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["certified", "random", "neuroshard"])
@pytest.mark.parametrize("what", TASKS)
def test_nothing_moves_at_an_infinite_price(what, strategy):
    old = sw.plan(TASKS[what], strategy=strategy, cost_model=MODEL, seed=5)
    new = replan(TASKS[what], old, math.inf)
    assert old.diff(new).moved_bytes == 0
    assert new.cost.step_ms <= old.cost.step_ms * (1 + 1e-9)
    holders = [(shard.table, rank) for shard in old.shards for rank in shard.devices]
    if (
        len(holders) == len(set(holders)) == len(old.shards)
    ):  # replicas may go, and blocks on one device join, without a move
        assert set(new.shards) == set(old.shards)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["certified", "random", "neuroshard"])
@pytest.mark.parametrize("move_cost", [0.0, 1e-3, 10.0])
def test_a_plan_is_never_worse_than_the_one_it_started_from(strategy, move_cost):
    old = sw.plan(TASK, strategy=strategy, cost_model=MODEL, seed=1)
    new = replan(TASK, old, move_cost)
    moved = old.diff(new).moved_bytes / 1e9
    assert new.cost.step_ms + move_cost * moved <= old.cost.step_ms * (1 + 1e-9)
    if strategy == "random":
        assert new.cost.step_ms < 0.8 * old.cost.step_ms


def test_of_a_grown_task_only_the_new_tables_are_made_at_a_huge_price(old):
    new = replan(GROWN, old, 1e9)
    diff = old.diff(new)
    assert (diff.moved_bytes, diff.added) == (0, ("table_24", "table_25", "table_26"))


@pytest.mark.slow
def test_dearer_moves_are_fewer_and_steps_longer(old):
    """Searches are no exact optimum, so the trade-off has a margin."""
    prices = (0.0, 10.0, 1e3, 1e5, math.inf)
    plans = [replan(GROWN, old, price) for price in prices]
    moved = [old.diff(plan).moved_bytes for plan in plans]
    steps = [plan.cost.step_ms for plan in plans]
    assert moved[0] > 10 * moved[2] >= 10 * moved[-1] == 0
    assert steps[-1] >= steps[0] * 0.98
    for price in prices[1:-1]:
        paid = [step + price * size / 1e9 for step, size in zip(steps, moved, strict=True)]
        assert paid[prices.index(price)] <= 1.05 * min(paid)


def test_from_a_removed_device_only_its_part_moves(old):
    task = replace(TASK, topology=replace(TASK.topology, devices_per_host=3, memory="4 GB"))
    diff = old.diff(replan(task, old, math.inf))
    alone = [shard for shard in old.by_device[3] if len(shard.devices) == 1]
    on_it = sum(shard.area * element_bytes(TASK, TASK.table_by_name[shard.table]) for shard in alone)
    assert diff.moved_bytes == pytest.approx(on_it, rel=0.02)
    assert diff.gone_devices == 1


@pytest.mark.slow
def test_an_added_host_is_used_if_that_pays(old):
    task = replace(TASK, topology=replace(TASK.topology, hosts=2, memory="4 GB"))
    free, dear = replan(task, old), replan(task, old, math.inf)
    assert free.cost.step_ms < 0.75 * dear.cost.step_ms
    assert old.diff(dear).moved_bytes == 0
    assert old.diff(free).new_devices == 4


def test_removed_tables_leave_the_rest_in_place(old):
    task = replace(TASK, tables=TASK.tables[:16])
    new = replan(task, old, math.inf)
    left = Plan(task, [shard for shard in old.shards if shard.table in task.table_by_name])
    assert old.diff(new).moved_bytes == 0
    assert len(old.diff(new).removed) == 8
    assert new.cost.step_ms <= score(task, left.shards, MODEL).step_ms * (1 + 1e-9)


def test_with_no_table_in_common_everything_is_new(old):
    other = replace(TASK, tables=[replace(table, name=f"other_{table.name}") for table in TASK.tables])
    diff = old.diff(replan(other, old, math.inf))
    assert (diff.moved_bytes, diff.tables, len(diff.added)) == (0, (), 24)


@pytest.mark.parametrize("move_cost", [0.0, 1.0, math.inf])
def test_a_time_limit_of_zero_returns_the_old_plan(move_cost):
    old = sw.plan(TASK, strategy="random", cost_model=MODEL)
    new = replan(TASK, old, move_cost, time_limit=0)
    assert set(new.shards) == set(old.shards)
    replan(GROWN, old, move_cost, time_limit=0).check()


def test_a_plan_cut_as_no_search_cuts_is_kept_if_moves_are_dear():
    """Four blocks of rows and columns: the engine does not know grids, but the plan they are in does not get lost."""
    table = sw.Table("t", 6400, 64, 10.0)
    task = sw.Task([table], sw.Topology(devices_per_host=4), 256)
    grid = [
        Shard("t", rows, columns, (2 * i + j,))
        for i, rows in enumerate(((0, 3200), (3200, 6400)))
        for j, columns in enumerate(((0, 32), (32, 64)))
    ]
    assert set(replan(task, Plan(task, grid), math.inf).shards) == set(grid)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan_on_one_and_two_threads(old):
    plans = [
        sw.plan(GROWN, strategy=Certified(threads=threads), cost_model=MODEL, start=old, move_cost=5.0, seed=3)
        for threads in (1, 2, 2)
    ]
    assert plans[0].shards == plans[1].shards == plans[2].shards


def test_a_strategy_of_the_users_own_can_start_from_a_plan(old):
    class Stubborn:
        name = "stubborn"

        def supports(self, task):
            return None

        def search(self, task, cost_model, *, seed, deadline):
            raise AssertionError("there is a plan to start from")

        def search_from(self, task, cost_model, *, start, move_cost, seed, deadline):
            return Plan(task, start.shards, self.name, seed)

    assert isinstance(Stubborn(), WarmStrategy)
    plan = sw.plan(TASK, strategy=Stubborn(), cost_model=MODEL, start=old, move_cost=2.0)
    assert (plan.shards, plan.strategy) == (old.shards, "stubborn")


SMALL = sw.Table("small", 64, 64, 20.0)
LARGE = sw.Table("large", 4_000_000, 64, 1.0)


def of_replicas(optimizer="adagrad", devices=4):
    """A table that pays to be replicated, and one that does not."""
    where = sw.Topology(devices_per_host=devices, intra_bandwidth="1 MB/s", memory="16 GB")
    return sw.Task([SMALL, LARGE], where, 4096, optimizer)


def types(plan):
    return [plan.sharding_type(name) for name in ("small", "large")]


@pytest.mark.parametrize(("optimizer", "crosses"), [("adagrad", False), ("adam", False), ("sgd", True)])
def test_for_torchrec_tables_keep_their_replicas_or_have_none(optimizer, crosses):
    """TorchRec loads no optimizer state across that border; SGD has none."""
    task = of_replicas(optimizer)
    free = sw.plan(task, cost_model=MODEL, runs_on="torchrec")
    assert types(free)[0] == "data_parallel"
    whole = Plan(task, [Shard.whole(SMALL, 0), Shard.whole(LARGE, 1)])
    kept = replan(task, whole, runs_on="torchrec")
    assert (types(kept)[0] == "data_parallel") == crosses
    assert types(replan(task, whole, runs_on="torchrec", cross_replicas=True))[0] == "data_parallel"
    replicas = Plan(task, [Shard.whole(SMALL, 0), Shard.whole(LARGE, 0, 1, 2, 3)])
    stays = replan(task, replicas, runs_on="torchrec")
    assert (types(stays)[1] == "data_parallel") != crosses
    for plan in (kept, stays):
        assert plan.bound_ms <= free.cost.step_ms * (1 + 1e-9)  # the bound is over all plans
    assert types(replan(task, whole, runs_on=None))[0] == "data_parallel"


def test_replicas_that_no_longer_fit_need_cross_replicas():
    task = of_replicas()
    replicas = Plan(task, [Shard.whole(SMALL, 0), Shard.whole(LARGE, 0, 1, 2, 3)])
    tight = replace(task, topology=replace(task.topology, memory="2 GB"))
    with pytest.raises(sw.InfeasibleTask, match="keep their replicas.*--cross-replicas"):
        replan(tight, replicas, runs_on="torchrec")
    assert types(replan(tight, replicas, runs_on="torchrec", cross_replicas=True))[1] != "data_parallel"
    with pytest.raises(InvalidInput, match="cross_replicas is given, but no plan to start from"):
        sw.plan(task, cost_model=MODEL, cross_replicas=True)


def test_plans_name_the_tables_that_cross():
    task = of_replicas()
    whole = Plan(task, [Shard.whole(SMALL, 0), Shard.whole(LARGE, 1)])
    replicas = Plan(task, [Shard.whole(SMALL, 0, 1, 2, 3), Shard.whole(LARGE, 0)])
    assert crossing(whole, replicas) == crossing(replicas, whole) == ["small"]
    assert crossing(whole, whole) == []
    assert crossing(replace(whole, task=of_replicas("sgd")), replace(replicas, task=of_replicas("sgd"))) == []
