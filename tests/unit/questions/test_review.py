import math
from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.errors import InvalidPlan
from shardwright.questions.review import Review, compared
from shardwright.search.certified import Certified
from shardwright.sharding import Shard
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()


def planned(strategy, task=None):
    return sw.plan(task or task_of(12, 4), strategy=strategy, cost_model=MODEL)


@pytest.mark.slow
def test_a_poor_plan_is_improved_and_moves_are_listed():
    poor = planned("random", task_of(6, 3))
    review = sw.review(poor, cost_model=MODEL)
    assert review.plan.shards == poor.shards
    assert review.better_ms < review.step_ms == poor.cost.step_ms
    assert review.gain == pytest.approx(1 - review.better_ms / review.step_ms)
    assert review.bound_ms <= review.better_ms
    assert review.diff.moved_bytes == poor.diff(review.better).moved_bytes > 0
    assert review.sentence() == (
        f"your plan takes {review.step_ms:.3f} ms a step; the best one found {review.better_ms:.3f} ms ({review.gain:.1%} less); "
        f"the proven bound is {review.bound_ms:.3f} ms ({1 - review.bound_ms / review.step_ms:.1%} less)"
    )


@pytest.mark.slow
def test_a_plan_that_cannot_be_improved_is_its_own_best():
    best = sw.review(planned("auto", task_of(4, 2)), cost_model=MODEL).better
    review = sw.review(best, cost_model=MODEL)
    assert review.better.shards == best.shards
    assert review.gain == 0
    assert review.diff.moved_bytes == 0
    assert "no better one was found" in review.sentence()


def test_a_price_on_moves_keeps_tables_in_place():
    poor = planned("size")
    quick = Certified(tolerance=0.02, patience=0)
    free, dear = (sw.review(poor, strategy=quick, cost_model=MODEL, move_cost=cost) for cost in (0.0, math.inf))
    assert dear.diff.moved_bytes == 0
    assert free.better_ms <= dear.better_ms == dear.step_ms


def test_the_bound_covers_a_plan_of_grids():
    table = sw.Table("t0", 1 << 20, 64, 20.0)
    task = sw.Task([table], sw.Topology(1, 4, "cpu"), 1024)
    grid = [
        Shard("t0", rows, columns, ((2 * row + column) % 4,))
        for row, rows in enumerate(((0, 1 << 19), (1 << 19, 1 << 20)))
        for column, columns in enumerate(((0, 32), (32, 64)))
    ]
    review = sw.review(sw.Plan(task, grid), cost_model=MODEL)
    assert 0 < review.bound_ms <= review.better_ms <= review.step_ms


def test_the_bound_of_the_plan_under_review_is_kept():
    given = planned("certified")
    assert given.bound_ms is not None
    lower = replace(given, bound_ms=given.bound_ms / 2)
    assert compared(given, lower, MODEL).bound_ms == given.bound_ms
    unlike = (replace(given, cost_model="another"), replace(given, bound_ms=2 * given.cost.step_ms))
    assert [compared(plan, lower, MODEL).bound_ms for plan in unlike] == [lower.bound_ms] * 2


def test_a_bound_of_the_links_alone_gives_no_percentage():
    given = planned("greedy")
    bounds = [replace(given, bound_ms=given.cost.step_ms / 4, bound_scope=scope) for scope in ("blocks", "links")]
    of_blocks, of_links = (Review(given, bounded, bounded.bound_ms) for bounded in bounds)
    assert of_blocks.gap == pytest.approx(3)
    assert of_blocks.sentence().endswith("(75.0% less)")
    assert of_links.gap is None
    assert of_links.sentence().endswith(f"the proven bound is {of_links.bound_ms:.3f} ms")


def test_a_plan_that_breaks_a_rule_is_refused():
    task = task_of(3, 2)
    with pytest.raises(InvalidPlan):
        sw.review(sw.Plan(task, planned("size", task).shards[:-1]), cost_model=MODEL)


def test_the_time_limit_is_for_both_searches(monkeypatch):
    limits = []

    def quick(task, *, time_limit, runs_on, cost_model, **_):
        limits.append(time_limit)
        return sw.plan(task, strategy="greedy", runs_on=runs_on, cost_model=cost_model)

    given = planned("random")
    monkeypatch.setattr("shardwright.questions.review.find_plan", quick)
    assert sw.review(given, cost_model=MODEL, time_limit=100.0).looked_elsewhere
    assert len(limits) == 2
    assert limits[0] < 100.0
    assert limits[1] <= 100.0
    monkeypatch.setattr("shardwright.questions.review._WORTH", 1.0)  # as if the first search had used up all time
    review = sw.review(given, cost_model=MODEL, time_limit=100.0)
    assert not review.looked_elsewhere
    assert review.elsewhere is None
