"""Backends of the user's own, in real measuring processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.hardware import fingerprint
from shardwright.measure import kernel_checks
from shardwright.measure.collect import collect, main
from shardwright.measure.measuring import measure_plans
from shardwright.measure.remote import MeasuringNode
from shardwright.measure.samples import fingerprints, read_samples
from shardwright.measure.timing import TimingPolicy
from shardwright.task import AccessProfile, Table

ONCE = TimingPolicy(warm_up=0, passes=1, runs=1)
POOL = tuple(Table(f"t{i}", 50 * 4**i, 16, 0.5 + i, access=AccessProfile.zipf(50 * 4**i, 1.05)) for i in range(4))
MODULE = """
import os
from pathlib import Path

from shardwright.measure.embedding_bag import EmbeddingBagBackend


class Noted(EmbeddingBagBackend):
    "Right, and notes which process built a call."

    def build(self, *given, **named):
        with Path(__file__).with_suffix(".log").open("a") as log:
            log.write(f"{os.getpid()}\\n")
        return super().build(*given, **named)


class Doubled(EmbeddingBagBackend):
    "Steps twice as far as it should."

    def build(self, *given, **named):
        call = super().build(*given, **named)
        backward = call.backward
        call.backward = lambda outputs, gradients: backward(outputs, [2 * gradient for gradient in gradients])
        return call
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of kernels, which this process and those that it starts can import."""
    (tmp_path / "kernels_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(kernel_checks._SAMPLES, "cpu", 64)  # bags of each table, an eighth of the usual
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")])))
    yield tmp_path
    sys.modules.pop("kernels_of_mine", None)


def collected(folder: Path, backend: str, samples: int = 2) -> None:
    collect(folder, samples=samples, backend=backend, batch_sizes=(32,), pool=POOL, arena_bytes=16_000_000, policy=ONCE)


def samples_in(store: Path) -> set[int]:
    return {
        int(label.partition(":")[2]) for label in read_samples(store, hardware="kernels_of_mine")["label"].to_pylist()
    }


def builders(folder: Path) -> set[int]:
    return set(map(int, (folder / "kernels_of_mine.log").read_text().split()))


@pytest.mark.slow
def test_samples_are_made_by_the_own_backend_and_stay_apart(folder: Path) -> None:
    store = folder / "samples"
    collected(store, "kernels_of_mine:Noted")
    assert samples_in(store) == {0, 1}
    assert [hardware["backend"] for hardware in fingerprints(store)] == ["kernels_of_mine:Noted"]
    checks = json.loads((store / "checks.json").read_text())
    assert checks["passed"]
    assert len(checks["kernels"]) > 16
    assert os.getpid() in builders(folder)  # which checked
    assert len(builders(folder)) >= 2  # and measuring processes, which ran it
    collected(store, "embedding_bag")
    with pytest.raises(InvalidInput, match="several kinds of hardware or software.*--hardware"):
        read_samples(store)
    assert (
        read_samples(store, hardware="kernels_of_mine").num_rows == read_samples(store, hardware="embedding").num_rows
    )
    collected(store, "kernels_of_mine:Noted", samples=3)
    assert samples_in(store) == {0, 1, 2}


@pytest.mark.slow
def test_no_sample_is_made_by_kernels_that_are_wrong(folder: Path) -> None:
    store = folder / "samples"
    with pytest.raises(MeasurementFailed, match=r"results differ from the reference: sgd, fp32, pooled.*checks\.json"):
        collected(store, "kernels_of_mine:Doubled")
    assert [path.name for path in store.iterdir()] == ["checks.json"]
    kernels = json.loads((store / "checks.json").read_text())["kernels"]
    assert {check["forward"] < 1e-3 for check in kernels} == {True}
    assert not any(check["passed"] for check in kernels if "fp32" in check["name"])


def test_a_backend_that_is_none_makes_no_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = folder / "samples"
    for name, says in (("kernels_of_mine:Missing", "which defines Doubled, Noted"), ("mine", "unknown backend 'mine'")):
        assert main(["-o", str(store), "-n", "1", "--backend", name]) == 2
        assert says in capsys.readouterr().err
        assert not store.exists()


def small_plan() -> sw.Plan:
    return sw.plan(sw.Task(POOL, sw.Topology(devices_per_host=2, device="cpu"), batch_size=64), strategy="greedy")


@pytest.mark.slow
def test_plans_are_measured_by_the_own_backend(folder: Path) -> None:
    small_plan().save(folder / "plan.json")
    command = ["verify", "plan.json", "--rounds", "1", "--json", "--backend"]
    done = [
        subprocess.run(
            [sys.executable, "-m", "shardwright", *command, f"kernels_of_mine:{name}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        for name in ("Noted", "Missing")
    ]
    assert [process.returncode for process in done] == [0, 2], done[0].stderr
    assert json.loads(done[0].stdout)["measured_compute_ms"] > 0
    assert builders(folder)
    assert "Missing does not exist in kernels_of_mine" in done[1].stderr


@pytest.mark.slow
def test_a_module_that_only_this_process_can_import_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir("/")
    with pytest.raises(MeasurementFailed, match="no module 'kernels_of_mine'; install its package, or name its folder"):
        measure_plans([small_plan()], rounds=1, backend="kernels_of_mine:Noted", policy=ONCE)


@pytest.mark.slow
def test_a_cluster_worker_reports_errors_and_passed_checks(folder: Path) -> None:
    doubled = MeasuringNode("cpu", "kernels_of_mine:Doubled", ONCE, fingerprint).facts("")
    assert doubled.wrong.startswith(f"{socket.gethostname()}: ")
    assert doubled.checks is not None
    noted = MeasuringNode("cpu", "kernels_of_mine:Noted", ONCE, fingerprint).facts("")
    assert (noted.wrong, noted.memory) == ("", 0)
    assert noted.checks is not None
    assert noted.checks != doubled.checks
    (folder / "kernels_of_mine.log").unlink()
    assert MeasuringNode("cpu", "kernels_of_mine:Noted", ONCE, fingerprint).facts(noted.checks) == noted
    assert MeasuringNode("cpu", "kernels_of_mine:Noted", ONCE, fingerprint).facts(None).checks is None
    assert not (folder / "kernels_of_mine.log").exists()  # its kernels are not checked again
