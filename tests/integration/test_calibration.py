"""Calibrating and tuning on real kernels, with hardly any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.hardware import default_backend, fingerprint
from shardwright.measure.store import SampleStore
from shardwright.testing.tasks import BATCH, tables

pytest.importorskip("torch")

_PATIENCE_S = 240.0


def visits(cache: Path, kind: str) -> int:
    """Visits of this machine to sets of a kind in a cache folder."""
    with SampleStore(cache / "samples", fingerprint("cpu", default_backend())) as store:
        return sum(map(len, store.labelled(kind).values()))


def small_task() -> sw.Task:
    small = [table for table in tables(8) if table.pooled and table.dtype == "fp32"]
    return sw.Task(small, sw.Topology(devices_per_host=2, device="cpu", memory="1 GB"), BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_calibration_that_is_killed_loses_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "shardwright", "calibrate", "--minutes", "10"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        until = time.monotonic() + _PATIENCE_S
        while visits(tmp_path, "random") < 5 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        process.send_signal(how)
        process.wait(_PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    before = visits(tmp_path, "random")
    assert before >= 5
    calibration = sw.calibrate(minutes=0.2)
    assert calibration.sets >= calibration.new_sets + 5
    assert visits(tmp_path, "random") >= before


@pytest.mark.slow
def test_a_small_task_is_tuned_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    tuned = sw.tune(small_task(), minutes=0.5)
    measured = tuned.plan.tuning
    assert 0 < measured.measured_ms <= measured.first_ms
    assert len(measured.forward_ms) == 2
    assert min(measured.forward_ms + measured.backward_ms) > 0
    tuned.plan.save(tmp_path / "plan.json")
    assert sw.Plan.load(tmp_path / "plan.json").tuning == measured
    assert visits(tmp_path, "tune")
