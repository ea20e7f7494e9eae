"""Jobs on a real Ray cluster of two local workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from shardwright.cluster import Cluster, Pool, open_cluster
from shardwright.errors import ClusterFailed, InvalidPlan
from tests.processes import named, wait_until
from tests.ray_cluster import die_once, local_cluster, needs_ray

pytestmark = [needs_ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    yield from local_cluster()


@pytest.fixture(scope="class")
def pool(cluster: Cluster) -> Iterator[Pool[list[int]]]:
    with cluster.pool(list) as pool:
        yield pool


def run(cluster: Cluster, function: Callable[[Any], Any], jobs: Iterable[Any], **options: Any) -> list[tuple[int, Any]]:
    with cluster.pool(list, **options) as pool:
        return sorted(pool.map(partial(_without_state, function), jobs))


def square(number: int) -> int:
    return number * number


def die_at(marker: str, number: int) -> int:
    if number == 3:
        die_once(marker)
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise InvalidPlan(f"number {number}: is not to my taste; take another one")


def note(state: list[int], number: int) -> tuple[int, list[int]]:
    state.append(number)
    sleep(0.05)
    return os.getpid(), list(state)


def wait_at(marker: str, state: list[int], number: int) -> int:
    with Path(marker).open("a", encoding="utf-8") as begun:
        begun.write(f"{number} ")
    sleep(0.05 if number else 20)
    return number


def test_each_job_is_done_once_and_results_come_with_their_job(cluster: Cluster) -> None:
    assert cluster.local
    assert [(cores, gpus >= 0) for _, cores, gpus in cluster.nodes()] == [(2, True)]
    assert run(cluster, square, range(7)) == [(number, number * number) for number in range(7)]
    assert run(cluster, square, []) == []


def test_a_job_whose_worker_dies_is_done_again(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with cluster.pool(list) as pool:
        done = sorted(pool.map(partial(_without_state, partial(die_at, str(tmp_path / "died"))), range(8)))
    assert done == [(number, number) for number in range(8)]
    assert (tmp_path / "died").exists()
    assert pool.given_up == []
    assert capfd.readouterr().out == ""  # stdout is for results


def _without_state(function: Callable[[Any], Any], _: list[int], job: Any) -> Any:
    return function(job)


def test_a_job_that_kills_its_workers_ends_the_run_by_name(cluster: Cluster) -> None:
    with pytest.raises(ClusterFailed, match=r"job 0 \(17\): its worker died 2 times"):
        run(cluster, die, [17], retries=1)


def test_an_error_of_a_job_reaches_the_caller_as_it_is(cluster: Cluster) -> None:
    with pytest.raises(InvalidPlan) as caught:
        run(cluster, refuse, [4])
    assert type(caught.value) is InvalidPlan
    assert str(caught.value) == "number 4: is not to my taste; take another one"
    with pytest.raises(FileNotFoundError):
        run(cluster, os.stat, ["/nowhere/to/be/found"])


def test_every_worker_is_asked_and_those_that_are_kept_go_on(cluster: Cluster) -> None:
    with cluster.pool(list) as pool:
        first = pool.each(note, 1)
        assert [seen for _, seen in first] == [[1], [1]]
        pool.keep([1])
        assert pool.size == 1
        ((_, (pid, seen)),) = pool.map(note, [2])
        assert (pid, seen) == (first[1][0], [1, 2])
        with pytest.raises(ClusterFailed, match="a worker cannot do its first job"):
            pool.each(partial(_without_state, die), 1)


def test_jobs_without_room_on_the_nodes_raise(cluster: Cluster) -> None:
    if not any(gpus for _, _, gpus in cluster.nodes()):
        with pytest.raises(ClusterFailed, match=r"--ray local:2: no node lends a GPU"):
            cluster.places("cuda")
    with pytest.raises(ClusterFailed, match="no worker is left"), cluster.pool(list, places=["00" * 28]):
        pass


def test_workers_that_find_no_room_in_time_are_given_up(cluster: Cluster) -> None:
    late = cluster.pool(list, cluster.places()[:1], start_s=1.0)
    with cluster.pool(list), pytest.raises(ClusterFailed, match=r"no worker is left.*did not start within 1 s"), late:
        pass


def test_one_process_has_one_cluster(cluster: Cluster) -> None:
    with pytest.raises(ClusterFailed, match="connected to a cluster already"), open_cluster("local"):
        pass


def test_nobody_else_can_reach_it(cluster: Cluster) -> None:
    import ray

    (node,) = ray.nodes()
    ports = {node["NodeManagerPort"], node["ObjectManagerPort"]}
    listening: dict[int, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            host, _, port = local.partition(":")
            if state == "0A" and int(port, 16) in ports:
                listening[int(port, 16)] = host
    assert listening.keys() == ports
    assert all(host.endswith("0100007F") for host in listening.values())  # 127.0.0.1, also as an IPv6 address
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert len(os.environ["RAY_AUTH_TOKEN"]) >= 32


class TestOnePool:
    """One pool for several tests, which holds all cores as long as it lives."""

    def test_a_worker_keeps_its_state(self, pool: Pool[list[int]]) -> None:
        states: dict[int, list[int]] = {}
        for _, (pid, seen) in pool.map(note, range(6)):
            states[pid] = max(states.get(pid, []), seen, key=len)
        assert sorted(number for seen in states.values() for number in seen) == list(range(6))
        assert len(states) <= 2

    def test_a_job_is_taken_only_when_a_worker_is_free(self, pool: Pool[list[int]]) -> None:
        taken = 0

        def endless() -> Iterator[int]:
            nonlocal taken
            while True:
                taken += 1
                yield taken

        for done, _ in enumerate(pool.map(note, endless()), 1):
            assert taken <= done + 2
            if done == 6:
                break

    def test_work_that_is_left_is_killed_and_the_pool_goes_on(self, pool: Pool[list[int]], tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        jobs = pool.map(partial(wait_at, str(marker)), [0, 1, 2])
        assert next(jobs)[1] in (1, 2)
        wait_until(lambda: "0 " in marker.read_text(), "the long job did not begin")
        jobs.close()
        others = [1, 2, 3] * 20  # enough for a killed worker to start anew
        assert sorted(result for _, result in pool.map(partial(wait_at, str(marker)), others)) == sorted(others)
        assert marker.read_text().split().count("0") == 1  # unlike the job of a worker that died, it is not done again

    def test_the_test_finds_the_workers_of_its_own_cluster(self, cluster: Cluster, pool: Pool[list[int]]) -> None:
        wait_until(lambda: len(named(os.getpid(), "ray::StatefulWorker")) == 2, "there are two workers")
