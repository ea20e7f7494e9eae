from pathlib import Path

import pytest

import shardwright as sw
from shardwright.search import strategy_named, strategy_names
from shardwright.search.registry import takes_policy, with_policy
from shardwright.testing.model import SimpleCostModel

LEARNED = ("autoshard", "dreamshard", "dreamshard+")


def test_strategies_that_learn_take_a_policy_and_others_do_not():
    assert [name for name in strategy_names() if takes_policy(strategy_named(name))] == list(LEARNED)
    assert not takes_policy(strategy_named("rnn"))  # trains anew on every task


@pytest.mark.parametrize("name", LEARNED)
def test_a_named_policy_takes_the_place_of_the_bundled_one(name):
    strategy = strategy_named(name)
    chosen = with_policy(strategy, Path("my.safetensors"))
    assert chosen.policy == Path("my.safetensors")
    assert chosen.name == name
    assert strategy.policy is None


@pytest.mark.parametrize("name", LEARNED)
def test_the_bundled_policy_serves_a_device_that_nobody_knows(name):
    task = sw.Task(
        [sw.Table("t", 100, 16)], sw.Topology(devices_per_host=2, device="abacus", intra_bandwidth="1 GB/s"), 64
    )
    assert name in strategy_names(task)
    assert sw.plan(task, strategy=name, cost_model=SimpleCostModel()).strategy == name
