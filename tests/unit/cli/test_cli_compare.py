from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import shardwright as sw
from shardwright.cli import compare
from shardwright.cost import save_model
from shardwright.errors import InfeasibleTask
from shardwright.measure.measuring import MeasuredPlan
from shardwright.testing.tasks import impossible_task, task_of
from tests.unit.cli.models import linear_model

QUICK = ("--time-limit", 0.1)


@pytest.fixture
def fake_measuring(monkeypatch):
    """Device r of the n-th plan takes n + r ms forward and twice that backward."""
    calls = []

    def measure_plans(plans, *, rounds, device, seconds, progress):
        calls.append((len(plans), rounds, device))
        progress(1, 1)
        devices = np.arange(plans[0].task.topology.devices)
        return [MeasuredPlan(plan, n + devices, 2.0 * (n + devices), rounds) for n, plan in enumerate(plans)]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)
    return calls


@pytest.fixture
def no_rivals(monkeypatch):
    """Leave out planners of other projects, which take seconds."""
    monkeypatch.setattr("shardwright.cli.compare.rival_names", lambda task: ())


def test_other_planners_take_part_if_installed(task_file):
    names = compare.all_names(sw.Task.load(task_file))
    assert names[: len(sw.strategy_names())] == sw.strategy_names()
    assert names[len(sw.strategy_names()) :] == ((*(("torchrec",) if find_spec("torchrec") else ()), "auto"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_rivals")
def test_every_strategy_is_listed(cli, task_file, model_file):
    sw.Task(task_of(7, 2).tables[3:], sw.Topology(devices_per_host=2), 64).save(task_file)
    outcome = cli("compare", task_file, "--model", model_file, "--json")
    assert outcome.code == 0
    strategies = outcome.document["strategies"]
    assert [row["strategy"] for row in strategies] == [*sw.strategy_names(), "auto"]
    task = sw.Task.load(task_file)
    able = (*sw.strategy_names(task), "auto")
    steps = [row["step_ms"] for row in strategies if row["step_ms"] is not None and row["strategy"] != "dreamshard+"]
    assert strategies[-1]["step_ms"] == min(steps)  # `auto` leaves `dreamshard+` out
    assert len({(row["bound_ms"], row["bound_scope"]) for row in strategies if row["failed"] is None}) == 1
    assert [row["strategy"] for row in strategies if row["failed"] is None] == list(able)
    for row in (row for row in strategies if row["strategy"] in able):
        plan = sw.plan(task, strategy=row["strategy"], cost_model=str(model_file), runs_on="torchrec")
        assert row["step_ms"] == plan.cost.step_ms
        assert row["predicted_compute_ms"] == plan.cost.compute_ms
        assert row["embedding_cost_ms"] == plan.cost.embedding_cost_ms
        assert row["measured_compute_ms"] is None


def test_chosen_strategies_are_measured_and_saved(cli, task_file, model_file, tmp_path, fake_measuring):
    folder = tmp_path / "plans"
    options = ("--strategies", "dim,greedy,dim", "--measure", "--rounds", 2, "-o", folder, *QUICK)
    outcome = cli("compare", task_file, "--model", model_file, *options)
    assert outcome.code == 0
    assert fake_measuring == [(2, 2, "cpu")]
    assert f"{3 * 3.0:.3f}" in outcome.out  # slowest device of the first plan, forward and backward
    assert f"{3 * 4.0:.3f}" in outcome.out
    assert "against prediction (median); the controls' time" in outcome.out.replace("\n", " ")
    assert sorted(path.name for path in folder.iterdir()) == ["dim.json", "greedy.json"]
    assert sw.Plan.load(folder / "dim.json").strategy == "dim"


def test_measured_times_of_another_device_are_not_compared(cli, task_file, model_file, fake_measuring):
    task = sw.Task.load(task_file)
    replace(task, topology=replace(task.topology, device="h200")).save(task_file)
    arguments = ("compare", task_file, "--model", model_file, "--strategies", "dim,greedy", *QUICK, "--measure")
    outcome = cli(*arguments)
    note = "predicted for h200, measured on cpu: the times differ because the devices do"
    assert outcome.code == 0
    assert note in outcome.out
    assert "against prediction" not in outcome.out
    assert note in cli(*arguments, "--json").document["notes"]
    assert note not in cli(*arguments[:-1], "--json").document["notes"]


def test_a_strategy_that_fails_is_listed_with_its_reason(cli, task_file, model_file, monkeypatch, fake_measuring):
    def plan(task, *, strategy, **options):
        if strategy.name == "size":
            raise InfeasibleTask("rank 1 is full: use more devices")
        return sw.plan(task, strategy=strategy, **options)

    monkeypatch.setattr(compare, "plan", plan)
    arguments = ("compare", task_file, "--model", model_file, "--strategies", "dim,size,greedy", "--measure", *QUICK)
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0
    one, failed, other = outcome.document["strategies"]
    assert failed["failed"] == "rank 1 is full: use more devices"
    assert failed["step_ms"] is None
    assert (one["measured_compute_ms"], other["measured_compute_ms"]) == (9.0, 12.0)
    assert "size failed: rank 1 is full: use more devices" in cli(*arguments).out


def test_the_command_fails_if_all_strategies_fail(cli, tmp_path, model_file, fake_measuring):
    impossible_task().save(tmp_path / "task.yaml")
    outcome = cli("compare", tmp_path / "task.yaml", "--model", model_file, "--measure", "--json")
    assert outcome.code == 1
    assert all(strategy["failed"] for strategy in outcome.document["strategies"])
    assert (
        outcome.err
        == f"error: {tmp_path / 'task.yaml'}: no strategy found a plan for this task; the reasons are listed\n"
    )
    assert fake_measuring == []


def test_a_task_unlike_the_samples_of_the_model_is_noted(cli, task_file, model_file):
    save_model(linear_model(batch_sizes="1024, 2048", optimizer="sgd"), model_file)
    outcome = cli("compare", task_file, "--model", model_file, "--strategies", "greedy", "--json", *QUICK)
    assert outcome.code == 0
    assert outcome.document["cost_model"] == "cpu/convex"
    batch, optimizer, remedy = sorted(outcome.err.splitlines())
    assert "was trained at batch sizes 1024, 2048, the task has 256: predictions are extrapolated" in batch
    assert "was trained with sgd, the task uses rowwise_adagrad" in optimizer
    assert remedy == f"note: for a model of this machine and this task, run: shardwright calibrate {task_file}"
