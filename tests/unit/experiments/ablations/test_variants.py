from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from experiments.ablations.variants import (
    CERTIFIED,
    FULL,
    NEUROSHARD,
    VARIANTS,
    AblatedCertified,
    SummedCosts,
)

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.search.certified import Certified
from shardwright.sharding.work import shard_work
from shardwright.task import Topology
from shardwright.workload import random_task


@pytest.fixture(scope="module")
def task():
    drawn = random_task(10, tables=14, devices=4, max_dim=128, device="cpu", batch_size=1024)
    return replace(drawn, topology=Topology.preset("cpu", devices_per_host=4, memory="64 GB"))


@pytest.fixture(scope="module")
def model():
    return cost_model_for("cpu")


@pytest.fixture(scope="module")
def plan_of(task, model):
    """The plan of a variant for the task; found once."""

    @cache
    def planned(system, name):
        variant = VARIANTS[system][name]
        return sw.plan(variant.task(task), strategy=variant.strategy, cost_model=variant.model(model), time_limit=20)

    return planned


def blocks_of(plan):
    return sorted((shard.table, shard.rows, shard.columns, shard.devices) for shard in plan.shards)


def test_summed_costs_are_sums_of_what_shards_cost_alone(task, model):
    shards = [sw.Shard.whole(table, 0) for table in task.tables[:5]]
    works = [shard_work(task, shard) for shard in shards]
    alone = model.pricing.price(model.encode(works))
    summed = SummedCosts(model)
    assert np.allclose(summed.pricing.price(summed.encode(works).sum(axis=0)), alone.sum(axis=0))
    assert not np.allclose(model.pricing.price(model.encode(works).sum(axis=0)), alone.sum(axis=0), rtol=0.01)
    assert summed.pricing.convex
    assert summed.encode([]).shape == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("system", VARIANTS)
def test_every_variant_plans(plan_of, system):
    full = plan_of(system, FULL)
    for name in VARIANTS[system]:
        plan = plan_of(system, name)
        plan.check()
        assert plan.strategy == full.strategy


@pytest.mark.slow
def test_without_what_the_search_keeps_the_plan_is_the_same(task, plan_of):
    full, uncached = (plan_of(NEUROSHARD, name) for name in (FULL, "no cache"))
    assert blocks_of(uncached) == blocks_of(full)
    assert len(full.shards) > len(task.tables)  # or the beam would not have been at work


def test_no_beam_cuts_nothing(task, plan_of):
    assert len(plan_of(NEUROSHARD, "no beam").shards) == len(task.tables)


def test_nothing_taken_out_is_certified(task, model):
    own, ablated = (
        sw.plan(task, strategy=kind(tolerance=0.01, patience=1), cost_model=model)
        for kind in (Certified, AblatedCertified)
    )
    assert blocks_of(ablated) == blocks_of(own)
    assert ablated.bound_ms == own.bound_ms


@pytest.mark.slow
def test_parts_of_certified_do_what_they_are_for(plan_of):
    step = {name: plan_of(CERTIFIED, name).cost.step_ms for name in VARIANTS[CERTIFIED]}
    assert step[FULL] <= step["no kicks"] < step["no local search"]
    assert step[FULL] < step["whole tables"]
