from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.choice import cache_folder, keep_model
from shardwright.cost.files import processors
from shardwright.measure.measuring import MeasuredPlan
from shardwright.measure.visits import Controls
from tests.unit.cli.models import linear_model


@pytest.fixture
def slower(monkeypatch):
    """Measuring finds every device 10% slower than predicted."""

    def measure_plans(plans, *, rounds, device, backend, progress):
        forward, backward = (
            np.array([1.1 * getattr(cost, phase) for cost in plans[0].cost.devices]) if plans[0].cost else np.ones(4)
            for phase in ("forward_ms", "backward_ms")
        )
        return [MeasuredPlan(plans[0], forward, backward, rounds)]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)


def test_predicted_and_measured_times_stand_side_by_side(cli, plan_file, task_file, slower):
    outcome = cli("verify", plan_file, "--task", task_file)
    assert outcome.code == 0
    assert outcome.err == ""
    device = sw.Plan.load(plan_file).cost.devices[2]
    for value in (device.forward_ms, 1.1 * device.forward_ms, device.backward_ms, 1.1 * device.backward_ms):
        assert f" {value:.3f} " in outcome.out
    assert outcome.out.count("+10.0%") == 4 + 1


def test_controls_tell_the_state_of_the_machine_from_the_error_of_the_model(cli, task_file, monkeypatch, tmp_path):
    model = replace(linear_model(), metadata={"name": "cpu/mine", "controls": "1,2,4"})
    keep_model(model, cache_folder() / "models" / "mine.safetensors")
    plan = sw.plan(sw.Task.load(task_file), strategy="greedy", cost_model=model)
    plan.save(tmp_path / "plan.json")

    def measure_plans(plans, **_):
        forward, backward = (
            np.array([1.1 * getattr(cost, phase) for cost in plan.cost.devices])
            for phase in ("forward_ms", "backward_ms")
        )
        return [MeasuredPlan(plans[0], forward, backward, 1, Controls((1.05, 2.1, 4.2)))]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)
    said = "plan +10.0% against prediction, controls +5.0% (machine slower): model error +4.8%"
    assert said in cli("verify", tmp_path / "plan.json").out
    document = cli("verify", tmp_path / "plan.json", "--json").document
    assert document["controls_slower"] == pytest.approx(1.05)


@pytest.mark.parametrize(("tolerance", "code"), [(0.05, 1), (0.2, 0)])
def test_the_tolerance_decides(cli, plan_file, slower, tolerance, code):
    outcome = cli("verify", plan_file, "--tolerance", tolerance, "--json")
    assert outcome.code == code
    assert outcome.document["within_tolerance"] is (code == 0)
    assert outcome.document["relative_difference"] == pytest.approx(0.1)
    assert not any("devices do" in text for text in outcome.document["notes"])
    assert ("error: the measured time differs from the predicted one by +10.0%" in outcome.err) == (code == 1)


def test_a_plan_for_another_task(cli, plan_file, task_file, slower):
    task = sw.Task.load(task_file)
    replace(task, batch_size=512).save(task_file)
    outcome = cli("verify", plan_file, "--task", task_file)
    assert outcome.code == 2
    assert (
        f"{plan_file}: a plan for another task than {task_file} (batch_size is 256 in the plan, 512 in the task)"
        in outcome.err
    )


def test_a_plan_without_predicted_cost_is_measured_but_not_judged(cli, plan_file, slower):
    plan = sw.Plan.load(plan_file)
    sw.Plan(plan.task, plan.shards).save(plan_file)
    outcome = cli("verify", plan_file, "--json")
    assert outcome.code == 0
    assert outcome.document["predicted_compute_ms"] is None
    assert outcome.document["measured_compute_ms"] == 2.0
    assert cli("verify", plan_file, "--tolerance", 0.1).code == 2


def test_a_plan_for_another_device_is_not_judged_by_this_one(cli, plan_file, slower):
    plan = sw.Plan.load(plan_file)
    task = replace(plan.task, topology=replace(plan.task.topology, device="h200"))
    replace(plan, task=task).save(plan_file)
    outcome = cli("verify", plan_file)
    assert outcome.code == 0
    assert "ms (predicted for h200, measured on cpu: the times differ because the devices do)" in outcome.out
    assert "%" not in outcome.out
    document = cli("verify", plan_file, "--json").document
    assert (document["relative_difference"], document["within_tolerance"], document["measured_on"]) == (
        None,
        None,
        "cpu",
    )
    assert document["notes"][0] == "predicted for h200, measured on cpu: the times differ because the devices do"
    outcome = cli("verify", plan_file, "--tolerance", 0.1)
    assert outcome.code == 2
    assert "verify it on h200" in outcome.err


def test_the_backend_is_the_one_that_is_named(cli, plan_file, monkeypatch):
    asked = []

    def measure_plans(plans, *, backend, **_):
        asked.append(backend)
        return [MeasuredPlan(plans[0], np.ones(4), np.ones(4), 1)]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)
    assert cli("verify", plan_file, "--backend", "my_kernels:Mine").code == 0
    assert cli("verify", plan_file).code == 0
    assert asked == ["my_kernels:Mine", None]


@pytest.mark.parametrize("here", [True, False])
def test_predictions_of_other_hardware_are_called_so(cli, task_file, tmp_path, slower, monkeypatch, here):
    bundled = cost_model_for("cpu")
    learned_on = processors(bundled.metadata)
    monkeypatch.setattr("shardwright.cost.files.cpu_model", lambda: learned_on[-1] if here else "another processor")
    path = tmp_path / "bundled.json"
    sw.plan(sw.Task.load(task_file), strategy="greedy").save(path)
    outcome = cli("verify", path)
    said = "was learned on" in outcome.err and "this machine is another processor" in outcome.err
    assert (outcome.code, said) == (0, not here)


def test_a_model_of_ones_own_is_not_taken_for_the_bundled_one(cli, task_file, tmp_path, slower, monkeypatch):
    monkeypatch.setattr("shardwright.cost.files.cpu_model", lambda: "another processor")
    plan = sw.plan(sw.Task.load(task_file), strategy="greedy")
    own = replace(plan.cost.devices[0], forward_ms=2 * plan.cost.devices[0].forward_ms)
    path = tmp_path / "own.json"
    replace(plan, cost=replace(plan.cost, devices=(own, *plan.cost.devices[1:])), bound_ms=None).save(path)
    assert "was learned on" not in cli("verify", path).err
