"""A renumbered plan moves few bytes between interchangeable devices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost.score import score
from shardwright.sharding import Plan, Shard
from shardwright.sharding.diff import diff_plans
from shardwright.sharding.relabel import relabelled

TABLES = tuple(sw.Table(f"t{index}", 1_000 * (index + 1), 16, 2.0) for index in range(12))
MODEL = sw.cost.PublishedModel("h100")


def _task(hosts: int = 2, memory="1 GB", limits=None) -> sw.Task:
    topology = sw.Topology(hosts, 4, "h100", memory)
    return sw.Task(TABLES, topology, 1_024, constraints=sw.Constraints(limits or {}))


def _whole(task: sw.Task, ranks) -> Plan:
    return Plan(task, tuple(Shard.whole(table, rank) for table, rank in zip(TABLES, ranks, strict=True)))


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_renumbered_plan_is_found_again(seed: int) -> None:
    """Hosts, and devices of each host, in another order: nothing moves."""
    rng, task = np.random.default_rng(seed), _task()
    older = _whole(task, rng.integers(8, size=12).tolist())
    order = np.concatenate([4 * host + rng.permutation(4) for host in rng.permutation(2)])
    newer = _whole(task, order[[shard.devices[0] for shard in older.shards]].tolist())
    renumbered = relabelled(newer, older)
    assert diff_plans(older, renumbered).moved_bytes == 0
    assert score(task, renumbered.shards, MODEL).step_ms == pytest.approx(score(task, newer.shards, MODEL).step_ms)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_no_more_bytes_move_and_the_step_stays(seed: int) -> None:
    rng, task = np.random.default_rng(seed), _task()
    older, newer = (_whole(task, rng.integers(8, size=12).tolist()) for _ in range(2))
    renumbered = relabelled(newer, older)
    assert diff_plans(older, renumbered).moved_bytes <= diff_plans(older, newer).moved_bytes
    assert score(task, renumbered.shards, MODEL).step_ms == pytest.approx(score(task, newer.shards, MODEL).step_ms)


def test_rows_stay_in_the_order_of_ranks() -> None:
    task = _task()
    dealt = [Shard("t0", (250 * place, 250 * place + 250), (0, 16), (4 + place,)) for place in range(4)]
    older = _whole(task, [0, 3, 2, 1, *range(8)])
    newer = Plan(task, (*dealt, *_whole(task, [4, 4, 5, 6, 7, 6, 5, 4, 3, 2, 1, 0]).shards[1:]))
    renumbered = relabelled(newer, older)
    own = [shard for shard in renumbered.shards if shard.table == "t0"]
    assert [shard.devices for shard in sorted(own, key=lambda shard: shard.rows)] == [(0,), (1,), (2,), (3,)]
    assert "torchrec" in renumbered.runs_on


@pytest.mark.parametrize(
    "task",
    [_task(memory=["1 GB"] * 7 + ["2 GB"]), _task(limits={"t0": sw.TableConstraint(devices=(0, 1, 2, 3, 4, 5, 6, 7))})],
    ids=["unequal memory", "a table names devices"],
)
def test_devices_that_differ_keep_their_numbers(task: sw.Task) -> None:
    older, newer = _whole(task, [0] * 12), _whole(task, [1] * 12)
    assert relabelled(newer, older) is newer


def test_a_plan_from_another_plan_moves_little() -> None:
    """Without a price of moves the search starts anew, yet equal devices keep their tables."""
    task = _task()
    older = sw.plan(task, cost_model=MODEL, time_limit=1.0)
    mirrored = replace(
        older,
        shards=tuple(
            replace(shard, devices=tuple(sorted(7 - rank for rank in shard.devices))) for shard in older.shards
        ),
    )
    newer = sw.plan(task, cost_model=MODEL, time_limit=1.0, start=mirrored)
    assert newer.cost.step_ms <= older.cost.step_ms * (1 + 1e-6)
    review = sw.review(mirrored, cost_model=MODEL, time_limit=1.0)
    assert review.diff.moved_bytes <= diff_plans(mirrored, older).moved_bytes
