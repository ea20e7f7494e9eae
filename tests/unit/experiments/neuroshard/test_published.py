"""NeuroShard as published: which tasks and searches, and the page's ratios by hand."""

import pytest
from experiments.measured import AT_RANDOM, SLOWEST, sampled_ranks
from experiments.neuroshard.networks import NOT_OF_NETWORKS
from experiments.neuroshard.production import fitting_task, production_task
from experiments.neuroshard.published import (
    BY_STEP,
    NETWORKS,
    PRODUCTION,
    PUBLISHED,
    SCORES,
    WORLD,
    NeuroShardPublished,
    entrant_of,
)
from experiments.neuroshard.published_page import made_page

import shardwright as sw
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.testing.model import SimpleCostModel
from shardwright.workload import random_task


def row(part, strategy, task, cost, step, **more):
    known = {
        "tables": 9,
        "oversize": 0,
        "cut": 1,
        "failure": None,
        "part": part,
        "devices": 4,
        "max_dim": 8,
        "task": task,
    }
    return NOT_OF_NETWORKS | known | {"strategy": strategy, "embedding_cost_ms": cost, "step_ms": step} | more


def table_of(page, beginning):
    return next(table for table in page.tables if beginning in table.caption)


def test_searches_cut_nothing_for_free():
    pieces = NeuroShardPublished().pieces(False)
    assert {piece.key["part"] for piece in pieces} == {PRODUCTION, SCORES, NETWORKS}
    published, by_step = (entrant_of(name).strategy for name in (PUBLISHED, BY_STEP))
    assert (published.free_cuts, published.score, published.most_splits) == (False, "embedding", 10)
    assert (by_step.free_cuts, by_step.score) == (False, "step")


def test_every_table_of_a_fitting_task_fits_a_device():
    task, drawn = fitting_task(WORLD, 0), production_task(WORLD, 0)
    sizes = [shard_bytes(task, Shard.whole(table, 0)) for table in task.tables]
    assert max(sizes) <= max(task.topology.memory_bytes)
    kept = [new.rows == old.rows for new, old in zip(task.tables, drawn.tables, strict=True)]
    assert 0 < kept.count(False) < len(kept) / 10


def test_the_page_compares_the_scores_task_by_task():
    rows = [
        row(SCORES, PUBLISHED, 0, 8.0, 11.0),
        row(SCORES, BY_STEP, 0, 10.0, 10.0),
        row(SCORES, PUBLISHED, 1, 6.0, 12.0),
        row(SCORES, BY_STEP, 1, 10.0, 10.0),
        row(PRODUCTION, "random", 0, 20.0, 21.0),
        row(PRODUCTION, PUBLISHED, 0, 9.0, 10.0),
    ]
    pytest.importorskip("matplotlib", reason="pages have pictures")
    page = made_page(rows)
    every = table_of(page, "searched by the embedding cost").rows[-1]
    assert every[:3] == ("all", "all", 2)
    assert (every[3].split()[0], every[4].split()[0]) == ("0.7000", "1.1500")
    (ours,) = [line for line in table_of(page, "production tasks").rows if line[0] == PUBLISHED]
    assert ours[2:4] == ("0.467", "0.450")


def test_a_sample_of_devices_has_the_slowest():
    task = random_task(0, tables=60, devices=32, device="cpu", batch_size=64)
    plan = sw.plan(task, strategy="random", cost_model=SimpleCostModel())
    ranks = sampled_ranks(plan, 0)
    times = [device.compute_ms for device in plan.cost.devices]
    assert len(set(ranks)) == SLOWEST + AT_RANDOM
    assert sorted(times)[-SLOWEST:] == sorted(times[rank] for rank in ranks[:SLOWEST])
    assert ranks == sampled_ranks(plan, 0)
