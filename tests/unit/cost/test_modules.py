"""The time of modules, measured on a cluster, is part of every step there and decides nothing."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.cost import PublishedModel
from shardwright.cost.for_task import for_task
from shardwright.cost.modules import without_modules
from shardwright.cost.score import kernels_and_links, score, synchronisation_ms
from shardwright.search.bound import lower_bound
from shardwright.task.links import Links, ModuleTimes
from shardwright.task.topology import Exchange, Topology

POOLED = (sw.Table("wide", 100_000, 128, 10.0), sw.Table("two", 1_000, 64, [2.0, 3.0]))
SEQUENCE = (sw.Table("clicks", 10_000, 32, 8.0, pooled=False),)
TWO_DIMS = (*SEQUENCE, sw.Table("views", 10_000, 32, pooled=False), sw.Table("likes", 10_000, 64, pooled=False))
MODEL = PublishedModel("h100")
TIMES = ModuleTimes(pooled_ms=3.0, sequence_ms=5.0, shared_ms=2.0)


def _task(tables=POOLED + SEQUENCE, modules: ModuleTimes = TIMES, **exchange) -> sw.Task:
    topology = Topology(1, 4, "h100", "80 GB", links=Links(modules=modules))
    return sw.Task(tables, topology, 65_536, exchange=Exchange(**exchange))


@pytest.mark.parametrize(("tables", "ms"), [(POOLED, 3.0), (SEQUENCE, 5.0), (TWO_DIMS, 10.0), (POOLED + SEQUENCE, 8.0)])
def test_a_step_and_its_bound_hold_the_modules_that_the_task_needs(tables, ms) -> None:
    task = _task(tables)
    shards = sw.plan(task, strategy="size").shards
    steps = [score(one, shards, MODEL).step_ms for one in (task, without_modules(task))]
    assert steps[0] == pytest.approx(steps[1] + ms)
    bounds = [lower_bound(one, for_task(MODEL, one)).ms for one in (task, without_modules(task))]
    assert bounds[0] == pytest.approx(bounds[1] + ms, rel=1e-6)


def test_another_exchange_has_no_modules_of_torchrec() -> None:
    task = _task(deduplicate="host")
    shards = sw.plan(task, strategy="greedy").shards
    assert score(task, shards, MODEL).step_ms == score(without_modules(task), shards, MODEL).step_ms


def test_shared_collectives_have_the_module_of_the_runtime() -> None:
    task = _task(collectives="shared")
    shards = sw.plan(task, strategy="greedy").shards
    steps = [score(one, shards, MODEL).step_ms for one in (task, without_modules(task))]
    assert steps[0] == pytest.approx(steps[1] + 2.0)


def test_kernels_alone_and_synchronisation_leave_modules_out() -> None:
    plan = sw.plan(_task(), strategy="greedy")
    assert kernels_and_links(plan, modules=True).cost.step_ms == pytest.approx(plan.cost.step_ms)
    assert kernels_and_links(plan).cost.step_ms == pytest.approx(plan.cost.step_ms - 8.0)
    assert not synchronisation_ms(plan.task, plan.shards).any()


def test_faster_links_leave_the_modules_as_they_are() -> None:
    links = _task().topology.links
    assert links is not None
    assert links.scaled(0.5, (2.0, 2.0)).modules == TIMES
    assert replace(links, modules=ModuleTimes()) == Links()
