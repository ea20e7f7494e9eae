from __future__ import annotations

import pytest

from shardwright.measure.device_work import DeviceWork
from shardwright.measure.pace import VisitSeconds
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

SMALL, LARGE = (
    DeviceWork((ShardWork(rows, 64, 512, 1000.0, True, AccessProfile.uniform(rows)),), (0,), "sgd")
    for rows in (1000, 50_000_000)
)


def test_large_tables_are_visited_with_more_batches_on_a_cpu_and_not_on_a_gpu() -> None:
    cpu, gpu = (VisitSeconds(kind).expected([SMALL, LARGE], [1.0, 1.0]) for kind in ("cpu", "cuda"))
    assert cpu[1] > 2 * cpu[0]
    assert gpu[0] == gpu[1]


@pytest.mark.parametrize("visits", [1, 3, 12])
def test_forecasts_follow_the_visits_so_far(visits: int) -> None:
    pace = VisitSeconds()
    guess = pace.expected([SMALL], [1.0])[0]
    for _ in range(visits):
        pace.saw(SMALL, 1.0, 10 * guess)
    assert pace.expected([SMALL], [1.0])[0] == pytest.approx(10 * guess)
    assert pace.of_works([SMALL], [None])[0] == pytest.approx(10 * guess)
