"""Collectives between real gloo processes: measured, hanging, killed, resumed, and under torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.processes import mentioning, wait_until

from shardwright.calibration import calibrate_links
from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.collect import (
    CollectiveCollection,
    collect_collectives,
    keys_of,
    new_collection,
    read_collectives,
)
from shardwright.measure.collectives.group import GroupOptions, RankGroup
from shardwright.measure.collectives.rank import RunPolicy
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.task import AccessProfile, Table
from shardwright.task.link_files import load_links
from shardwright.task.links import TORCHREC_CALLS, ModuleTimes

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


@pytest.mark.slow
def test_all_to_alls_move_what_they_should_and_hold_the_wait_for_late_starters() -> None:
    body = """if max(request["delays_ms"]) == 0:
    calls = build_passes(CollectiveSample(**request), member.rank, member.world, member.device)
    forward, backward = [call().tolist() for call in calls]
    return {"forward_ms": forward, "backward_ms": backward}"""
    with RankGroup(GroupOptions(3, policy=FEW, program=rank_program(body))) as group:
        # 5 samples: 2, 2 and 1 by rank; rank 0 is seen.
        moved = group.ask(asdict(CollectiveSample(0, 5, (1, 0, 3), (0.0,) * 3)), "for a sample")
        assert moved["forward_ms"] == [*[0] * 2, *[2] * 6]  # its samples' values from the holders of 1, 0 and 3 columns
        assert moved["backward_ms"] == [0, 0, 1, 1, 2]  # gradients of its one column for everybody's samples
        # A device that starts early waits for the late one, and its time includes the wait.
        times = group.ask(asdict(CollectiveSample(4, 8, (4, 4, 4), (0.0, 0.0, 200.0))), "for a sample")
    early, also_early, late = times["forward_ms"]
    assert min(early, also_early) > 100
    assert early - late > 50
    assert max(times["backward_ms"]) < early  # the backward pass has no delays


@pytest.mark.slow
def test_three_ranks(tmp_path: Path) -> None:
    wanted = collection(tmp_path, 12, world=3, policy=FEW)
    seen: list[tuple[int, int]] = []
    summary = collect_collectives(wanted, progress=lambda done, all_, _: seen.append((done, all_)))
    assert seen == [(done, 13) for done in range(1, 14)]
    assert (summary.samples, summary.measured) == (12, 13)
    for row in read_collectives(tmp_path).to_pylist():
        assert (row["world"], row["runs"], row["backend"]) == (3, 3, "gloo")
        assert len(row["forward_ms"]) == len(row["backward_ms"]) == len(row["dims"]) == len(row["delays_ms"]) == 3
        assert min(row["forward_ms"] + row["backward_ms"]) > 0
    assert collect_collectives(wanted).measured == 0


@pytest.mark.slow
def test_a_killed_rank_ends_the_collection_which_goes_on_from_there(tmp_path: Path) -> None:
    wanted, once = collection(tmp_path / "store", 5), tmp_path / "once"
    body = f"""if member.rank == 1 and request['sample'] == 1 and not Path({str(once)!r}).exists():
    Path({str(once)!r}).touch()
    os.kill(os.getpid(), signal.SIGKILL)"""
    faulty = GroupOptions(2, policy=ONCE, timeout_s=8.0, program=rank_program(body))
    with pytest.raises(MeasurementFailed, match=r"rank 1 was ended by SIGKILL.* run the same command again to go on"):
        collect_collectives(wanted, group=faulty)
    assert keys_of(read_collectives(tmp_path / "store")) == [(0, 0)]
    assert collect_collectives(wanted, group=faulty).measured == 5
    assert keys_of(read_collectives(tmp_path / "store")) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (4, 0)]


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
        assert mentioning('"timeout_s": 61.25')
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = read_collectives(tmp_path)
    assert keys_of(before) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    wait_until(lambda: not mentioning('"timeout_s": 61.25'), "a rank outlives its collector", seconds=20)
    assert collect_collectives(collection(tmp_path, 8)).measured == 5
    assert read_collectives(tmp_path)["measured_at"].to_pylist()[0] == before["measured_at"].to_pylist()[0]


def torchrun(
    *arguments: str, cache: Path, hosts: int, meanwhile: Callable[[], None] = lambda: None
) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks on each of some hosts, all of which are this machine; `meanwhile` is called once they have started."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--nnodes", str(hosts)]
    command += ["--master-addr", "localhost", "--master-port", str(port), "--monitor-interval", "0.1"]
    options = {"env": environment() | {"SHARDWRIGHT_CACHE": str(cache)}, "text": True, "stdout": -1, "stderr": -1}
    started = [
        subprocess.Popen([*command, "--node-rank", str(host), "-m", "shardwright", *arguments], **options)  # type: ignore[call-overload]
        for host in range(hosts)
    ]
    meanwhile()
    done = [(process, *process.communicate(timeout=240)) for process in started]
    return [subprocess.CompletedProcess(process.args, process.returncode, out, err) for process, out, err in done]


@pytest.mark.slow
def test_links_of_two_hosts_are_measured_and_plans_take_them(tmp_path: Path) -> None:
    cache, file = tmp_path / "cache", tmp_path / "links.json"
    options = ("calibrate", "--links", "--minutes", "0.3", "-o", str(file))
    for done in torchrun(*options, cache=cache, hosts=2):
        assert done.returncode == 0, done.stderr
    measured = load_links(file)
    assert str(measured.cluster) == "2 × 2 cpu"
    for collective in TORCHREC_CALLS:
        assert None not in measured.links.of(collective)
        assert set(measured.errors[collective]) == {"intra", "inter"}
    assert [path.name for path in (cache / "links").iterdir()] == ["cpu-2x2.json"]  # and nothing half done


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_a_rank_of_torchrun_that_dies_ends_all_and_leaves_what_was_measured(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "links"

    def ranks() -> Iterator[tuple[int, Path]]:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                if f"SHARDWRIGHT_CACHE={folder.parent}".encode() in variables:
                    yield from ((int(name[5:]), process) for name in variables if name.startswith(b"RANK="))

    def state(process: Path) -> list[str]:
        return (process / "stat").read_text().rpartition(")")[2].split()

    def kill_rank_1() -> None:
        """Kill rank 1 while torchrun, which would end rank 0 at once, is stopped until rank 0 has ended by itself."""
        wait_until(lambda: list(folder.glob("*.partial")), "nothing was measured", 60)
        processes = dict(ranks())
        agent = int(state(processes[1])[1])
        os.kill(agent, signal.SIGSTOP)
        try:
            os.kill(int(processes[1].name), signal.SIGKILL)
            wait_until(lambda: state(processes[0])[0] == "Z", "rank 0 goes on", 60)
        finally:
            os.kill(agent, signal.SIGCONT)

    options = ("calibrate", "--links", "--minutes", "0.5")
    (done,) = torchrun(*options, cache=folder.parent, hosts=1, meanwhile=kill_rank_1)
    assert done.returncode != 0
    assert "finished measurements are kept: start all hosts again" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["cpu-1x2.partial"]


@pytest.mark.slow
@pytest.mark.torchrec
def test_modules_are_measured_on_the_ranks_of_the_links(cache_folder: Path) -> None:
    from shardwright.integrations.torchrec.steps.modules import ModuleProbe

    short = calibrate_links(devices=2, seconds=2, probe=ModuleProbe())  # no time for it
    assert short is not None
    assert short[0].links.modules == ModuleTimes()
    calibrated = calibrate_links(devices=2, seconds=6, probe=ModuleProbe(seconds=2.0))
    assert calibrated is not None
    modules = calibrated[0].links.modules
    times = (modules.pooled_ms, modules.sequence_ms, modules.shared_ms)
    assert min(times) >= 0  # what a step takes beyond its links; a worse minute for the links leaves nothing of one
    assert sum(times) > 0
    assert calibrated[0].links.exchange[0] is not None
    assert load_links(calibrated[1]).links == calibrated[0].links


@pytest.mark.slow
def test_links_here_survive_a_killed_rank(cache_folder: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    body = f"""if member.rank == 1 and request['rung']['size'] == 65536 and not Path({str(once)!r}).exists():
    Path({str(once)!r}).touch()
    os.kill(os.getpid(), signal.SIGKILL)"""
    faulty = GroupOptions(2, timeout_s=20.0, program=rank_program(body))
    with pytest.raises(MeasurementFailed, match=r"rank 1 was ended by SIGKILL.* run the same command again to go on"):
        calibrate_links(devices=2, seconds=2, group=faulty)
    assert [path.name for path in (cache_folder / "links").iterdir()] == ["cpu-1x2.partial"]
    seen: list[tuple[int, int]] = []
    calibrated = calibrate_links(
        devices=2, seconds=2, group=faulty, progress=lambda done, all_, _: seen.append((done, all_))
    )
    assert calibrated is not None
    assert seen[:3] == [(1, 128), (2, 128), (3, 128)]  # known at once
    assert calibrated[0].links.all_to_all[0] is not None
    assert calibrated[1] == cache_folder / "links" / "cpu-1x2.json"
    assert [path.name for path in calibrated[1].parent.iterdir()] == ["cpu-1x2.json"]
