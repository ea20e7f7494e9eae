"""Collectives between real gloo processes: measured, hanging, killed, resumed, and under torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardwright.measure.collectives.collect import (
    CollectiveCollection,
    collect_collectives,
    keys_of,
    new_collection,
    read_collectives,
)
from shardwright.measure.collectives.group import GroupOptions, RankGroup
from shardwright.measure.collectives.rank import RunPolicy
from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    CollectiveSample,
)
from shardwright.task import AccessProfile, Table

REPOSITORY = Path(__file__).parents[2]
POOL = tuple(Table(f"t{i}", 1000, 16, 0.5 + i, access=AccessProfile.uniform(1000)) for i in range(5))
ONCE = RunPolicy(warm_up=0, runs=1)
FEW = RunPolicy(warm_up=1, runs=3)

# A rank program of which the tests replace what happens in a sample.
RANK = """
import os, signal, time
from pathlib import Path
from shardwright.measure.collectives import rank
from shardwright.measure.collectives.rank import build_passes
from shardwright.measure.collectives.sampling import CollectiveSample

measure = rank.answer

def answer(member, request, policy):
    {body}
    return measure(member, request, policy)

rank.answer = answer
rank.main()
"""


def rank_program(body: str) -> tuple[str, ...]:
    return ("-c", RANK.format(body=body.replace("\n", "\n    ")))


def collection(folder: Path, samples: int, **changes: Any) -> CollectiveCollection:
    options: dict[str, Any] = {"world": 2, "batch_sizes": (64,), "pool": POOL, "policy": ONCE, **changes}
    return new_collection(folder, samples=samples, **options)


def environment() -> dict[str, str]:
    paths = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def ranks_mentioning(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_collectives_move_what_they_should_and_hold_the_wait_for_late_starters() -> None:
    body = """if max(request["delays_ms"]) == 0:
    passes = build_passes(CollectiveSample(**request), member.rank, member.world, member.device)
    passes.forward()
    if passes.backward: passes.backward()
    forward, *backward = [output.tolist() for output in passes.outputs]
    return {"forward_ms": forward, "backward_ms": sum(backward, [])}"""
    still = (0.0,) * 3
    with RankGroup(GroupOptions(3, policy=FEW, program=rank_program(body))) as group:
        # 5 samples: 2, 2 and 1 by rank; rank 0 is seen.
        moved = group.measure(CollectiveSample(0, ALL_TO_ALL, 5, (1, 0, 3), still))
        assert moved.forward_ms == (*[0] * 2, *[2] * 6)  # its samples' values from the holders of 1, 0 and 3 columns
        assert moved.backward_ms == (0, 0, 1, 1, 2)  # gradients of its one column for everybody's samples
        gathered = group.measure(CollectiveSample(1, ALL_GATHER, 0, (), still, 6))
        assert gathered.forward_ms == (0, 0, 1, 1, 2, 2)
        assert group.measure(CollectiveSample(2, REDUCE_SCATTER, 0, (), still, 6)).forward_ms == (3, 3)
        assert group.measure(CollectiveSample(3, ALL_REDUCE, 0, (), still, 6)).forward_ms == (3,) * 6
        # A device that starts early waits for the late one, and its time says so.
        times = group.measure(CollectiveSample(4, ALL_TO_ALL, 8, (4, 4, 4), (0.0, 0.0, 200.0)))
    early, also_early, late = times.forward_ms
    assert min(early, also_early) > 100
    assert early - late > 50
    assert max(times.backward_ms) < early  # the backward pass has no delays


@pytest.mark.slow
def test_four_ranks_on_two_hosts(tmp_path: Path) -> None:
    wanted = collection(tmp_path, 12, world=4, hosts=2, policy=FEW)
    seen: list[tuple[int, int]] = []
    summary = collect_collectives(wanted, progress=lambda done, all_, _: seen.append((done, all_)))
    assert seen == [(done, 13) for done in range(1, 14)]
    assert (summary.samples, summary.skipped, summary.measured) == (12, 0, 13)
    for row in read_collectives(tmp_path).to_pylist():
        assert row["kind"] == wanted.space.draw(row["sample"]).kind
        assert (row["world"], row["hosts"], row["runs"], row["backend"]) == (4, 2, 3, "gloo")
        assert len(row["forward_ms"]) == len(row["bytes"]) == len(row["sent_inter"]) == len(row["delays_ms"]) == 4
        assert min(row["forward_ms"]) > 0
        assert [time > 0 for time in row["backward_ms"]] == ([True] * 4 if row["kind"] == ALL_TO_ALL else [])
        assert len(row["dims"]) == len(row["backward_ms"])
        assert max(row["sent_inter"]) > 0
    assert collect_collectives(wanted).measured == 0


@pytest.mark.slow
def test_a_killed_rank_costs_a_restart_and_one_that_hangs_its_sample(tmp_path: Path) -> None:
    wanted, once = collection(tmp_path / "store", 5), tmp_path / "once"
    body = f"""if member.rank == 1 and request['sample'] == 1 and not Path({str(once)!r}).exists():
    Path({str(once)!r}).touch()
    os.kill(os.getpid(), signal.SIGKILL)
if member.rank == 1 and request['sample'] == 3: time.sleep(3600)"""
    faulty = GroupOptions(2, policy=ONCE, timeout_s=8.0, program=rank_program(body))
    summary = collect_collectives(wanted, group=faulty)
    assert once.exists()
    assert (summary.samples, summary.skipped, summary.measured) == (4, 1, 5)
    assert keys_of(read_collectives(tmp_path / "store")) == [(0, 0), (0, 1), (1, 0), (2, 0), (4, 0)]
    again = collect_collectives(wanted, group=faulty)
    assert (again.samples, again.skipped, again.measured) == (4, 1, 0)


PARENT = """
import sys
from tests.integration.test_collectives import collection, collect_collectives

def report(done, wanted, detail):
    print(done, flush=True)
    sys.stdin.readline()

collect_collectives(collection(sys.argv[1], int(sys.argv[2])), timeout_s=61.25, progress=report)
"""


@contextmanager
def parent(folder: Path, samples: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, str(folder), str(samples)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_when_the_parent_is_killed_nothing_is_lost_and_no_rank_stays(tmp_path: Path) -> None:
    with parent(tmp_path, 8) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n" * 3)
        process.stdin.flush()
        for _ in range(4):
            process.stdout.readline()
        assert ranks_mentioning('"timeout_s": 61.25')
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = read_collectives(tmp_path, skipped=True)
    assert keys_of(before) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    deadline = time.monotonic() + 20
    while ranks_mentioning('"timeout_s": 61.25') and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ranks_mentioning('"timeout_s": 61.25')
    assert collect_collectives(collection(tmp_path, 8)).measured == 5
    assert (
        read_collectives(tmp_path, skipped=True)["measured_at"].to_pylist()[0] == before["measured_at"].to_pylist()[0]
    )


# What torchrun starts: sample 2 ends the whole group, each time.
IN_GROUP = """
import os, signal, sys
from shardwright.measure.collectives import __main__ as program, rank

measure = rank.Member.measure

def fatal(self, sample, policy):
    if sample.sample == 2 and self.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(self, sample, policy)

rank.Member.measure = fatal
sys.exit(program.main())
"""


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += [
        "--rdzv-endpoint",
        "localhost:0",
        "--monitor-interval",
        "0.1",
        *arguments,
        "--runs",
        "1",
        "--warm-up",
        "0",
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=120)


@pytest.mark.slow
def test_ranks_that_torchrun_started_share_one_store_and_survive_a_killed_one(tmp_path: Path) -> None:
    script, store = tmp_path / "in_group.py", tmp_path / "store"
    script.write_text(IN_GROUP)
    done = torchrun("--max-restarts", "3", str(script), "-o", str(store), "-n", "5", "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4 samples in") == 1  # rank 0 alone says so
    assert "1 skipped" in done.stdout
    assert keys_of(read_collectives(store)) == [(0, 0), (0, 1), (1, 0), (3, 0), (4, 0)]
    assert {(row["world"], row["hosts"]) for row in read_collectives(store).to_pylist()} == {(2, 1)}
    assert not list(store.glob("*attempts*"))


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        missing = {"scipy", "highspy", "msgspec", "typer", "rich", "yaml", "polars", "pandas", "safetensors", "fbgemm_gpu"}
        if name == "shardwright._engine" or name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"{name} is not installed")

sys.meta_path.insert(0, Blocker())
import shardwright.measure.collectives.rank
from shardwright.measure.collectives.__main__ import main
from shardwright.measure.collectives.collect import new_collection
new_collection("x", samples=1, world=2).space.draw(0)
main(["--help"])
"""


def test_collecting_needs_only_the_measuring_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Measure random collectives" in done.stdout


def test_the_module_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.measure.collectives.__main__ import main

    assert main(["-o", str(tmp_path / "store"), "--world", "0"]) == 2
    assert "error: world is 0, must be at least 2" in capsys.readouterr().err
