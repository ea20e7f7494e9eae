import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright.calibration.calibration import Calibration
from shardwright.cli.compare import Attempt
from shardwright.cli.demo import affordable, demo_task, next_steps, title
from shardwright.cost import cost_model_for
from shardwright.measure.measuring import MeasuredPlan
from shardwright.modelling.accuracy import Accuracy
from shardwright.sharding import PlanCost
from tests.unit.report.plans import mixed_plan


def test_the_task_is_the_one_promised():
    task = demo_task(quick=False)
    assert len(task.tables) == 26
    assert (task.topology.devices, task.topology.device) == (4, "cpu")
    assert (task.batch_size, task.optimizer) == (1024, "rowwise_adagrad")
    assert {table.dim for table in task.tables} == {128}
    assert max(table.weight_bytes for table in task.tables) < 2e9
    assert title(task, quick=False).startswith("MLPerf DLRM-DCNv2: 26 tables with 1/50 of their rows")
    assert demo_task(quick=True) == demo_task(quick=True)


@pytest.fixture
def measured(monkeypatch):
    """Every device of every plan takes 7 ms forward and 70 ms backward; the strategies that were measured."""
    seen = []

    def measure_plans(plans, *, rounds, seconds, device, progress):
        seen.extend(plan.strategy for plan in plans)
        return [MeasuredPlan(plan, np.full(4, 7.0), np.full(4, 70.0), rounds) for plan in plans]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)
    monkeypatch.setattr("shardwright.cli.demo._SEARCH_S", 0.2)
    return seen


def test_everything_is_planned_measured_shown_and_saved(cli, tmp_path, model_file, measured):
    folder = tmp_path / "demo"
    folder.mkdir()
    demo_task(quick=False).save(folder / "task.yaml")  # of an earlier demo
    outcome = cli("demo", "--quick", "--model", model_file, "-o", folder)
    assert outcome.code == 0
    able = sw.strategy_names(demo_task(quick=True))
    assert outcome.out.count("77.000") == len(able) == len(measured)
    files = {path.name for path in folder.iterdir()}
    assert files == {"task.yaml", "report.html", *(f"{strategy}.json" for strategy in able)}
    assert sw.Plan.load(folder / "greedy.json").task == sw.Task.load(folder / "task.yaml")
    assert outcome.out.rstrip().endswith(f"{folder / 'report.html'}")


def test_a_new_user_gets_a_model_of_this_machine_first(cli, tmp_path, measured, monkeypatch):
    asked = []

    def calibrate(task, *, minutes, seed, progress):
        asked.append((task, minutes))
        progress(1.0, 45, 0.1, "measuring")
        bundled = cost_model_for("cpu")
        accuracy = Accuracy(45, 0.1, 0.08, 0.1, 0.1, 1.0, 0.99, {}, None)
        return Calibration(None, bundled, accuracy, 0.6, "scaled", 45, 45, (), (), "time", 12.0, None)

    monkeypatch.setattr("shardwright.calibration.calibrate", calibrate)
    outcome = cli("demo", "--quick", "-o", tmp_path / "demo")
    assert outcome.code == 0
    assert asked == [(demo_task(quick=True), 0.2)]
    said = "calibrated in 12 s on 45 sets: the mean error on sets not seen is 10.0%, that of the bundled model 60.0%"
    assert said in outcome.err.replace("\n", " ")


def test_a_slow_machine_measures_fewer_plans():
    plans = [mixed_plan() for _ in range(4)]
    plans = [replace(plan, cost=slower(plan.cost, 1 + number)) for number, plan in enumerate(plans)]
    attempts = [Attempt(name, plan) for name, plan in zip(("dim", "greedy", "certified", "random"), plans, strict=True)]
    assert affordable(attempts, 1e9) == attempts
    assert [one.strategy for one in affordable(attempts, 0.0)] == ["greedy", "certified"]
    assert affordable([Attempt("exact", None, "too large"), *attempts], 1e9) == attempts


def slower(cost, factor):
    """The same cost with all kernels so many times as long."""
    return PlanCost(
        tuple(
            replace(one, forward_ms=factor * one.forward_ms, backward_ms=factor * one.backward_ms)
            for one in cost.devices
        )
    )


def test_the_suggested_next_commands_work(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    folder = tmp_path / "a folder"
    folder.mkdir()
    mixed_plan().save(folder / "certified.json")
    (tmp_path / "day.csv").write_text("user,item\n" + "".join(f"{n % 7},{n % 31}\n" for n in range(500)))
    commands = [line.strip() for line in next_steps(folder).splitlines() if line.startswith(("  shard", "  echo"))]
    for command in commands:
        words = shlex.split(command.replace("YOUR-LOGS/*.parquet", "day.csv"))
        if words[0] == "echo":
            Path(words[3]).write_text(words[1])
            continue
        outcome = cli(*words[1:])
        assert outcome.code == 0, (command, outcome.err)
    assert [shlex.split(one)[1] for one in commands if not one.startswith("echo")] == [
        "show", "profile", "plan", "show", "report",
    ]  # fmt: skip
    assert {table.name for table in sw.Plan.load("plan.json").task.tables} == {"user", "item"}
    lines = [line.strip() for line in next_steps(folder).splitlines()]
    first = lines.index("from shardwright.integrations.torchrec import ShardwrightPlanner")
    compile("\n".join(lines[first : lines.index("", first)]), "", "exec")


@pytest.mark.parametrize(
    ("on_path", "called", "program"),
    [
        (True, "/x/.venv/bin/shardwright", "shardwright"),
        (False, ".venv/bin/shardwright", ".venv/bin/shardwright"),
        (False, "/x/shardwright/__main__.py", f"{sys.executable} -m shardwright"),
    ],
)
def test_the_program_is_named_so_that_a_shell_finds_it(monkeypatch, tmp_path, on_path, called, program):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if on_path else None)
    monkeypatch.setattr("sys.argv", [called, "demo"])
    assert f"\n  {program} plan task.yaml -o plan.json\n" in next_steps(tmp_path)
