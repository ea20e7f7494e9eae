"""The command line as a process of its own: real kernels, real signals, real pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.cli.models import linear_model

import shardwright as sw
from shardwright.cost import save_model
from shardwright.testing.tasks import task_of

PROGRAM = (sys.executable, "-m", "shardwright")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sw.__file__).parents[1]), "COLUMNS": "140"}


def run(*arguments, **options):
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False, **options)


@pytest.fixture
def task_file(tmp_path):
    task_of(6, 2).save(tmp_path / "task.yaml")
    return tmp_path / "task.yaml"


@pytest.fixture
def model_file(tmp_path):
    save_model(linear_model(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.slow
def test_exit_codes_and_streams(task_file, model_file, tmp_path):
    done = run("plan", task_file, "--model", model_file, "-o", tmp_path / "plan.json", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document.pop("notes"), document.pop("saved")) == ([], [str(tmp_path / "plan.json")])
    assert document == json.loads((tmp_path / "plan.json").read_text())
    bad = run("plan", tmp_path / "nope.yaml", "--json")
    assert bad.returncode == 2
    assert bad.stderr == f"error: {json.loads(bad.stdout)['error']['message']}\n"
    assert run("plan").returncode == 2
    assert run("--version").stdout == f"shardwright {sw.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["plan"], ["compare"]])
def test_planning_and_help_need_no_torch(task_file, model_file, arguments):
    if arguments != ["--help"]:
        arguments = [*arguments, str(task_file), "--model", str(model_file), "--time-limit", "0.1"]
    code = (
        "import sys; from shardwright.cli.main import main\n"
        f"assert main({arguments!r}) == 0\n"
        "heavy = {'torch', 'fbgemm_gpu', 'polars', 'pyarrow', 'pandas'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_reader_that_leaves_early_is_no_fault(tmp_path, as_json):
    task = sw.Task(
        [sw.Table(f"t{i}", 1000, 16) for i in range(3000)], sw.Topology(devices_per_host=4, device="h200"), 64
    )
    task.save(tmp_path / "task.json")
    with subprocess.Popen(
        [*PROGRAM, "plan", str(tmp_path / "task.json"), "--strategy", "dim", *as_json],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    ) as process:
        process.stdout.close()
        (note,) = process.stderr.read().splitlines()
        assert note.startswith("cost model h200/published")
    assert process.returncode == 1


@pytest.mark.slow
def test_names_that_the_terminal_cannot_show_are_no_fault(model_file, tmp_path):
    task = sw.Task([sw.Table("ключ", 1000, 16)], sw.Topology(devices_per_host=2), 64)
    (tmp_path / "задача").mkdir()
    task.save(tmp_path / "задача" / "task.yaml")
    for encoding in ("ascii", "utf-8"):
        arguments = ["plan", str(tmp_path / "задача" / "task.yaml"), "--model", str(model_file)]
        environment = ENVIRONMENT | {"PYTHONIOENCODING": encoding}
        command = [*PROGRAM, *arguments, "-o", str(tmp_path / "задача" / "plan.json")]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert b"saved" in done.stdout


def wait_for_samples(store, count, process):
    """Wait until a store has some samples; the process that writes it must go on."""
    from shardwright.errors import InvalidInput
    from shardwright.measure.samples import read_samples

    stop = time.monotonic() + 120
    while time.monotonic() < stop:
        with suppress(InvalidInput):
            if read_samples(store).num_rows >= count:
                return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail(f"{store} did not get {count} samples")


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """A program in the background of a script ignores SIGINT, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_collecting_resumes_after_a_stop(tmp_path, how):
    from shardwright.measure.samples import read_samples

    store = tmp_path / "samples"
    options = ["-o", str(store), "--memory", "64 MB", "--batch-size", "64"]
    process = subprocess.Popen(
        [*PROGRAM, "collect", *options, "-n", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    wait_for_samples(store, 5, process)
    os.killpg(process.pid, how)
    out, err = process.communicate(timeout=60)
    assert out == ""
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert (
            err == f"error: stopped; all samples measured so far are in {store}: run the same command again to go on\n"
        )
    before = set(read_samples(store)["label"].to_pylist())
    assert len(before) >= 3
    wanted = len(before) + 2
    done = run("collect", *options, "-n", wanted, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    after = set(read_samples(store)["label"].to_pylist())
    assert summary["samples"] == wanted
    assert summary["measured"] >= 2
    assert before <= after


@pytest.mark.slow
def test_plans_are_compared_and_verified_by_real_kernels(task_file, model_file, tmp_path):
    options = ["--strategies", "random,greedy", "--model", model_file, "--measure", "--rounds", 1]
    done = run("compare", task_file, *options, "-o", tmp_path / "plans", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(entry["measured_compute_ms"] > 0 for entry in json.loads(done.stdout)["strategies"])
    plan = tmp_path / "plans" / "greedy.json"
    done = run("verify", plan, "--task", task_file, "--rounds", 1, "--tolerance", 1e9, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["within_tolerance"] is True
    measured = [(device["measured_forward_ms"], device["measured_backward_ms"]) for device in document["devices"]]
    assert document["measured_compute_ms"] == sum(map(max, zip(*measured, strict=True))) > 0


@pytest.mark.slow
def test_a_plan_larger_than_this_machine_is_refused(model_file, tmp_path):
    table = sw.Table("giant", rows=10**12, dim=64)
    task = sw.Task([table], sw.Topology(memory="1000 TB"), 64)
    task.save(tmp_path / "task.yaml")
    assert run("plan", tmp_path / "task.yaml", "--model", model_file, "-o", tmp_path / "plan.json").returncode == 0
    done = run("verify", tmp_path / "plan.json", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["type"] == "MeasurementFailed"
    assert "TB" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_quick_demo(model_file, tmp_path):
    done = run("demo", "--quick", "--model", model_file, "-o", tmp_path / "demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [entry["strategy"] for entry in document["strategies"]] == list(
        sw.strategy_names(sw.Task.load(tmp_path / "demo" / "task.yaml"))
    )
    (report,) = (Path(file) for file in document["saved"] if file.endswith(".html"))
    assert report.stat().st_size > 10_000
    for entry in document["strategies"]:
        assert entry["measured_compute_ms"] > 0
        plan = sw.Plan.load(tmp_path / "demo" / f"{entry['strategy']}.json")
        assert plan.cost.compute_ms == entry["predicted_compute_ms"]
        assert plan.bound_ms == entry["bound_ms"] <= plan.cost.step_ms
