from dataclasses import replace

import pytest
from experiments.flexshard.sequence_models import EXCHANGES, cluster, model, sent, task_of, with_memory

from shardwright.cost import PublishedModel
from shardwright.search import strategy_named
from shardwright.sharding import memory_account
from shardwright.task import AccessProfile, Table

EVERY, _, PER_HOST = EXCHANGES.values()


def small_task():
    table = Table("sequence", 100_000, 64, 50.0, False, AccessProfile.zipf(100_000, 1.1))
    return task_of([table], cluster(2, near=2), batch=64)


def test_models_follow_from_their_seed():
    tables = model(3, 6, (0.8, 1.3))
    assert tables == model(3, 6, (0.8, 1.3)) != model(4, 6, (0.8, 1.3))
    assert all(not table.pooled and 1e6 <= table.rows <= 3e7 and table.dim in (32, 64, 128) for table in tables)
    assert all(50 <= table.pooling <= 1000 for table in tables)


def test_memory_is_that_of_a_row_wise_plan_and_parts_of_its_rows():
    task = small_task()
    own, more = with_memory(task, 1.0, 1.5)
    account = memory_account(
        own, strategy_named("row_wise").search(own, PublishedModel("h100"), seed=0, deadline=None).shards
    )
    rows = (account.weights + account.optimizer).max()
    assert max(own.topology.memory_bytes) == account.total.max()
    assert more.topology.memory_bytes[0] - own.topology.memory_bytes[0] == pytest.approx(rows / 2, abs=1)


def test_every_lookup_of_a_row_wise_plan_travels():
    """3 of 4 lookups leave their device, 2 of 4 their host: values and gradients of 64 × 4 bytes, and an id of 8 bytes."""
    (task,) = with_memory(small_task(), 1.0)
    traffic = sent(task, "row_wise")
    lookups = 64 * 4 * 50
    assert traffic.bytes_between == pytest.approx(lookups / 2 * (2 * 64 * 4 + 8), rel=0.01)
    assert (traffic.hot_rows, traffic.warm_rows, traffic.bound_ms) == (0, 0, None)
    assert traffic.communication_ms > 0


def test_tiers_hold_replicas_and_say_how_far_they_are_from_the_bounds():
    (task,) = with_memory(small_task(), 1.5)
    tiers, two, plain = (sent(task, name) for name in ("flexshard", "two_tiers", "row_wise"))
    assert tiers.bytes_between <= two.bytes_between < plain.bytes_between
    assert tiers.hot_rows + tiers.warm_rows > 0
    assert two.warm_rows == 0 < two.hot_rows
    assert tiers.plans_bound_ms <= tiers.bound_ms <= tiers.communication_ms * (1 + 1e-9)


def test_replicas_gain_little_if_rows_cross_once():
    task = replace(small_task(), exchange=PER_HOST)
    own, more = with_memory(task, 1.0, 1.5)
    assert sent(more, "flexshard").bytes_between == pytest.approx(sent(own, "row_wise").bytes_between, rel=0.02)


def test_models_that_do_not_fit_send_nothing():
    (task,) = with_memory(small_task(), 0.5)
    assert sent(task, "flexshard") is None
