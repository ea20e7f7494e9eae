from __future__ import annotations

import json
from pathlib import Path

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
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.sharding import Plan, Shard
from shardwright.task import Task
from tests.unit.measure.workers import FakeWorker


def later(work: DeviceWork, before: int) -> Visit:
    """Takes as long as there are lookups, and one ms longer each time."""
    forward = sum(shard.lookups for shard in work.works) + before + 1
    return Visit(forward, 2 * forward, 2, 1.0, 1.0, 0.0)


@pytest.fixture
def worker(worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(worker, "answer", later)
    return worker


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
    assert [sorted(len(work.works) for work in worker.asked[start : start + 4]) for start in (0, 4, 8)] == [
        [1, 1, 2, 2]
    ] * 3
    results = read_results(path)
    assert (results.rounds, results.errors) == (3, {})
    lookups = [sum(shard.lookups for shard in work.works) for work in requests.works]
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


def test_failures_are_noted_and_not_tried_again(
    worker: type[FakeWorker], requests: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, path = (
        {requests.works[1]: "the measuring process exited with 1", requests.works[2]: "too large"},
        tmp_path / "results.jsonl",
    )

    def answer(work: DeviceWork, before: int) -> Visit:
        if work in wrong:
            raise MeasurementFailed(wrong[work])
        return later(work, before)

    monkeypatch.setattr(worker, "answer", answer)
    assert measure_requests(requests, path, device="cpu", rounds=20) == 0
    assert [worker.asked.count(work) for work in requests.works] == [20, 1, 1, 20]
    results = read_results(path)
    assert set(results.times) == {0, 3}
    assert results.errors == {1: "the measuring process exited with 1", 2: "too large"}


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
