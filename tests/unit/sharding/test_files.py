import json
import re

import pytest

import shardwright as sw
from shardwright.errors import InvalidInput
from shardwright.sharding import Plan
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import constrained_task, task_of


@pytest.fixture(scope="module")
def plan():
    return sw.plan(constrained_task(), cost_model=SimpleCostModel())


@pytest.fixture
def plan_file(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    return path


def test_a_plan_survives_a_file(plan, plan_file):
    again = Plan.load(plan_file)
    assert again == plan
    assert again.cost.step_ms == plan.cost.step_ms


def test_an_unscored_plan_survives_a_file(plan, tmp_path):
    bare = Plan(plan.task, plan.shards)
    bare.save(tmp_path / "bare.json")
    assert Plan.load(tmp_path / "bare.json") == bare


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format is 2, this version of shardwright reads plan files of format 1"),
        ({"shards": []}, "is missing from the plan"),
        (
            {"shards": [{"table": "x", "rows": [0, 1], "columns": [0, 1], "devices": [0]}]},
            "'x', which the task does not have",
        ),
        ({"shards": [{"table": "x", "rows": [3, 1], "columns": [0, 1], "devices": [0]}]}, "start < stop"),
        ({"shards": [{"table": "x", "rows": "all"}]}, r"shards\[0\]"),
        ({"devices": []}, None),
        ({"surprise": 1}, "surprise"),
        ({"strategy": "\x1b[31mred"}, r"strategy is '\\x1b\[31mred', must be printable text"),
        ({"cost_model": "a\nb"}, "cost_model is .* must be printable text"),
        ({"bound_ms": -1.0}, "bound_ms: Expected `float` >= 0.0, got -1.0"),
        ({"bound_ms": 1e9}, r"bound_ms is 1000000000.0, above the step"),
        ({"task": {"batch_size": 0}}, "task"),
    ],
)
def test_a_changed_file_is_judged(plan_file, change, says):
    document = json.loads(plan_file.read_text()) | change
    plan_file.write_text(json.dumps(document))
    if says is None:
        assert Plan.load(plan_file).cost is None
        return
    with pytest.raises(InvalidInput, match=says) as error:
        Plan.load(plan_file)
    assert "plan.json" in str(error.value)


def test_a_file_cut_short_is_refused_wherever_it_ends(tmp_path):
    path = tmp_path / "plan.json"
    sw.plan(task_of(2, 2), cost_model=SimpleCostModel()).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="plan.json"):
            Plan.load(path)


def test_costs_of_missing_ranks_are_refused(plan_file):
    document = json.loads(plan_file.read_text())
    document["devices"].pop()
    plan_file.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match="ranks 0 to 3 in order"):
        Plan.load(plan_file)


@pytest.mark.parametrize(
    ("field", "value"), [("forward_ms", -1.0), ("backward_ms", 1e308), ("memory_bytes", -5), ("memory_bytes", 10**200)]
)
def test_costs_that_cannot_be_are_refused(plan_file, field, value):
    document = json.loads(plan_file.read_text())
    document["devices"][1][field] = value
    plan_file.write_text(json.dumps(document))
    with pytest.raises(
        InvalidInput,
        match=rf"devices\[1\].{field}: Expected `(float|int)` [<>]= [-0-9.e+]+, got {re.escape(str(value))[:10]}",
    ):
        Plan.load(plan_file)


def test_a_bound_may_be_the_step_but_for_rounding(plan, plan_file):
    document = json.loads(plan_file.read_text()) | {"bound_ms": plan.cost.step_ms * (1 + 1e-12)}
    plan_file.write_text(json.dumps(document))
    assert Plan.load(plan_file).bound_ms == document["bound_ms"]


def test_what_the_command_line_says_of_a_change_is_not_read(plan, plan_file):
    document = json.loads(plan_file.read_text()) | {"change": {"moved_bytes": 7}}
    plan_file.write_text(json.dumps(document))
    assert Plan.load(plan_file) == plan


@pytest.mark.parametrize(
    ("name", "is_json"),
    [("plan", True), ("plan.v2", True), ("plan.JSON", True), ("plan.yaml", False), ("plan.yml", False)],
)
def test_a_plan_is_json_unless_its_name_says_yaml(plan, tmp_path, name, is_json):
    plan.save(tmp_path / name)
    assert (tmp_path / name).read_text().startswith("{") == is_json
    assert Plan.load(tmp_path / name) == plan
