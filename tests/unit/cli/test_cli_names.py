"""Names that one command prints can be passed to another."""

import pytest

import shardwright as sw
from shardwright.cost.choice import model_names
from shardwright.task import PRESETS

TASK = "batch_size: 4096\ntopology: {preset: DEVICE, memory: 8 GB}\ntables: [{name: user, rows: 1M, dim: 64}]\n"


@pytest.mark.parametrize("preset", ["h100-8", "h200-8", "a100-8", "b200-8", "v100-8"])
def test_the_model_of_a_plan_is_known_by_its_name(cli, tmp_path, preset):
    file, output = tmp_path / "task.yaml", tmp_path / "plan.json"
    file.write_text(TASK.replace("DEVICE", preset))
    first = cli("plan", file, "-o", output, "--strategy", "greedy")
    assert "sets it had not seen" in first.err or "median error 15%" in first.err
    plan = sw.Plan.load(output)
    again = cli("plan", file, "--model", plan.cost_model, "--strategy", "greedy", "--json").document
    assert again["step_ms"] == plan.cost.step_ms
    (listed,) = cli("models", "show", plan.cost_model, "--json").document["models"]
    assert listed["name"] == plan.cost_model
    assert cli("plan", "--check", output, "--model", plan.cost_model, "--json").document["same_cost"]
    assert PRESETS[preset].device in listed["name"]


def test_every_model_is_listed_and_shown(cli):
    listed = [one["name"] for one in cli("models", "--json").document["models"]]
    assert listed == model_names()
    assert all(name.split("/")[0] in cli("models").out for name in listed)
