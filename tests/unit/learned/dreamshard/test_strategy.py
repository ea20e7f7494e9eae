"""The strategies: conformance, tight memory, and the gain of the local search."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.learned.dreamshard.strategy import DreamShard, DreamShardPlus
from shardwright.learned.policy_files import save_policy
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.testing.conformance import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import impossible_task, task_of
from tests.unit.learned.dreamshard.policies import random_policy, training_set, whole_tables

MODEL = SimpleCostModel()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "random.safetensors"
    save_policy(random_policy(4), path)
    return path


def plan(task, strategy, seed=0):
    return sw.plan(task, strategy=strategy, cost_model=MODEL, seed=seed)


def test_dreamshard_conforms(policy):
    check_strategy(DreamShard(policy))


@pytest.mark.slow
def test_dreamshard_plus_conforms(policy):
    check_strategy(DreamShardPlus(policy, patience=1))


def test_the_plan_is_that_of_the_policy_whatever_the_seed_or_the_cost_model(policy):
    task = task_of(20, 4)
    one, other = (
        DreamShard(policy).search(task, model, seed=seed, deadline=None) for seed, model in ((0, MODEL), (9, None))
    )
    assert one.shards == other.shards
    assert one.strategy == "dreamshard"


def test_more_devices_than_any_policy_has_seen(policy):
    task = task_of(60, 50)
    policy_plan = plan(task, DreamShard(policy))
    assert {shard.table for shard in policy_plan.shards} == {table.name for table in task.tables}
    assert policy_plan.cost.step_ms > 0


def test_plus_improves_on_the_policy_and_proves_how_far_it_is_from_the_best(policy):
    task = training_set(1, size=20)[0]
    alone, improved = plan(task, DreamShard(policy)), plan(task, DreamShardPlus(policy))
    assert improved.cost.step_ms < 0.95 * alone.cost.step_ms
    assert improved.bound_ms <= improved.cost.step_ms
    assert improved.strategy == "dreamshard+"


def test_plus_finds_the_same_plan_on_one_thread_and_two(policy):
    task = task_of(25, 4)
    one, two = (plan(task, DreamShardPlus(policy, threads=threads, patience=2), seed=3) for threads in (1, 2))
    assert one.shards == two.shards


def packing_task(room: float):
    """Pairs of a large and a small table, one pair a device: in a bad order the small ones take the room of the large ones."""
    sizes = [9000] * 4 + [1000] * 4
    drawn = [sw.Table(f"t{i}", rows=rows, dim=16, pooling=90.0 if rows < 5000 else 1.0) for i, rows in enumerate(sizes)]
    roomy = whole_tables(drawn, 4)
    pair = shard_bytes(roomy, Shard.whole(drawn[0], 0)) + shard_bytes(roomy, Shard.whole(drawn[4], 0))
    return whole_tables(drawn, 4, memory=int(pair * room))


def test_tight_memory_is_met_by_placing_large_units_first(tmp_path):
    """A policy that piles everything on one device, small tables first, leaves no room for the large ones."""
    from shardwright.learned.arrays import PlacementArrays
    from shardwright.learned.dreamshard.policy import STUCK, Policy
    from shardwright.learned.dreamshard.strategy import greedy_placement

    stuck = 0
    for seed in range(4):
        saved = random_policy(seed)
        saved.weights["policy.logit.weight"] = np.repeat(np.float32([[1.0, 0.0]]), 32, axis=1)
        save_policy(saved, tmp_path / f"{seed}.safetensors")
        task = packing_task(1.05)
        applied = DreamShard(tmp_path / f"{seed}.safetensors").read_policy(Policy)
        encoded = applied.encode(PlacementArrays.of(task))
        stuck += bool((applied.place(encoded) == STUCK).any())
        placed = greedy_placement(applied, encoded, 0)
        assert np.bincount(placed, minlength=4).tolist() == [2, 2, 2, 2]
    assert stuck > 0  # otherwise the test shows nothing


def test_tables_that_cannot_be_placed_raise_with_numbers_and_a_remedy(policy):
    for strategy in (DreamShard(policy), DreamShardPlus(policy)):
        with pytest.raises(InfeasibleTask, match="allow column_wise or row_wise|too tight|more devices or memory"):
            strategy.search(impossible_task(), MODEL, seed=0, deadline=None)
    with pytest.raises(InfeasibleTask, match=r"'table_2'.* 18 placements .*had at most \d"):
        DreamShard(policy).search(impossible_task(), MODEL, seed=0, deadline=None)
    with pytest.raises(InfeasibleTask, match="table 't0' needs"):
        DreamShard(policy).search(packing_task(0.5), MODEL, seed=0, deadline=None)
