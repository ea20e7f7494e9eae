"""Scripts for machines with a GPU, run small on the CPU backend with the measuring packages only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.measure.rows import job, visit

from shardwright.measure.samples import columns, read_samples
from shardwright.measure.store import SampleStore

REPOSITORY = Path(__file__).parents[2]
HARDWARE = {
    "device_kind": "cuda",
    "processor": "NVIDIA H200",
    "cores": "1",
    "backend": "b",
    "torch": "t",
    "fbgemm": "f",
}

# A path entry that is read at every start of Python: packages that the machine with the GPU has not are not found.
BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        missing = {"scipy", "highspy", "msgspec", "typer", "rich", "yaml", "polars", "safetensors", "matplotlib"}
        if name == "shardwright._engine" or name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"{name} is not installed")

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def few_packages(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds the measuring packages only."""
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "sitecustomize.py").write_text(BLOCK)
    path = os.pathsep.join([str(tmp_path / "few"), str(REPOSITORY / "src")])
    return {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_everything_of_one_machine_in_one_go_and_again(few_packages: dict[str, str], tmp_path: Path) -> None:
    environment = {
        **few_packages, "DEVICE": "cpu", "BACKEND": "embedding_bag", "SECONDS_ALLOWED": "120", "PACK": str(tmp_path / "packed"),
    }  # fmt: skip
    command = [str(REPOSITORY / "scripts" / "collect_gpu.sh"), str(tmp_path / "store")]
    options = ["--space", "wide", "--batch-size", "32", "--memory", "20 MB"]

    def collected(samples: int) -> str:
        done = subprocess.run(
            [*command, *options],
            env={**environment, "SAMPLES": str(samples)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = collected(2)
    assert "all checks passed" in first
    assert "GB/s read and written" in first
    assert "2 samples in" in first
    assert "ms a measurement" in first.split("2 samples in")[1]  # where the time went comes last
    assert "checked before" in collected(3)
    packed = read_samples(tmp_path / "packed" / "samples.parquet")
    assert {label.partition(":")[2] for label in packed["label"].to_pylist()} == {"0", "1", "2"}
    assert json.loads((tmp_path / "packed" / "checks.json").read_text())["passed"]


# In place of python on the machine: a test scripts the checks and the collection; packing is the real program.
STAND_IN = """#!/bin/bash
shift
case "$1" in
  *.checks) shift; {checks} ;;
  *.collect) shift; {collect} ;;
  *) exec {python} -m "$@" ;;
esac
"""


def attended(tmp_path: Path, checks: str, collect: str) -> subprocess.Popen[str]:
    """`collect_gpu.sh` on a store of two samples, with these shell commands as checks and collection; `$2` is the store."""
    with SampleStore(tmp_path / "measured", HARDWARE) as opened:
        for number in range(2):
            opened.add(job(number), visit())
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(checks=checks, collect=collect, python=sys.executable))
    stand_in.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stand_in), "PACK": str(tmp_path / "packed"), "PACK_SECONDS": "1"}
    command = [str(REPOSITORY / "scripts" / "collect_gpu.sh"), str(tmp_path / "store")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measured(tmp_path: Path) -> str:
    """A shell command that puts samples into the store."""
    return f"cp -r {tmp_path}/measured/. $2"


PASSED = "mkdir -p $2 && echo '{}' > $2/checks.json"


@pytest.mark.slow
def test_a_collection_that_fails_is_packed_and_its_status_kept(tmp_path: Path) -> None:
    done = attended(tmp_path, PASSED, f"{measured(tmp_path)}; exit 3")
    _, errors = done.communicate(timeout=300)
    assert done.returncode == 3, errors
    assert read_samples(tmp_path / "packed" / "samples.parquet").num_rows == 2
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == ["checks.json", "samples.parquet"]


@pytest.mark.slow
def test_samples_are_packed_while_the_collection_runs_and_when_it_is_ended(tmp_path: Path) -> None:
    running = attended(tmp_path, PASSED, f"{measured(tmp_path)}; exec sleep 1000 > /dev/null 2>&1")
    waited = 0
    while not (tmp_path / "packed" / "samples.parquet").exists() and running.poll() is None and waited < 1200:
        time.sleep(0.1)
        waited += 1
    assert read_samples(tmp_path / "packed" / "samples.parquet").num_rows == 2
    (tmp_path / "packed" / "samples.parquet").unlink()
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 128 + signal.SIGTERM, errors
    assert read_samples(tmp_path / "packed" / "samples.parquet").num_rows == 2


def test_failed_checks_come_home_although_nothing_is_collected(tmp_path: Path) -> None:
    done = attended(tmp_path, f"{PASSED}; exit 1", "exit 0")
    output, _ = done.communicate(timeout=300)
    assert done.returncode == 1
    assert "== samples" not in output
    assert [path.name for path in (tmp_path / "packed").iterdir()] == ["checks.json"]


@pytest.mark.slow
def test_plans_are_prepared_here_measured_there_and_compared_here(
    program: Callable[[str], ModuleType], few_packages: dict[str, str], tmp_path: Path
) -> None:
    plans, folder = program("gpu_plans"), tmp_path / "plans"
    small = ["--tasks", "1", "--least", "1", "--scale", "0.0005", "--batch-size", "32", "--time-limit", "1"]
    assert plans.main(["prepare", str(folder), *small, "--strategies", "random", "neuroshard", "flexshard"]) == 0
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_plans",
        "measure",
        str(folder),
        "--device",
        "cpu",
    ]
    command += ["--backend", "embedding_bag", "--rounds", "1", "--runs", "1"]
    done = subprocess.run(command, env=few_packages, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 failed, 0 measurements missing" in done.stdout
    plans.main(["page", str(folder)])
    rows = pq.read_table(tmp_path / "gpu_plans.parquet").to_pylist()
    assert [(row["strategy"], row["rank"]) for row in rows] == [
        (strategy, rank)
        for strategy in ("neuroshard", "random", "flexshard", "neuroshard", "random")
        for rank in range(4)
    ]
    assert {row["task"] for row in rows if row["strategy"] == "flexshard"} == {1}
    for row in rows:
        assert (row["measured_forward_ms"] > 0) == (row["predicted_forward_ms"] > 0) == (row["shards"] > 0)
    assert {row["cost_model"] for row in rows} == {"h200/published"}


def made(bandwidth: float, launch_ms: float) -> pa.Table:
    """Sets of 1 to 60 tables, as a store gives them, on a device with this bandwidth, in bytes a second, and this time of a launch."""
    rng, rows = np.random.default_rng(0), []
    for sample in range(300):
        tables = int(rng.integers(1, 61)) if sample % 2 else 1
        lookups = 64 * 10.0 ** rng.uniform(-1, 2)
        ids, distinct, outputs = 8 * (lookups + 64), lookups * 256, 4 * 64 * 64
        # Backward: a state's sector, both ways.
        moved = tables * np.array([ids + distinct + outputs, ids + 2 * distinct + 64 * lookups + outputs])
        forward, backward = np.maximum(1e3 * moved / bandwidth, launch_ms).tolist()
        bins = [lookups] + [0.0] * 16
        shard = {
            "rows": 10**6,
            "dim": 64,
            "samples": 64,
            "lookups": lookups,
            "pooled": True,
            "dtype": "fp32",
            "features": 1,
        }
        shard |= {"reuse_rows": bins, "reuse_lookups": bins}
        row = {
            "sample": sample,
            "repeat": 0,
            "kind": "random",
            "label": "",
            "batch_size": 64,
            "optimizer": "rowwise_adagrad",
        }
        row |= {"device_kind": "cuda", "visits": 1, "sentinel": 1.0, "forward_ms": forward, "backward_ms": backward}
        rows.append(row | {"shards": [shard] * tables})
    return pa.Table.from_pylist(rows, schema=columns())


def test_the_roofline_finds_bandwidth_and_launches(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    store = tmp_path / "store"
    with SampleStore(store, HARDWARE) as opened:
        for number in range(8):
            opened.add(job(number), visit())
    (store / "checks.json").write_text(json.dumps({"ceiling_bytes_per_s": 4e12}))
    roofline = program("gpu_roofline")
    assert roofline.measured_ceiling([store]) == 4e12
    sets = roofline.roofline_of(made(bandwidth=2e12, launch_ms=2e-4), 4e12)
    np.testing.assert_allclose(sets.launch_ms, 2e-4, rtol=1e-6)
    assert (sets.calls == 1).all()
    slow = sets.times > 2.0001e-4
    np.testing.assert_allclose(sets.share[slow], 0.5, rtol=1e-4)
    np.testing.assert_array_equal(sets.latency_bound, 1e3 * sets.moved / 4e12 < 2e-4)
    assert 0.2 < sets.latency_bound.mean() < 0.8
    roofline.main([str(store)])
    assert "latency-bound" in (tmp_path / "gpu_roofline.md").read_text()
