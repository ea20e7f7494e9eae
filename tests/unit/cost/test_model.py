from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost import cost_model_for, device_ms
from shardwright.cost.features import WIDTHS
from shardwright.cost.model import Pricing
from shardwright.cost.published import PublishedModel
from shardwright.sharding import Shard, shard_work
from shardwright.sharding.shard import even_cuts
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from tests.wide import wide_model

TASK = task_of(40, 4)
WIDE_MODEL = wide_model()


def test_the_simple_models_time_by_hand():
    forward, backward = SimpleCostModel().pricing.price(np.array([2.0, 3.0, 5.0]))
    assert forward == 0.01 + 2 + 0.3 * 5 + (3 - 1)
    assert backward == 0.02 + 1.5 * 2 + 3 + 2 * (3 - 1)


def test_without_hidden_units_the_time_is_linear():
    pricing = PublishedModel("h200").pricing
    times = pricing.price(np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_allclose(times, np.array([[1.0, 2.0], [3.0, 4.0]]) + pricing.bias)
    assert pricing.convex


def test_times_are_never_negative():
    pricing = Pricing(np.zeros((0, 1)), np.zeros(0), np.zeros((2, 0)), np.ones((2, 1)), np.zeros(2))
    assert (pricing.price(np.array([-5.0])) == 0).all()


def test_a_device_is_the_sum_of_the_calls_that_it_makes_and_of_what_it_pays_once():
    pricing = replace(SimpleCostModel().pricing, once=np.array([0.5, 0.25]))
    sums = np.array([[2.0, 3.0, 5.0], [1.0, 0.5, 0.0], [4.0, 4.0, 4.0]])
    of_calls = pricing.price(sums)
    both = pricing.devices(sums, np.array([True, True, False]))
    np.testing.assert_allclose(both, of_calls[0] + of_calls[1] + [0.5, 0.25])
    assert (pricing.devices(sums, np.zeros(3, dtype=bool)) == 0).all()


def test_a_wide_table_raises_the_price_of_all_narrower_tables_of_its_call():
    """By hand: in a call with a table of 256 columns, all tables pay for 32, 64 and 128 columns, which it exceeds, in two models."""
    task = task_of(2, 1)
    narrow, wide = (
        replace(shard_work(task, Shard.whole(table, 0)), dim=dim)
        for table, dim in zip(task.tables, (16, 256), strict=True)
    )
    free, paid = wide_model(0.0), wide_model(100.0)
    for works in ([narrow], [wide], [narrow, wide], [wide, wide]):
        extra = 3 * 100.0 * 1e-7 * sum(work.lookups + work.samples for work in works) * (wide in works)
        added_ms = np.subtract(device_ms(paid, works), device_ms(free, works))
        np.testing.assert_allclose(added_ms, extra, rtol=1e-6, atol=1e-9)
    scaled, hidden = paid.pricing.scaled_hidden(np.array([2.0, 3.0])), paid.pricing.hidden
    np.testing.assert_allclose(
        scaled.T, hidden.T * [*np.ones(len(hidden) - 3 * len(WIDTHS)), *np.tile([1, 2, 3], len(WIDTHS))]
    )


@given(st.lists(st.integers(0, 39), min_size=1, max_size=12, unique=True), st.integers(0, 39))
def test_gates_only_add_time_and_no_table_makes_a_call_faster(chosen, other):
    pricing, latents = WIDE_MODEL.pricing, WIDE_MODEL.encode([shard_work(TASK, Shard.whole(t, 0)) for t in TASK.tables])
    sums = latents[chosen].sum(axis=0)
    assert (pricing.price(sums) >= replace(pricing, gates=0).price(sums)).all()
    assert (pricing.price(sums + latents[other]) >= pricing.price(sums) * (1 - 1e-9)).all()


def test_a_negative_mix_is_not_convex():
    pricing = Pricing(np.ones((1, 1)), np.zeros(1), np.array([[1.0], [-0.1]]), np.zeros((2, 1)), np.zeros(2))
    assert not pricing.convex


@pytest.mark.parametrize("kind", ["bundled", "just trained"])
@given(st.lists(st.integers(0, 39), min_size=2, max_size=12, unique=True), st.integers(2, 8))
def test_no_shard_and_no_cut_of_rows_makes_a_device_faster(trained_convex, kind, chosen, parts):
    model = cost_model_for("cpu") if kind == "bundled" else trained_convex.model
    first, *others = (TASK.tables[place] for place in chosen)
    beside = [shard_work(TASK, Shard.whole(table, 0)) for table in others]
    whole = shard_work(TASK, Shard.whole(first, 0))
    rows = pairwise(even_cuts(first.rows, min(parts, first.rows)))
    blocks = [shard_work(TASK, Shard(first.name, part, (0, first.dim), (0,))) for part in rows]
    alone, with_it, with_blocks = (
        np.array(device_ms(model, works)) for works in (beside, [*beside, whole], [*beside, *blocks])
    )
    assert (alone <= with_it * (1 + 1e-9)).all()
    assert (with_it <= with_blocks * (1 + 1e-6)).all()
