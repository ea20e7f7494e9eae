import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.balance import fullest, tolerance_of
from shardwright.search.certified import Certified
from shardwright.search.solve import plan_balanced
from shardwright.sharding import memory_account
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()
QUICK = Certified(tolerance=0.02, patience=0)


def lopsided(devices=2):
    """Tables that are looked up alike, half of them large: a balanced step does not imply balanced memory."""
    tables = [sw.Table(f"t{index}", 200_000 if index < 4 else 1_000, 16, 10.0) for index in range(8)]
    limits = {table.name: sw.TableConstraint(sharding_types=("table_wise",)) for table in tables}
    return sw.Task(tables, sw.Topology(1, devices, "cpu", "1 GB"), 256, constraints=sw.Constraints(limits))


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_the_fullest_device_is_less_full_at_nearly_the_best_step(tolerance):
    balanced = plan_balanced(lopsided(), tolerance, cost_model=MODEL)
    balanced.plan.check()
    assert balanced.plan.task == lopsided()
    assert balanced.plan.cost.step_ms <= balanced.best.cost.step_ms * (1 + tolerance)
    assert balanced.least_bytes <= balanced.fullest_bytes <= fullest(balanced.best)
    assert balanced.plan.bound_ms == balanced.best.bound_ms


def test_large_tables_are_shared_out():
    task = lopsided()
    balanced = plan_balanced(task, 0.05, cost_model=MODEL)
    large = [shard.devices[0] for shard in balanced.plan.shards if shard.rows[1] > 1_000]
    assert sorted(large) == [0, 0, 1, 1]
    even = memory_account(task, balanced.plan.shards).total
    assert even.max() - even.min() < 0.02 * even.max()
    assert (
        balanced.least_bytes > 0.9 * balanced.fullest_bytes
    )  # three large tables in two halves: proven by the bytes of their rows


@pytest.mark.slow
def test_more_tolerance_is_never_fuller():
    task = task_of(8, 3)
    sizes = [plan_balanced(task, tolerance, cost_model=MODEL).fullest_bytes for tolerance in (0.0, 0.5)]
    assert sizes[1] <= sizes[0]


def test_plan_takes_the_tolerance_and_any_strategy():
    task = lopsided()
    plan = sw.plan(task, strategy="greedy", cost_model=MODEL, balance_memory=0.1)
    assert plan.cost.step_ms <= 1.1 * sw.plan(task, strategy="greedy", cost_model=MODEL).cost.step_ms
    assert sw.plan(task, cost_model=MODEL, balance_memory=0.1, time_limit=0).task == task
    with pytest.raises(InvalidInput, match="balance_memory is"):
        sw.plan(task, cost_model=MODEL, balance_memory=-0.1)


def test_a_tolerance_is_a_share_or_per_cent():
    assert tolerance_of("1%") == tolerance_of("0.01") == 0.01
    assert tolerance_of("much") != tolerance_of("much")  # NaN


@pytest.mark.slow
def test_a_larger_tolerance_of_the_step_moves_less():
    task = task_of(6, 2)
    start = sw.plan(task, strategy="random", cost_model=MODEL)
    best = sw.plan(task, start=start, strategy=QUICK, cost_model=MODEL)
    moved = [start.diff(best).moved_bytes]
    for tolerance in (0.02, 0.3):
        plan = sw.plan(task, start=start, least_moves=tolerance, strategy=QUICK, cost_model=MODEL)
        assert plan.cost.step_ms <= best.cost.step_ms * (1 + tolerance) * (1 + 1e-9)
        moved.append(start.diff(plan).moved_bytes)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < moved[0]


def test_a_plan_that_is_fast_enough_stays():
    task = lopsided()
    start = sw.plan(task, cost_model=MODEL)
    assert start.diff(sw.plan(task, start=start, least_moves=0.01, cost_model=MODEL)).moved_bytes == 0


def test_the_best_step_within_the_bytes_that_may_move():
    task = task_of(12, 4)
    start = sw.plan(task, strategy="random", cost_model=MODEL)
    best = sw.plan(task, start=start, strategy=QUICK, cost_model=MODEL)
    most = start.diff(best).moved_bytes
    steps = []
    for share in (0.0, 0.3, 1.0):
        plan = sw.plan(task, start=start, most_moved=int(share * most), strategy=QUICK, cost_model=MODEL)
        assert start.diff(plan).moved_bytes <= share * most
        steps.append(plan.cost.step_ms)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[1] < steps[0]
    with pytest.raises(InvalidInput, match="most_moved needs a plan to start from"):
        sw.plan(task, most_moved=1, cost_model=MODEL)
    with pytest.raises(InvalidInput, match="goes with no"):
        sw.plan(task, start=start, most_moved=1, least_moves=0.1, cost_model=MODEL)


def test_forced_moves_may_exceed_the_limit():
    task = lopsided(devices=2)
    start = sw.plan(task, cost_model=MODEL)
    with pytest.raises(InfeasibleTask, match="must move"):
        sw.plan(lopsided(devices=1), start=start, most_moved=1, cost_model=MODEL)


@pytest.mark.parametrize("options", [{}, {"start": True, "move_cost": 1.0}, {"start": True, "balance_memory": 0.1}])
def test_least_moves_needs_a_plan_to_start_from_and_no_other_goal(options):
    start = sw.plan(lopsided(), strategy="greedy", cost_model=MODEL) if options.pop("start", False) else None
    with pytest.raises(InvalidInput, match="least_moves needs a plan to start from"):
        sw.plan(lopsided(), start=start, least_moves=0.01, cost_model=MODEL, **options)
