"""The published presets have the papers' figures, and learn."""

from dataclasses import replace

import pytest

from shardwright.cli.learn import PRESET, options_from_texts
from shardwright.errors import InvalidInput
from shardwright.learned.autoshard import AutoShard
from shardwright.learned.dreamshard.strategy import DreamShard
from shardwright.learned.options import AutoShardOptions, DreamShardOptions
from shardwright.learned.policy_files import save_policy
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld
from shardwright.sharding.checking import check_plan
from shardwright.testing.model import SimpleCostModel
from tests.kills import DiesAfter, Killed, same_weights
from tests.unit.learned.dreamshard.policies import training_set

AUTOSHARD = {
    "steps": 100_000, "unroll": 100, "batch": 8, "buffer": 5_000, "buffer_batch": 512, "cost_updates": 20, "scattered": 0,
    "variations": 0, "learning_rate": 1e-3, "entropy_weight": 0.001, "value_weight": 0.5, "gradient_norm": 40.0, "method": "paper",
}  # fmt: skip
DREAMSHARD = {
    "iterations": 10, "collected": 10, "explored": 0, "cost_updates": 300, "cost_batch": 64, "policy_updates": 10, "policy_tasks": 1,
    "episodes": 10, "variants": 0, "cost_rate": 5e-4, "policy_rate": 5e-4, "entropy_weight": 0.001, "trace_decay": 1.0,
    "objective": "embedding", "method": "paper",
}  # fmt: skip
TINY = {
    AutoShardOptions: {"steps": 80, "unroll": 20, "batch": 2, "lag": 2, "cost_updates": 2, "buffer_batch": 8},
    DreamShardOptions: {"iterations": 2, "collected": 4, "cost_updates": 4, "policy_updates": 2, "episodes": 3},
}


@pytest.mark.parametrize(("kind", "figures"), [(AutoShardOptions, AUTOSHARD), (DreamShardOptions, DREAMSHARD)])
def test_the_published_figures_are_those_of_the_paper(kind, figures):
    options = options_from_texts(kind, {"seed": 3}, [PRESET])
    assert options == kind.published(seed=3)
    assert {name: getattr(options, name) for name in figures} == figures
    assert set(vars(options)) - set(figures) <= {"seed", "lag"}


def test_an_option_beside_the_preset_counts():
    assert options_from_texts(DreamShardOptions, {}, ["episodes=4", PRESET]) == DreamShardOptions.published(episodes=4)
    with pytest.raises(InvalidInput, match="preset=published is the one preset"):
        options_from_texts(DreamShardOptions, {}, ["preset=paper"])


def test_options_without_a_method_are_as_they_were_before_there_was_one():
    """Checkpoints hold the options, so older checkpoints must still match the same training."""
    assert "method" not in DreamShardOptions().plain()
    assert DreamShardOptions.published().plain()["method"] == "paper"


@pytest.mark.parametrize("kind", TINY)
def test_a_published_training_learns_a_policy_that_plans(kind, tmp_path):
    tasks, world, options = training_set(3), SimulatedWorld(SimpleCostModel()), kind.published(**TINY[kind])
    policy = learn(tasks, world, options)
    assert policy.metadata["method"] == "paper"
    assert not same_weights(policy, learn(tasks, world, replace(options, method="shardwright")))
    scale = policy.weights["cost_scale" if kind is AutoShardOptions else "cost.scale"]
    assert (scale == 1).all()  # costs are learned in ms
    save_policy(policy, tmp_path / "policy")
    strategy = (AutoShard if kind is AutoShardOptions else DreamShard)(tmp_path / "policy")
    task = training_set(1, 50)[0]
    check_plan(task, strategy.search(task, SimpleCostModel(), seed=0, deadline=None).shards)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", TINY)
def test_a_killed_published_training_resumes_to_the_same_bits(kind, tmp_path):
    tasks, world, options = training_set(3), SimulatedWorld(SimpleCostModel()), kind.published(**TINY[kind])
    path = tmp_path / "state.safetensors"
    with pytest.raises(Killed):
        learn(tasks, world, options, record=DiesAfter(1), checkpoint=path)
    assert same_weights(learn(tasks, world, options, checkpoint=path), learn(tasks, world, options))
