import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from shardwright import tensor_files
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.learned.autoshard.policy import AutoShardWeights
from shardwright.learned.checkpoints import load_checkpoint, save_checkpoint
from shardwright.learned.dreamshard.policy import Policy
from shardwright.learned.policy_files import PRICES, SavedPolicy, bundled_policy, load_policy, save_policy
from shardwright.learned.priced.policy import PricedPolicy
from shardwright.search.registry import strategy_named
from shardwright.task import Constraints, TableConstraint
from tests.unit.learned.autoshard import made as autoshard
from tests.unit.learned.dreamshard import policies as dreamshard
from tests.unit.learned.priced.made import policy_of, random_network

WEIGHTS = {"encoder.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(1, dtype=np.float32)}


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(SavedPolicy("dreamshard", WEIGHTS, {"world": "simulated: cpu/convex", "seed": "3"}), path)
    return path


def test_a_policy_survives_a_file(policy_file):
    policy = load_policy(policy_file, "dreamshard")
    assert policy.strategy == "dreamshard"
    assert policy.metadata["world"] == "simulated: cpu/convex"
    assert policy.metadata["seed"] == "3"
    assert json.loads(policy.metadata["features"]) == list(TABLE_FEATURES)
    assert policy.weights.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(policy.weights[name], array)


def test_a_policy_that_was_read_can_be_saved_again(policy_file, tmp_path):
    policy = load_policy(policy_file, "dreamshard")
    save_policy(policy, tmp_path / "again.safetensors")
    assert load_policy(tmp_path / "again.safetensors", "dreamshard").metadata == policy.metadata


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_saved(tmp_path, value):
    bad = {"bias": np.full(1, value, dtype=np.float32)}
    with pytest.raises(InvalidInput, match=r"new.safetensors: weights 'bias' hold NaN or infinity"):
        save_policy(SavedPolicy("dreamshard", bad, {}), tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


def test_a_file_that_is_too_large_is_refused_unread(policy_file, monkeypatch):
    monkeypatch.setattr(tensor_files, "LARGEST", 100)
    with pytest.raises(InvalidInput, match="the policy is larger than 100 bytes"):
        load_policy(policy_file, "dreamshard")


def test_a_ctrl_c_while_a_file_is_opened_is_not_lost(policy_file, tmp_path, monkeypatch):
    """Safetensors drops exceptions raised while it asks a Path for its text."""
    opened = []
    monkeypatch.setattr(
        "safetensors.safe_open", lambda file, **options: opened.append(file) or safe_open(file, **options)
    )
    load_policy(policy_file, "dreamshard")
    save_checkpoint(tmp_path / "state", {}, {})
    load_checkpoint(tmp_path / "state")
    assert opened == [str(policy_file), str(tmp_path / "state")]


def test_one_policy_of_each_strategy_is_bundled_and_reads_prices():
    policies = {strategy: load_policy(bundled_policy(strategy), strategy) for strategy in ("autoshard", "dreamshard")}
    assert all(policy.metadata["inputs"] == PRICES and policy.metadata["world"] for policy in policies.values())
    folder = bundled_policy("autoshard").parent
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2_000_000
    assert len(list(folder.iterdir())) == 2


def test_a_policy_that_reads_other_prices_is_refused(tmp_path):
    policy = load_policy(bundled_policy("autoshard"), "autoshard")
    save_policy(replace(policy, metadata=policy.metadata | {"inputs": "prices 0"}), tmp_path / "old.safetensors")
    with pytest.raises(
        InvalidInput, match="reads 'prices 0', this version offers 'prices 2'.*shardwright learn autoshard"
    ):
        load_policy(tmp_path / "old.safetensors", "autoshard")


OF_FEATURES = {"autoshard": autoshard.random_policy(0), "dreamshard": dreamshard.random_policy()}
READ = {
    "lstm.weight_ih_l1": (AutoShardWeights, OF_FEATURES["autoshard"]),
    "cost.mix": (Policy, OF_FEATURES["dreamshard"]),
    "gain": (PricedPolicy, policy_of(random_network(), "autoshard")),
}


@pytest.mark.parametrize("array", [None, np.zeros((5, 7)), np.full(1, np.nan)], ids=["missing", "other shape", "nan"])
@pytest.mark.parametrize("name", READ)
def test_a_policy_of_other_arrays_is_refused(name, array):
    read, policy = READ[name]
    weights = {key: kept for key, kept in policy.weights.items() if key != name}
    if array is not None:
        weights[name] = array
    with pytest.raises(InvalidInput, match=f"{policy.strategy} policy: {name} .*shardwright learn {policy.strategy}"):
        read(replace(policy, weights=weights))


def test_standard_deviations_of_features_are_positive():
    policy = dreamshard.random_policy()
    policy.weights["feature_std"][:] = 0
    with pytest.raises(InvalidInput, match="feature_std must be positive"):
        Policy(policy)


@pytest.mark.parametrize("strategy", OF_FEATURES)
def test_planning_by_a_policy_loads_no_torch(strategy, tmp_path):
    save_policy(OF_FEATURES[strategy], tmp_path / "policy")
    program = f"""
import sys
from pathlib import Path
from shardwright.learned.autoshard import AutoShard
from shardwright.learned.dreamshard.strategy import DreamShard
from shardwright.learned.rnn import Rnn
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
strategy = {{"autoshard": AutoShard, "dreamshard": DreamShard}}[{strategy!r}](Path({str(tmp_path / "policy")!r}))
strategy.search(task_of(5, 2), SimpleCostModel(), seed=0, deadline=None)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["autoshard", "dreamshard", "dreamshard+"])
def test_strategies_of_policies_refuse_tables_that_must_be_tiered(name):
    task = autoshard.varied_task(0)
    tiered = {task.tables[0].name: TableConstraint(sharding_types=("tiered",))}
    assert "tiered" in (strategy_named(name).supports(replace(task, constraints=Constraints(tiered))) or "")
