import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from shardwright import tensor_files
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.learned.checkpoints import load_checkpoint, save_checkpoint
from shardwright.learned.policy_files import PRICES, SavedPolicy, bundled_policy, load_policy, save_policy

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
