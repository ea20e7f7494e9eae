from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.plan_requests import (
    Requests,
    load_requests,
    measure_requests,
    read_results,
    requests_of,
    save_requests,
)

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import measurer
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.timing import TimingPolicy
from shardwright.sharding import Plan, Shard, ShardWork
from shardwright.task import Task

ONCE = TimingPolicy(warm_up=0, passes=1, runs=1)


class FakeWorker:
    """Takes as long as there are lookups, and one ms longer each time; dies of what `deadly` names."""

    asked: list[tuple[ShardWork, ...]] = []  # noqa: RUF012
    starts = 0
    deadly: Any = None
    refused: Any = None

    def __init__(self, options: Any) -> None:
        FakeWorker.starts += 1
        self.alive = True

    def visit(self, work: DeviceWork) -> Visit:
        FakeWorker.asked.append(work.works)
        if work.works == FakeWorker.deadly:
            self.alive = False
            raise MeasurementFailed("the measuring process exited with 1")
        if work.works == FakeWorker.refused:
            raise MeasurementFailed("too large")
        forward = sum(one.lookups for one in work.works) + FakeWorker.asked.count(work.works)
        return Visit(forward, 2 * forward, 2, 1.0, 1.0, 0.0)

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(measurer, "Worker", FakeWorker)
    FakeWorker.asked, FakeWorker.starts, FakeWorker.deadly, FakeWorker.refused = [], 0, None, None
    return FakeWorker


@pytest.fixture
def requests(small_task: Task) -> Requests:
    """Two plans of four devices; one device holds the same in both."""
    plans = [
        Plan(small_task, [Shard.whole(table, rank) for table, rank in zip(small_task.tables, ranks, strict=True)])
        for ranks in ((0, 0, 1, 3), (2, 2, 0, 0))
    ]
    return requests_of(plans)


def test_devices_with_the_same_work_share_a_request(requests: Requests) -> None:
    assert requests.plans == ((0, 1, None, 2), (3, None, 0, None))
    assert [len(work.works) for work in requests.works] == [2, 1, 1, 2]


def test_a_file_holds_all_of_it(requests: Requests, tmp_path: Path) -> None:
    save_requests(requests, tmp_path / "requests.json.gz")
    assert load_requests(tmp_path / "requests.json.gz") == requests
    first = (tmp_path / "requests.json.gz").read_bytes()
    save_requests(requests, tmp_path / "requests.json.gz")
    assert (tmp_path / "requests.json.gz").read_bytes() == first


def test_each_work_is_measured_in_every_round(worker: type[FakeWorker], requests: Requests, tmp_path: Path) -> None:
    path, seen = tmp_path / "results.jsonl", []
    missing = measure_requests(
        requests, path, device="cpu", rounds=3, progress=lambda done, wanted, _: seen.append((done, wanted))
    )
    assert missing == 0
    assert seen == [(done, 12) for done in range(1, 13)]
    assert [sorted(map(len, worker.asked[start : start + 4])) for start in (0, 4, 8)] == [[1, 1, 2, 2]] * 3
    results = read_results(path)
    assert (results.rounds, results.errors) == (3, {})
    lookups = [sum(work.lookups for work in one.works) for one in requests.works]
    for position, total in enumerate(lookups):
        np.testing.assert_allclose(results.times[position], [total + 2, 2 * (total + 2)])  # the median


def test_stopped_measurements_resume(worker: type[FakeWorker], requests: Requests, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert measure_requests(requests, path, device="cpu", rounds=3, seconds=0) == 12
    assert measure_requests(requests, path, device="cpu", rounds=1) == 0
    cut = path.read_text()[:-10]  # the fourth measurement was cut short
    path.write_text(cut)
    worker.asked.clear()
    assert measure_requests(requests, path, device="cpu", rounds=2) == 0
    assert len(worker.asked) == 5
    assert read_results(path).rounds == 2


def test_failures_are_noted_and_the_process_started_anew(
    worker: type[FakeWorker], requests: Requests, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    worker.deadly, worker.refused = requests.works[1].works, requests.works[2].works
    assert measure_requests(requests, path, device="cpu", rounds=2) == 0
    assert worker.starts in (1, 2)
    results = read_results(path)
    assert set(results.times) == {0, 3}
    assert results.errors == {1: "the measuring process exited with 1", 2: "too large"}


def test_a_work_that_fails_is_not_tried_again(worker: type[FakeWorker], requests: Requests, tmp_path: Path) -> None:
    worker.deadly = requests.works[0].works
    assert measure_requests(Requests(requests.works[:1], ()), tmp_path / "results.jsonl", device="cpu", rounds=20) == 0
    assert worker.starts == 1
    assert read_results(tmp_path / "results.jsonl").errors == {0: "the measuring process exited with 1"}


def test_results_of_other_hardware_are_not_added_to(
    worker: type[FakeWorker], requests: Requests, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"hardware": {"device_kind": "cuda"}}) + "\n")
    with pytest.raises(InvalidInput, match="was measured on"):
        measure_requests(requests, path, device="cpu")
    (tmp_path / "empty").write_text("")
    for name in ("missing", "empty"):
        with pytest.raises(InvalidInput, match="holds no measured plans"):
            read_results(tmp_path / name)


@pytest.mark.slow
def test_real_kernels_run(requests: Requests, tmp_path: Path) -> None:
    save_requests(requests, tmp_path / "requests.json.gz")
    loaded = load_requests(tmp_path / "requests.json.gz")
    options: dict[str, Any] = {"device": "cpu", "backend": "embedding_bag", "rounds": 1, "policy": ONCE}
    assert measure_requests(loaded, tmp_path / "results.jsonl", **options) == 0
    results = read_results(tmp_path / "results.jsonl")
    assert set(results.times) == {0, 1, 2, 3}
    assert all(min(times) > 0 for times in results.times.values())
