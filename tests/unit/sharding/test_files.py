import json

import pytest

import shardwright as sw
from shardwright.sharding import Plan
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import constrained_task


@pytest.fixture(scope="module")
def plan():
    return sw.plan(constrained_task(), cost_model=SimpleCostModel())


@pytest.fixture
def plan_file(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    return path


def test_the_file_is_laid_out_as_the_design_says(plan, plan_file):
    document = json.loads(plan_file.read_text())
    assert document["format"] == 1
    assert document["step_ms"] == pytest.approx(plan.cost.step_ms)
    assert document["embedding_cost_ms"] == pytest.approx(plan.cost.embedding_cost_ms)
    assert {
        "rank",
        "forward_ms",
        "forward_communication_ms",
        "backward_communication_ms",
        "backward_ms",
        "memory_bytes",
    } == set(document["devices"][0])
    assert {"table", "rows", "columns", "devices", "row_order", "sharding_type"} == set(document["shards"][0])


def test_a_plan_without_costs_of_devices_has_no_cost(plan_file):
    plan_file.write_text(json.dumps(json.loads(plan_file.read_text()) | {"devices": []}))
    assert Plan.load(plan_file).cost is None


def test_a_bound_may_be_the_step_but_for_rounding(plan, plan_file):
    document = json.loads(plan_file.read_text()) | {"bound_ms": plan.cost.step_ms * (1 + 1e-12)}
    plan_file.write_text(json.dumps(document))
    assert Plan.load(plan_file).bound_ms == document["bound_ms"]


def test_notes_of_the_command_line_on_a_change_are_not_read(plan, plan_file):
    document = json.loads(plan_file.read_text()) | {"change": {"moved_bytes": 7}}
    plan_file.write_text(json.dumps(document))
    assert Plan.load(plan_file) == plan


@pytest.mark.parametrize(
    ("name", "is_json"),
    [("plan", True), ("plan.v2", True), ("plan.JSON", True), ("plan.yaml", False), ("plan.yml", False)],
)
def test_a_plan_is_json_unless_its_name_ends_in_yaml(plan, tmp_path, name, is_json):
    plan.save(tmp_path / name)
    assert (tmp_path / name).read_text().startswith("{") == is_json
    assert Plan.load(tmp_path / name) == plan
