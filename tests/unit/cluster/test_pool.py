"""Pools that nobody works in; those of real workers are in test_jobs.py."""

from __future__ import annotations

import pytest

from shardwright.cluster import Cluster, Pool
from shardwright.errors import ClusterFailed, InvalidInput

CLUSTER = Cluster("local", 2)


def pool_without_places() -> Pool[list[int]]:
    return CLUSTER.pool(list, places=[])


def test_a_pool_without_places_is_refused_where_it_is_entered() -> None:
    with pytest.raises(ClusterFailed, match="--ray local: the pool has no worker.*0 places; name at least one node"):  # noqa: SIM117
        with pool_without_places():
            pass


def test_where_nobody_works_nothing_is_waited_for() -> None:
    pool = pool_without_places()
    with pytest.raises(ClusterFailed, match="no worker"):
        pool.wait()
    with pytest.raises(ClusterFailed, match="no worker"):
        next(pool.map(len, [[1]]))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_refused(workers: int) -> None:
    message = f"workers is {workers}, must be at least 1, or None for as many as there is room for"
    with pytest.raises(InvalidInput, match=message):
        CLUSTER.pool(list, workers=workers)
    for jobs in ([], [1], iter([1])):
        with pytest.raises(InvalidInput, match=message):
            next(CLUSTER.run(abs, jobs, workers=workers))
