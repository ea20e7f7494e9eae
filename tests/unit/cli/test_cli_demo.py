import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright.cli.demo import next_steps, scenes
from shardwright.measure.plans import MeasuredPlan
from tests.unit.report.plans import mixed_plan


def test_the_tasks_are_those_promised():
    mlperf, paper = (scene.task for scene in scenes(quick=False))
    assert [len(task.tables) for task in (mlperf, paper)] == [26, 40]
    assert all(task.topology.devices == 4 and task.topology.device == "cpu" for task in (mlperf, paper))
    assert all(task.batch_size == 1024 and task.optimizer == "rowwise_adagrad" for task in (mlperf, paper))
    assert {table.dim for table in mlperf.tables} == {128}
    assert {table.dim for table in paper.tables} == {4, 8, 16, 32, 64, 128}
    for task in (mlperf, paper):
        assert max(table.weight_bytes for table in task.tables) < 2e9


def test_the_tasks_are_the_same_each_time():
    assert [scene.task for scene in scenes(quick=True)] == [scene.task for scene in scenes(quick=True)]


def test_everything_is_planned_measured_shown_and_saved(cli, tmp_path, model_file, monkeypatch):
    def measure_plans(plans, *, rounds, device, progress):
        return [MeasuredPlan(plan, np.full(4, 7.0), np.full(4, 70.0), rounds) for plan in plans]

    monkeypatch.setattr("shardwright.measure.plans.measure_plans", measure_plans)
    folder = tmp_path / "demo"
    outcome = cli("demo", "--quick", "--model", model_file, "-o", folder)
    assert outcome.code == 0
    able = sw.strategy_names(scenes(quick=True)[0].task)
    assert outcome.out.count("77.000") == 2 * len(able)
    for name in ("mlperf-dlrm-dcnv2", "paper-40-tables"):
        files = {path.name for path in (folder / name).iterdir()}
        assert files == {"task.yaml", *(f"{strategy}.json" for strategy in able)}
        assert sw.Plan.load(folder / name / "greedy.json").task == sw.Task.load(folder / name / "task.yaml")
    assert outcome.out.rstrip().endswith(next_steps(folder))


def test_what_is_told_to_do_next_can_be_done(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    folder = tmp_path / "a folder"
    (folder / "mlperf-dlrm-dcnv2").mkdir(parents=True)
    for strategy in ("certified", "greedy"):
        mixed_plan().save(folder / "mlperf-dlrm-dcnv2" / f"{strategy}.json")
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
        "show", "report", "profile", "plan", "show", "report",
    ]  # fmt: skip
    assert {table.name for table in sw.Plan.load("plan.json").task.tables} == {"user", "item"}
    lines = [line.strip() for line in next_steps(folder).splitlines()]
    compile(
        "\n".join(lines[lines.index("from shardwright.integrations.torchrec import ShardwrightPlanner") :]), "", "exec"
    )


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


@pytest.mark.parametrize("options", [["-o", "/dev/null/x"], ["--model", "nope.safetensors"]])
def test_bad_options(cli, model_file, options):
    outcome = cli("demo", "--model", model_file, *options)
    assert outcome.code == 2
    assert options[1] in outcome.err
