"""Pools that nobody works in; those of real workers are in test_jobs.py."""

from __future__ import annotations

import pytest

from shardwright.cluster import Cluster, Pool
from shardwright.errors import ClusterFailed


def test_a_pool_without_places_is_refused_on_entry_and_does_no_jobs() -> None:
    pool: Pool[list[int]] = Cluster("local").pool(list, places=[])
    with pytest.raises(ClusterFailed, match="--ray local: no worker is left of 0"), pool:
        pass
    with pytest.raises(ClusterFailed, match="--ray local: no worker is left of 0"):
        next(pool.map(len, [[1]]))  # type: ignore[arg-type]


class MadeUp(Cluster):
    """Two machines with GPUs, and one that lends nothing."""

    def nodes(self) -> list[tuple[str, int, int]]:
        return [("a", 4, 2), ("b", 1, 8), ("head", 0, 1)]


@pytest.mark.parametrize(
    ("address", "device", "places"),
    [
        ("auto", None, "aaaab"),
        ("auto", "cpu", "ab"),  # workers of one machine would disturb each other
        ("auto", "cuda", "aab"),
        ("local:4", "cpu", "aaaab"),  # the user states how many
    ],
)
def test_a_machine_has_as_many_workers_as_it_lends_cores_and_measures_by_one(
    address: str, device: str | None, places: str
) -> None:
    assert MadeUp(address).places(device) == list(places)
