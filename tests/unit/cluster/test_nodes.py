"""Jobs on a real Ray cluster of two nodes on this machine, one of which is lost."""

from __future__ import annotations

from time import sleep

import pytest

from shardwright.cluster import connection, open_cluster
from tests.ray_cluster import needs_ray

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""Ray finds within seconds that a node is gone; usually half a minute."""


def square(state: list[int], number: int) -> int:
    sleep(0.3)
    return number * number


@needs_ray
@pytest.mark.slow
def test_jobs_of_a_node_that_is_lost_are_done_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", connection._TOKEN)  # that of other tests: Ray reads it once
    from ray.cluster_utils import Cluster as Nodes

    with connection.session_folder() as folder:
        monkeypatch.setenv("RAY_TMPDIR", str(folder))
        head = {"num_cpus": 1, "_system_config": QUICK}
        nodes = Nodes(initialize_head=True, head_node_args=head)
        try:
            lost = nodes.add_node(num_cpus=1)
            with open_cluster(nodes.address) as cluster, cluster.pool(list) as pool:
                assert pool.size == 2
                done = []
                for finished in pool.map(square, range(12)):
                    done.append(finished)
                    if len(done) == 3:
                        nodes.remove_node(lost, allow_graceful=False)
                assert sorted(done) == [(number, number * number) for number in range(12)]
                assert pool.size == 1
                (line,) = pool.given_up
                assert line.startswith("a worker is given up, it died: ")
        finally:
            nodes.shutdown()
