import numpy as np
import pytest

import shardwright as sw
from shardwright.cli.demo import scenes
from shardwright.measure.plans import MeasuredPlan


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
    for line in outcome.out.splitlines():
        if line.startswith("  shardwright "):
            files = [word for word in line.split() if str(folder) in word]
            assert all(sw.Plan.load(file) if file.endswith(".json") else sw.Task.load(file) for file in files)


@pytest.mark.parametrize("options", [["-o", "/dev/null/x"], ["--model", "nope.safetensors"]])
def test_bad_options(cli, model_file, options):
    outcome = cli("demo", "--model", model_file, *options)
    assert outcome.code == 2
    assert options[1] in outcome.err
