import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from shardwright import tensor_files
from shardwright.cost import save_model
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.learned.checkpoints import load_checkpoint, save_checkpoint
from shardwright.learned.policy_files import PRICES, SavedPolicy, bundled_policy, load_policy, save_policy
from tests.unit.cli.models import linear_model

WEIGHTS = {"encoder.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(1, dtype=np.float32)}


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(SavedPolicy("dreamshard", WEIGHTS, {"world": "simulated: cpu/convex", "seed": "3"}), path)
    return path


def rewrite(path, tensors=None, **header):
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() | header
    save_file(tensors or load_file(path), path, {k: v for k, v in metadata.items() if v is not None})


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


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"format": "2"}, "not a policy of format '1' (it says kind 'policy', format '2')"),
        ({"format": None}, "format None"),
        ({"kind": "checkpoint"}, "kind 'checkpoint'"),
        ({"strategy": "autoshard"}, "learned by strategy 'autoshard', not by 'dreamshard'"),
        ({"strategy": None}, "learned by strategy None"),
        ({"features": json.dumps(TABLE_FEATURES[:-1])}, "learned on other table features"),
        ({"features": None}, "learned on other table features"),
    ],
)
def test_another_header_is_refused(policy_file, header, says):
    rewrite(policy_file, **header)
    with pytest.raises(InvalidInput) as error:
        load_policy(policy_file, "dreamshard")
    assert str(error.value).startswith(f"{policy_file}: ")
    assert says in str(error.value)
    assert "shardwright learn dreamshard" in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_on_both_ways(policy_file, tmp_path, value):
    bad = {"bias": np.full(1, value, dtype=np.float32)}
    rewrite(policy_file, load_file(policy_file) | bad)
    with pytest.raises(InvalidInput, match=r"policy.safetensors: weights 'bias' hold NaN or infinity"):
        load_policy(policy_file, "dreamshard")
    with pytest.raises(InvalidInput, match=r"new.safetensors: weights 'bias' hold NaN or infinity"):
        save_policy(SavedPolicy("dreamshard", bad, {}), tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


def test_weights_of_another_type_are_refused(policy_file):
    rewrite(policy_file, {"bias": np.zeros(1)})
    with pytest.raises(InvalidInput, match="bias holds numbers of type F64, must be F32"):
        load_policy(policy_file, "dreamshard")


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


def test_a_damaged_file_is_refused_at_every_length(policy_file):
    whole = policy_file.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        policy_file.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match=f"{policy_file}: not a whole safetensors file"):
            load_policy(policy_file, "dreamshard")


def test_no_file_a_folder_and_a_cost_model_are_refused(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(InvalidInput, match="there is no such policy; name a policy file|is a folder"):
            load_policy(path, "dreamshard")
    save_model(linear_model(), tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match="kind 'compute'"):
        load_policy(tmp_path / "model.safetensors", "dreamshard")


def test_one_policy_of_each_strategy_is_bundled_and_reads_prices():
    found = {strategy: load_policy(bundled_policy(strategy), strategy) for strategy in ("autoshard", "dreamshard")}
    assert all(policy.metadata["inputs"] == PRICES and policy.metadata["world"] for policy in found.values())
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
