"""Collecting with a real worker process, killed at random moments."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import mentioning, wait_until

from shardwright.cli.main import main as command_line
from shardwright.errors import MeasurementFailed
from shardwright.measure import collect as module
from shardwright.measure.collect import collect, main
from shardwright.measure.device_work import DeviceWork
from shardwright.measure.samples import read_samples
from shardwright.measure.sampling import Breadth, SampleSpace
from shardwright.measure.stock import Collection, CollectSummary
from shardwright.measure.store import reading
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visits import MOST_VISITS
from shardwright.measure.worker import Worker, WorkerOptions
from shardwright.sharding.work import ShardWork
from shardwright.task import AccessProfile, Table

ONCE = TimingPolicy(warm_up=0, passes=1, runs=1)
POOL = tuple(Table(f"t{i}", 50 * 4**i, 16, 0.5 + i, access=AccessProfile.zipf(50 * 4**i, 1.05)) for i in range(5))
SMALL: dict[str, Any] = {"batch_sizes": (32,), "pool": POOL, "arena_bytes": 16_000_000, "policy": ONCE}

# Collects as a program of its own; prints a line per measurement, and waits for one in return, so that it does not run ahead.
PROGRAM = """
import sys
from shardwright.measure import collect as module
from tests.integration.test_collect import SMALL

def report(done, wanted, detail):
    print(done, flush=True)
    sys.stdin.readline()

module.collect(sys.argv[1], samples=int(sys.argv[2]), backend="embedding_bag", progress=report, **SMALL)
"""
REPOSITORY = Path(__file__).parents[2]


def start(folder: Path, samples: int) -> subprocess.Popen[str]:
    paths = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(samples)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def visits(folder: Path) -> Counter[tuple[int, int]]:
    """All visits in a store, as (number of the set, number of the visit), and how often each is found."""
    with reading(folder) as db:
        rows = db.execute("SELECT label, visits.id FROM sets JOIN visits USING(work)")
        return Counter((int(label.partition(":")[2]), number) for label, number in rows)


def keys_in(folder: Path) -> list[tuple[int, int]]:
    """(number of the set, repeat) of the rows read."""
    table = read_samples(folder)
    numbers = [int(label.partition(":")[2]) for label in table["label"].to_pylist()]
    return sorted(zip(numbers, table["repeat"].to_pylist(), strict=True))


def most_visits(number: int) -> int:
    """How often a set is visited at most."""
    return MOST_VISITS * (1 + (number % 20 == 0))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_killed_at_any_moment_nothing_is_lost_and_nothing_measured_twice(tmp_path: Path) -> None:
    rng = random.Random(7)
    wanted, done, untold = 120, 0, 0  # a visit may be stored and its line not yet printed when the process dies
    known: Counter[tuple[int, int]] = Counter()
    for _ in range(3):
        process = start(tmp_path, wanted)
        assert process.stdin is not None
        assert process.stdout is not None
        allowed = rng.randrange(4, 30)
        process.stdin.write("\n" * allowed)
        process.stdin.flush()
        printed = [process.stdout.readline() for _ in range(rng.randrange(1, allowed))]
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read().splitlines()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        stored = visits(tmp_path)
        assert known <= stored  # nothing is lost
        assert len(known) + len(printed) <= len(stored) <= len(known) + len(printed) + 1
        assert done <= int(printed[0]) <= done + untold + 1  # it goes on where the killed one stopped
        done, untold = int(printed[-1]), len(stored) - len(known) - len(printed)
        known = stored
    assert known.total() == len(known)  # no visit is in two places
    rest = collect(tmp_path, samples=wanted, backend="embedding_bag", **SMALL)
    assert len(visits(tmp_path)) == len(known) + rest.measured
    assert {number for number, repeat in keys_in(tmp_path) if not repeat} == set(range(wanted))
    for number, again in Counter(number for number, _ in visits(tmp_path)).items():
        assert again <= most_visits(number), number
    worker = f'"arena_bytes": {SMALL["arena_bytes"]}'
    wait_until(lambda: not mentioning(worker), "a worker outlives its collector", seconds=20)


@pytest.mark.slow
def test_samples_hold_what_was_measured(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    summary = collect(tmp_path, samples=32, seed=3, progress=lambda done, all_, _: seen.append((done, all_)), **SMALL)
    assert seen == sorted(seen)
    assert seen[-1] == (32, 32)
    assert (summary.samples, summary.measured) == (32, len(seen))
    assert 34 <= summary.measured <= 34 * MOST_VISITS
    assert 0 <= summary.disturbed <= 1
    table = read_samples(tmp_path)
    space = SampleSpace(POOL, 3, 16_000_000 - 160_000, Breadth(batch_sizes=(32,)))
    for row in table.slice(0, 4).to_pylist():
        expected = space.draw(int(row["label"].partition(":")[2])).work.works
        assert [shard["rows"] for shard in row["shards"]] == [work.rows for work in expected]
        for shard, work in zip(row["shards"], expected, strict=True):
            np.testing.assert_allclose(shard["reuse_rows"], work.access.reuse(work.lookups)[0], rtol=1e-6, atol=1e-12)
    assert min(table["forward_ms"].to_pylist()) > 0
    assert min(table["backward_ms"].to_pylist()) > 0
    again = collect(tmp_path, samples=32, seed=3, **SMALL)
    assert (again.samples, again.measured) == (32, 0)


@pytest.mark.slow
def test_wide_sets_run_on_real_kernels(tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "batch_sizes": (16,), "backend": "embedding_bag", "space": "wide"}
    summary = collect(tmp_path, samples=6, seed=1, **options)
    assert summary.samples == 6
    table = read_samples(tmp_path)
    space = Collection(6, space="wide", batch_sizes=(16,)).sets(16_000_000).breadth
    expected = SampleSpace(POOL, 1, 15_840_000, space)
    assert table["optimizer"].to_pylist() == [
        expected.draw(int(label.partition(":")[2])).work.optimizer for label in table["label"].to_pylist()
    ]
    other = collect(tmp_path, samples=2, seed=1, **{**options, "optimizer": "sgd"})
    assert other.samples == 2  # other sets, in the same store
    assert read_samples(tmp_path).num_rows >= 8


@pytest.mark.slow
def test_a_kernel_that_cannot_run_ends_the_collection_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="'adam' has no fused FBGEMM kernel on a CPU"):
        collect(tmp_path, samples=2, optimizer="adam", backend="fbgemm", **SMALL)


@pytest.mark.slow
def test_a_killed_worker_is_reported() -> None:
    work = ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100))
    with Worker(WorkerOptions("cpu", "embedding_bag", 2**20, ONCE)) as worker:
        assert worker.visit(DeviceWork((work,), (1,), "sgd")).batches >= 1
        worker.process.send_signal(signal.SIGKILL)
        with pytest.raises(MeasurementFailed, match="was ended by SIGKILL; the machine may be out of memory"):
            worker.visit(DeviceWork((work,), (1,), "sgd"))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [([], None), (["--device", "cuda"], 1400.0), (["--device", "cuda", "--seconds", "inf"], math.inf)],
)
def test_on_a_gpu_the_commands_stop_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], seconds: float | None
) -> None:
    asked: list[float | None] = []

    def fake(folder: Path, **options: Any) -> CollectSummary:
        asked.append(options["seconds"])
        return CollectSummary(folder, 1, 1, 1.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr(module, "collect", fake)
    monkeypatch.setattr("shardwright.measure.checks.check_machine", lambda *given, **named: [])
    assert main(["-o", str(tmp_path), *given]) == 0
    assert command_line(["collect", "-o", str(tmp_path), *given]) == 0
    assert asked == [seconds, seconds]


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        missing = {"scipy", "highspy", "msgspec", "typer", "rich", "yaml", "polars", "pandas", "safetensors"}
        if name == "shardwright._engine" or name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"{name} is not installed")

sys.meta_path.insert(0, Blocker())
import shardwright.measure.worker
from shardwright.measure.collect import main
from shardwright.workload.generators import table_pool
table_pool("dlrm-2021")[0].access.reuse(100.0)
import shardwright.measure.collectives.rank
from shardwright.measure.collectives.collect import new_collection
new_collection("x", samples=1, world=2).space.draw(0)
main(["--help"])
"""


def test_collecting_needs_only_the_measuring_packages() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "Measure random sets of tables" in done.stdout


def test_the_command_line_reports_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-o", str(tmp_path / "store"), "-n", "0"]) == 2
    assert "error: samples is 0, must be at least 1" in capsys.readouterr().err
    assert main(["-o", str(tmp_path / "store"), "--pool", "none-such"]) == 2
    assert "unknown pool 'none-such'" in capsys.readouterr().err


@pytest.mark.slow
def test_an_unexpected_failure_of_a_worker_shows_its_last_output() -> None:
    work = ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100))
    with (
        Worker(WorkerOptions("cpu", "embedding_bag", 2**20, ONCE)) as worker,
        pytest.raises(MeasurementFailed, match=r"the measuring process exited with 1\. Its last lines: .*IndexError"),
    ):
        worker.visit(DeviceWork((work,), (), "sgd"))  # without a seed
