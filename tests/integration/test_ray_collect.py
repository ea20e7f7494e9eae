"""Collecting on a real Ray cluster of two local workers, which are killed, stopped, and made to look like different machines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_collect import ONCE, REPOSITORY, SMALL, keys_in, most_visits, visits
from tests.processes import alive, descendants, named, wait_until
from tests.ray_cluster import PretendingCluster, claimed, needs_ray

from shardwright.cli.train import read_stores
from shardwright.cluster import Cluster
from shardwright.errors import ClusterFailed, InvalidInput, MeasurementFailed
from shardwright.hardware import fingerprint
from shardwright.measure.collect import collect
from shardwright.measure.remote import open_fleet
from shardwright.measure.samples import fingerprints, read_samples
from shardwright.measure.stock import CollectSummary
from shardwright.measure.visits import Progress

pytestmark = [needs_ray, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "shardwright"]
# Else Ray takes 127.0.0.1 in an address for the machine's outer one, where the cluster of a test does not listen.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def measured_in(store: Path) -> bool:
    try:
        return bool(visits(store))
    except InvalidInput:
        return False


def collect_on(
    cluster: Cluster,
    folder: Path,
    samples: int,
    backend: str = "embedding_bag",
    progress: Progress | None = None,
    **options: Any,
) -> CollectSummary:
    """Collect samples as small as those of a process by the machines of a cluster."""
    with open_fleet(cluster, options.get("device", "cpu"), backend=backend, policy=ONCE, checked_in=folder) as fleet:
        assert fleet.notes == []
        return collect(folder, samples=samples, progress=progress, fleet=fleet, **SMALL | options)


def check_whole(folder: Path, samples: int) -> None:
    """Every sample is there, and none was visited too often."""
    assert {number for number, repeat in keys_in(folder) if not repeat} == set(range(samples))
    made = Counter(number for number, _ in visits(folder))
    assert all(count <= most_visits(number) for number, count in made.items())


def test_work_lost_with_killed_processes_is_done_again(cluster: Cluster, tmp_path: Path) -> None:
    victims = ["ray::StatefulWorker", "shardwright.measure.worker"]
    killed: list[int] = []

    def kill(done: int, wanted: int, detail: str) -> None:
        """Kill a worker first, and a measuring process later, each in the midst of its work."""
        if len(killed) < len(victims) and done > 4 * (len(killed) + 1):
            # The oldest, since one that is killed while it starts ends the collection.
            for pid in sorted(named(os.getpid(), victims[len(killed)]))[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    summary = collect_on(cluster, tmp_path, 24, progress=kill)
    assert len(killed) == 2
    assert (summary.folder, summary.samples, summary.failed, summary.wanted) == (tmp_path, 24, 0, 24)
    assert fingerprints(tmp_path) == [fingerprint("cpu", "embedding_bag")]
    check_whole(tmp_path, 24)
    # A cluster measures the same sets as one machine, and either can continue the store.
    alone = collect(tmp_path / "alone", samples=4, backend="embedding_bag", **SMALL)
    columns = ["sample", "label", "batch_size", "optimizer", "shards"]
    both = [
        {row["label"]: row for row in read_samples(folder).select(columns).to_pylist()}
        for folder in (tmp_path, alone.folder)
    ]
    assert len(both[1]) == 4
    assert both[1].items() <= both[0].items()
    assert collect(tmp_path, samples=26, backend="embedding_bag", **SMALL).samples == 26
    check_whole(tmp_path, 26)


DRIVER = """
import sys
from shardwright.cluster import open_cluster
from tests.integration.test_ray_collect import Path, collect_on

def report(done, wanted, detail):
    print(done, flush=True)
    sys.stdin.readline()

with open_cluster(sys.argv[1]) as cluster:
    collect_on(cluster, Path(sys.argv[2]), 20, progress=report)
"""


def test_a_killed_driver_loses_nothing_that_it_has_heard_of(cluster: Cluster, tmp_path: Path) -> None:
    import ray

    collect(tmp_path, samples=6, backend="embedding_bag", **SMALL)
    before = visits(tmp_path)
    address = ray.get_runtime_context().gcs_address
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])} | LOOPBACK,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n" * 2)
    process.stdin.flush()
    # The third waits for an answer that does not come; 14 samples make four answers at least, of four samples at most.
    printed = [int(process.stdout.readline()) for _ in range(3)]
    heard = visits(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert printed[0] >= 6
    assert len(heard) >= len(before) + printed[-1] - 7
    assert visits(tmp_path) == heard
    assert before <= heard
    # The cluster goes on without that driver, and its workers end; so does the collection, from where it was.
    wait_until(lambda: not named(os.getpid(), "ray::StatefulWorker"), "workers outlive their driver")
    summary = collect_on(cluster, tmp_path, 20)
    after = visits(tmp_path)
    assert heard <= after
    assert summary.measured == len(after) - len(heard)
    check_whole(tmp_path, 20)


def test_ctrl_c_ends_everything_and_the_command_goes_on_later(tmp_path: Path) -> None:
    deep = tmp_path / "t" / ("d" * 60)  # too deep for sockets
    deep.mkdir(parents=True)
    store = tmp_path / "store"
    ray = ["--ray", "local:2"]
    command = [*COMMAND, "collect", "-o", str(store), "--json"]
    command += ["--memory", "16 MB", "--batch-size", "32", "--backend", "embedding_bag"]
    process = subprocess.Popen(
        [*command, *ray, "-n", "4000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(deep)},
    )
    begun = list[int]()
    try:
        wait_until(lambda: process.poll() is not None or measured_in(store), "nothing is measured")
        assert process.poll() is None, process.communicate()
        begun = descendants(process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
    out, said = process.communicate(timeout=240)
    assert len(begun) > 4
    assert process.returncode == 130, said
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert f"all samples measured so far are in {store}" in said
    assert "Traceback" not in said
    wait_until(lambda: not any(alive(pid) for pid in begun), "a process is left")
    assert [path.name for path in deep.iterdir() if "-core-" not in path.name] == []  # locks of cores stay
    measured = {number for number, _ in keys_in(store)}
    alone = subprocess.run(
        [*command, "-n", str(len(measured) + 1)], capture_output=True, text=True, check=False, timeout=300
    )
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["measured"] >= 1
    assert measured | {len(measured)} <= {number for number, _ in keys_in(store)}


def test_machines_of_another_kind_are_left_out_and_go_on_later(cluster: Cluster, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "claims").mkdir()
    mixed = PretendingCluster(cluster.address, partial(claimed, str(tmp_path / "claims"), os.getpid()))
    with open_fleet(mixed, backend="embedding_bag", policy=ONCE, checked_in=store) as fleet:
        (line,) = fleet.notes
        summary = collect(store, samples=6, fleet=fleet, **SMALL)
    assert (summary.samples, summary.folder) == (6, store)
    assert re.match(
        r"machines of the cluster differ: working on those with Processor [AB], .* alone, without .*Processor [AB]",
        line,
    )
    (hardware,) = fingerprints(store)
    other = ({"Processor A", "Processor B"} - {hardware["processor"]}).pop()

    def others(device: str, backend: str) -> dict[str, str]:
        return dict(fingerprint(device, backend)) | {"processor": other}

    assert collect_on(PretendingCluster(cluster.address, others), store, 6).measured >= 6
    with pytest.raises(InvalidInput, match="several kinds of hardware"):
        read_stores([store], hardware=None, allow_other_hardware=False)
    for processor in (other, hardware["processor"]):
        stores = read_stores([store], hardware=processor, allow_other_hardware=False)
        assert stores.machines[0]["processor"] == processor
        assert stores.samples().repeat.tolist().count(0) == 6


def test_errors_reach_the_caller_as_they_are(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(
        MeasurementFailed, match=r"sample \d+: .*optimizer 'adam' has no fused FBGEMM kernel on a CPU"
    ) as caught:
        collect_on(cluster, tmp_path / "adam", 2, "fbgemm", optimizer="adam")
    assert type(caught.value) is MeasurementFailed
    with pytest.raises(InvalidInput, match="no module 'nowhere_to_be_found'"):
        collect_on(cluster, tmp_path / "own", 2, "nowhere_to_be_found:Mine")
    with pytest.raises(InvalidInput, match="^backend"):
        collect_on(cluster, tmp_path / "none", 2, "nowhere_to_be_found")
    if not any(gpus for _, _, gpus in cluster.nodes()):
        with pytest.raises(ClusterFailed, match="no node lends a GPU with a free CPU core"):
            collect_on(cluster, tmp_path / "cuda", 2, device="cuda")


def test_the_command_refuses_conflicting_options(tmp_path: Path) -> None:
    def said(*options: str) -> tuple[int, str]:
        command = [*COMMAND, "collect", "-o", str(tmp_path / "store"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, done.stderr

    code, text = said("--ray", "local", "--collectives")
    assert code == 2
    assert "--ray does not apply to --collectives" in text
    code, text = said("--ray", "127.0.0.1:1")
    assert (code, text.count("\n")) == (1, 1)
    assert "error: --ray 127.0.0.1:1: nothing answers there" in text
    assert not (tmp_path / "store").exists()
