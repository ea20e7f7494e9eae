"""The test bed of network namespaces: limits, counters, and removal."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import hosts
from benchmarks.hosts.commands import run
from benchmarks.hosts.network import Network, bits_per_second
from tests.processes import alive, wait_until

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.sharding import Plan, Shard, dealt_ranges
from shardwright.task import Exchange, Table, Task, Topology

pytestmark = pytest.mark.netns
TIMEOUT_S = 90.0
HEAD = "import os, sys, json\n"


@pytest.fixture(scope="module", autouse=True)
def _possible():
    if reason := hosts.why_not():
        pytest.skip(reason)


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob(f"shardwright-bed-{os.getpid()}-*")}


def python(program: str) -> list[str]:
    return [sys.executable, "-c", HEAD + program]


def test_everything_is_removed_also_after_an_error():
    before = namespaces()
    with hosts.HostBed(hosts=3, devices_per_host=1) as bed:
        assert len(namespaces() - before) == 4
        assert len(bed.link_bytes()) == 3
    assert namespaces() == before
    with pytest.raises(KeyboardInterrupt), hosts.HostBed():
        raise KeyboardInterrupt
    assert namespaces() == before
    with pytest.raises(MeasurementFailed, match="tbf"), hosts.HostBed(rate="999999999999999999999gbit"):
        pass
    assert namespaces() == before


def test_ranks_get_their_places_as_from_torchrun():
    program = (
        "print(*(os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'GROUP_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'X')))"
    )
    with hosts.HostBed(hosts=2, devices_per_host=2) as bed:
        printed = bed.run(python(program), timeout_s=TIMEOUT_S, environment={"X": "y"})
    assert [line.split() for line in printed] == [[str(r), str(r % 2), str(r // 2), "4", "2", "y"] for r in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "timeout_s", "says"),
    [
        (
            "import time\nif os.environ['RANK'] != '1': time.sleep(60)\nsys.exit('no more')",
            30,
            "rank 1 exited with 1.*no more",
        ),
        (
            "import time, signal\nif os.environ['RANK'] != '1': time.sleep(60)\nos.kill(os.getpid(), signal.SIGKILL)",
            30,
            "rank 1 was ended by SIGKILL",
        ),
        ("import time\nif os.environ['RANK'] != '1': time.sleep(60)", 2, "ranks 0 did not end within 2 s"),
    ],
)
def test_a_rank_that_fails_or_hangs_ends_the_run(program, timeout_s, says):
    with hosts.HostBed(hosts=2, devices_per_host=1) as bed:
        with pytest.raises(MeasurementFailed, match=says):
            bed.run(python(program), timeout_s=timeout_s)
        left = [run("ip", "netns", "pids", name).split() for name in namespaces()]
    assert not any(left)  # the ranks that sleep were ended


BED = """
import time
from benchmarks import hosts
with hosts.HostBed(2, 1) as bed:
    print(*bed._network.namespaces, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_bed_that_is_ended_leaves_nothing_behind(number):
    process = subprocess.Popen(python(BED), stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    try:
        made = process.stdout.readline().split()
        assert made
        process.send_signal(number)
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if number == signal.SIGKILL:
        assert all((Path("/run/netns") / name).exists() for name in made)
        with hosts.HostBed(hosts=1, devices_per_host=1):  # the next bed clears up
            pass
    assert not any((Path("/run/netns") / name).exists() for name in made)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"hosts": 0}, "0 hosts of 2 devices"),
        ({"hosts": 65}, "from 1 to 64"),
        ({"devices_per_host": 0}, "devices at least 1"),
        ({"rate": "fast"}, "rate is 'fast', must be a positive number with kbit, mbit or gbit"),
        ({"rate": "0mbit"}, "must be a positive number"),
    ],
)
def test_arguments_that_make_no_bed(arguments, says):
    with pytest.raises(InvalidInput, match=says):
        hosts.HostBed(**arguments)


def collectives(bed, pattern: str, size: int) -> tuple[float, int]:
    """Median ms of an all-to-all, and the most bytes a host's link sent."""
    settings = json.dumps({"bytes": [size], "runs": 3, "patterns": [pattern]})
    before = bed.link_bytes()
    (result,) = json.loads(
        bed.run([sys.executable, "-m", "benchmarks.hosts.collectives", settings], timeout_s=TIMEOUT_S)[0]
    )
    sent = [(after - earlier).sent for after, earlier in zip(bed.link_bytes(), before, strict=True)]
    return sorted(result["ms"])[1], max(sent)


@pytest.mark.slow
def test_links_carry_what_they_are_limited_to_and_hosts_use_none_inside():
    size, rate = 1_000_000, "100mbit"
    with hosts.HostBed(hosts=2, devices_per_host=2, rate=rate) as bed:
        between, sent = collectives(bed, "between hosts", size)
        _, sent_inside = collectives(bed, "inside hosts", size)
    used = 2 * size * 8 / (between / 1e3) / bits_per_second(rate)
    assert used < 1.1  # a busy machine may use less, the limit allows no more
    payload = 4 * 2 * size  # four runs of two ranks
    assert payload < sent < 1.1 * payload + 100_000
    assert sent_inside < 100_000  # other messages of the ranks


def test_the_network_counts_from_nothing():
    network = Network(2, "1gbit")
    try:
        network.build()
        assert all(link.sent < 1000 for link in network.counters())
    finally:
        network.remove()


RUNTIME = """
from datetime import timedelta
import torch, torch.distributed as dist
from benchmarks.hosts.inside import link_bytes
from shardwright.runtime import ShardedEmbeddings
from shardwright.sharding import Plan
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
draw = torch.Generator().manual_seed(rank)
for path in sys.argv[1:]:
    module = ShardedEmbeddings(Plan.load(path), timeout=60.0)
    dist.barrier()
    before = link_bytes()
    module.traffic.reset()
    for _ in range(4):
        ids = (torch.rand(4000, generator=draw) ** 3 * 3000).long()
        found = module({"history": (ids, torch.tensor([1500, 0, 2500]))})["history"]
        found.values.sum().backward()
    dist.barrier()
    print(json.dumps([module.traffic.total("inter"), module.traffic.total("intra"), (link_bytes() - before).sent]))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_runtimes_meter_agrees_with_the_kernels_counters(tmp_path):
    table = Table("history", 3000, 32, 1000.0, pooled=False)
    columns, hot, warm = (0, 32), 20, 300
    tiers = [((hot, warm), [(0, 2), (1, 3)]), ((warm, 3000), [(0,), (1,), (2,), (3,)])]
    shards = [Shard("history", (0, hot), columns, (0, 1, 2, 3), "hotness")] + [
        Shard("history", rows, columns, devices, "hotness", tier)
        for tier, holders in tiers
        for rows, devices in zip(dealt_ranges(tier, len(holders)), holders, strict=True)
    ]
    exchanges = [Exchange(), Exchange("device", "touched"), Exchange("host", "cheaper")]
    paths = [str(tmp_path / f"{number}.json") for number in range(len(exchanges))]
    for exchange, path in zip(exchanges, paths, strict=True):
        task = Task((table,), Topology(hosts=2, devices_per_host=2, memory="64 MB"), 12, exchange=exchange)
        plan = Plan(task, shards)
        plan.check()
        plan.save(path)
    with hosts.HostBed(hosts=2, devices_per_host=2, rate="1gbit") as bed:
        printed = bed.run([*python(RUNTIME), *paths], timeout_s=TIMEOUT_S)
    ranks = [[json.loads(line) for line in text.splitlines()] for text in printed]
    for number in range(len(exchanges)):
        for host in (0, 1):
            metered = sum(ranks[rank][number][0] for rank in (2 * host, 2 * host + 1))
            counted = max(ranks[rank][number][2] for rank in (2 * host, 2 * host + 1))
            assert metered > 200_000
            assert metered < counted < 1.06 * metered + 50_000  # headers, acknowledgements, two barriers


@pytest.mark.slow
def test_a_rank_of_the_runtime_that_dies_ends_the_run(tmp_path):
    table = Table("history", 100, 8, 10.0, pooled=False)
    task = Task((table,), Topology(hosts=2, devices_per_host=1, memory="64 MB"), 12)
    halves = [Shard("history", rows, (0, 8), (i,)) for i, rows in enumerate([(0, 50), (50, 100)])]
    Plan(task, halves).save(tmp_path / "plan.json")
    dying = RUNTIME.replace("        ids =", "        if rank == 1: os.kill(os.getpid(), 9)\n        ids =")
    with (
        hosts.HostBed(hosts=2, devices_per_host=1) as bed,
        pytest.raises(MeasurementFailed, match="rank 1 was ended by SIGKILL"),
    ):
        bed.run([*python(dying), str(tmp_path / "plan.json")], timeout_s=TIMEOUT_S)


@pytest.mark.slow
def test_calibration_finds_the_limit():
    from benchmarks.hosts.calibration import calibrate

    with hosts.HostBed(hosts=2, devices_per_host=1, rate="400mbit") as bed:
        calibration = calibrate(bed, runs=2, timeout_s=TIMEOUT_S)
    _, inter = calibration.topology.link_bandwidth
    assert 0.6 < inter / (400e6 / 8) < 1.2
    assert (calibration.topology.hosts, calibration.topology.devices_per_host) == (2, 1)


def test_a_killed_beds_processes_are_ended_by_the_next():
    program = (
        "from benchmarks import hosts\nwith hosts.HostBed(1, 1) as bed:\n"
        "    print(*bed._network.namespaces, flush=True)\n    bed.run(['sleep', '61'], timeout_s=70)"
    )
    process = subprocess.Popen(python(program), stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    try:
        (namespace,) = process.stdout.readline().split()
        wait_until(lambda: run("ip", "netns", "pids", namespace), "nothing runs in the namespace", seconds=20)
        pids = run("ip", "netns", "pids", namespace).split()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with hosts.HostBed(hosts=1, devices_per_host=1):
        pass
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), "a process of the killed bed is left", seconds=20)
