import re
from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.calibration.tuning import Told
from shardwright.measure.visits import control_works
from shardwright.task import Table, Topology
from shardwright.testing.tasks import task_of
from tests.unit.calibration.machines import HiddenMachine


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hidden(monkeypatch):
    """The command with a hidden machine in place of this one."""
    machine = HiddenMachine(0)
    tune = sw.tune

    def tuned(task, *, progress: Told, **options):
        return tune(task, progress=progress, visitor=machine, **options)

    monkeypatch.setattr(sw, "tune", tuned)
    return machine


@pytest.mark.slow
def test_a_tuned_plan_is_saved_with_what_was_measured(cli, tmp_path, task_file, hidden):
    path = tmp_path / "plan.json"
    document = cli("tune", task_file, "--minutes", "0.1", "-o", path, "--json").document
    plan = sw.Plan.load(path)
    assert plan.tuning.measured_ms == document["tuning"]["measured_ms"] <= plan.tuning.first_ms
    assert document["stopped"] in ("floor", "no gain", "time")
    visits = len(hidden.visited)
    outcome = cli("tune", task_file, "--minutes", "0.001")
    assert outcome.code == 0
    assert "measured step" in outcome.out
    assert "not saved" in outcome.out
    (name,) = re.findall(r"--model (cpu/tuned-\w+)", outcome.out)
    again = cli("plan", task_file, "--model", name, "--strategy", "greedy", "-o", tmp_path / "again.json")
    assert again.code == 0
    assert f"cost model {name}: tuned on this machine just now" in again.err
    assert sw.Plan.load(tmp_path / "again.json").cost_model == name
    assert name in cli("models").out
    assert name not in cli("plan", task_file, "--strategy", "greedy").err  # never by itself
    assert cli("show", tmp_path / "again.json").code == 0
    assert len(hidden.visited) - visits < visits  # known devices are not measured again
    shown = cli("show", path)
    assert "above the floor" in shown.out
    assert cli("show", path, "--json").document["tuning"]["floor_ms"] == plan.tuning.floor_ms


def test_tables_that_do_not_fit_are_measured_with_fewer_rows_and_planned_in_full(monkeypatch, hidden):
    task = task_of(6, 2)
    large = replace(
        task, tables=[Table(t.name, 40_000 * (n + 1), t.dim, t.pooling) for n, t in enumerate(task.tables)],
        topology=Topology(devices_per_host=2, memory="64 GB"),
    )  # fmt: skip
    monkeypatch.setattr("shardwright.calibration.tuning.available_memory", lambda: 40 << 20)
    tuned = sw.tune(large, minutes=0.03, progress=lambda *_: None)
    assert "of their rows" in tuned.notes[0]
    tuned.plan.check()
    assert tuned.plan.task is large
    controls = control_works("cpu", large.optimizer)
    assert max(work.table_bytes for work in hidden.visited if work not in controls) < 64 << 20


def test_a_task_for_another_device_or_a_cache_that_cannot_be_written_to(cli, tmp_path, monkeypatch, task_file):
    other = tmp_path / "other.yaml"
    replace(task_of(4, 2), topology=Topology(devices_per_host=2, device="h100")).save(other)
    assert "would be tuned on cpu" in cli("tune", other, "--device", "cpu").err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "file"))
    outcome = cli("tune", task_file)
    assert outcome.code == 2
    assert "SHARDWRIGHT_CACHE" in outcome.err
