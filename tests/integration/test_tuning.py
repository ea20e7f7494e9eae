"""Tuning on real kernels, with hardly any time."""

import pytest

import shardwright as sw
from shardwright.testing.tasks import BATCH, tables

pytest.importorskip("torch")


def test_a_small_task_is_tuned_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    small = [table for table in tables(8) if table.pooled and table.dtype == "fp32"]
    task = sw.Task(small, sw.Topology(devices_per_host=2, device="cpu", memory="1 GB"), BATCH)
    found = sw.tune(task, minutes=0.1)
    measured = found.plan.tuning
    assert 0 < measured.measured_ms <= measured.first_ms
    assert len(measured.forward_ms) == 2
    assert min(measured.forward_ms + measured.backward_ms) > 0
    found.plan.save(tmp_path / "plan.json")
    assert sw.Plan.load(tmp_path / "plan.json").tuning == measured
    assert any((tmp_path / "tuning").glob("*.jsonl"))
