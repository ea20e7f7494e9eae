"""The loop of a collection, with a measuring process that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure import collect as module
from shardwright.measure import measurer, stock
from shardwright.measure.campaign import MOST_FAILED
from shardwright.measure.collect import collect
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.samples import read_samples
from shardwright.measure.stock import Collection, CollectSummary, Stock, seconds_or_default, summary_text
from shardwright.measure.store import SampleStore
from shardwright.task import Table
from tests.unit.measure.rows import HERE
from tests.unit.measure.workers import FakeWorker

ARENA = 2_000_000
POOL = (Table("t", 100, 16, 2.0),)
SMALL: dict[str, Any] = {"batch_sizes": (16,), "pool": POOL, "arena_bytes": ARENA, "optimizer": "sgd", "space": "usual"}
SPACE = Collection(1, **SMALL).sets(ARENA)

Script = Callable[[int, int], Visit]
"""From the number of a set and of earlier visits to it."""


def quiet(number: int, before: int) -> Visit:
    return Visit(1.0 + number, 2.0, 3, 1.0, 1.0, 0.0, {"runs": 0.5})


def disturbed(number: int, before: int) -> Visit:
    return Visit(5.0 - before, 2.0, 3, 2.0 - before / 10, 1.0, 0.0)


@pytest.fixture
def scripted(worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[int]]:
    """Measures by a script; returns the numbers of the sets that are visited, as they come."""
    numbers = {SPACE.draw(number).work: number for number in range(80)}
    monkeypatch.setattr(module, "fingerprint", lambda device, backend: HERE | {"device_kind": device})
    monkeypatch.setattr(module, "check_backend", lambda name: None)

    def follow(script: Script) -> list[int]:
        order: list[int] = []

        def answer(work: DeviceWork, before: int) -> Visit:
            order.append(numbers[work])
            return script(numbers[work], order.count(numbers[work]) - 1)

        monkeypatch.setattr(worker, "answer", staticmethod(answer))
        return order

    return follow


def failing(*wrong: int) -> Script:
    def answer(number: int, before: int) -> Visit:
        if number in wrong:
            raise MeasurementFailed("too large")
        return quiet(number, before)

    return answer


def run(folder: Path, samples: int, **options: Any) -> CollectSummary:
    return collect(folder, samples=samples, **{**SMALL, "backend": "embedding_bag", **options})


def test_every_20th_set_is_visited_again(tmp_path: Path, scripted: Callable[[Script], list[int]]) -> None:
    order = scripted(quiet)
    summary = run(tmp_path, 45)
    assert order == [*range(45), 0, 20, 40]
    assert (summary.samples, summary.measured, summary.disturbed, summary.repeat_mean) == (45, 48, 0.0, 0.0)
    assert run(tmp_path, 45).measured == 0
    assert run(tmp_path, 46).measured == 1
    table = read_samples(tmp_path)
    assert table["repeat"].to_pylist().count(1) == 3
    lines = summary_text(summary).splitlines()
    assert lines[0].startswith("45 samples in")
    assert sum("ms a measurement" in line for line in lines) == len(summary.spent) + 1


def test_disturbed_sets_are_visited_again_after_the_others(
    tmp_path: Path, scripted: Callable[[Script], list[int]]
) -> None:
    order = scripted(lambda number, before: (disturbed if number in (3, 4) else quiet)(number, before))
    summary = run(tmp_path, 6)
    assert order == [0, 1, 2, 3, 4, 5, 0, 3, 4, 3, 4]
    assert summary.disturbed == pytest.approx(2 / 6)
    assert run(tmp_path, 6).measured == 0
    rows = read_samples(tmp_path).to_pylist()
    quietest = [row["forward_ms"] for row in rows if row["label"].endswith((":3", ":4"))]
    assert quietest == [3.0, 3.0]


def test_disturbed_sets_wait_a_minute(
    tmp_path: Path, scripted: Callable[[Script], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "AGAIN_AFTER_S", 0.0)
    order = scripted(lambda number, before: (disturbed if number == 1 else quiet)(number, before))
    run(tmp_path, 4)
    assert order == [0, 0, 1, 1, 1, 2, 3]
    order.clear()
    run(tmp_path / "gpu", 4, device="cuda")  # whose noise is its own
    assert order == [0, 1, 2, 3, 0, 1, 1]


def test_on_a_gpu_a_failing_set_is_noted_and_skipped_for_good(
    tmp_path: Path, scripted: Callable[[Script], list[int]]
) -> None:
    scripted(failing(2))
    summary = run(tmp_path, 5, device="cuda")
    assert (summary.samples, summary.failed, summary.failure) == (4, 1, "too large")
    assert "skipped, since they cannot be measured: 1 sample, the first: too large" in summary_text(summary)
    order = scripted(quiet)
    assert run(tmp_path, 6, device="cuda").measured == 1
    assert order == [5]


def test_on_a_cpu_a_failure_ends_the_collection(tmp_path: Path, scripted: Callable[[Script], list[int]]) -> None:
    scripted(failing(2))
    with pytest.raises(MeasurementFailed, match="too large"):
        run(tmp_path, 5)
    order = scripted(quiet)
    run(tmp_path, 5)
    assert order == [0, 2, 3, 4]


def test_failures_one_after_another_are_the_machines(tmp_path: Path, scripted: Callable[[Script], list[int]]) -> None:
    order = scripted(failing(*range(1, 60)))
    with pytest.raises(MeasurementFailed, match="too large"):
        run(tmp_path, 60, device="cuda")
    assert len(order) == 1 + MOST_FAILED
    order = scripted(failing(*range(0, 80, 2)))
    assert run(tmp_path / "rare", 60, device="cuda").failed == 30


def test_a_process_that_cannot_start_is_no_fault_of_a_set(
    tmp_path: Path, scripted: Callable[[Script], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(quiet)

    def refused(options: object) -> NoReturn:
        raise MeasurementFailed("arena: 60 GB are needed")

    monkeypatch.setattr(measurer, "Worker", refused)
    with pytest.raises(MeasurementFailed, match="arena: 60 GB"):
        run(tmp_path, 5, device="cuda")
    with SampleStore(tmp_path, HERE | {"device_kind": "cuda"}) as kept:
        assert kept.failures() == {}


def test_interrupted_collections_go_on(tmp_path: Path, scripted: Callable[[Script], list[int]]) -> None:
    order = scripted(quiet)

    def stop(done: int, wanted: int, detail: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 6, progress=stop)
    assert order == [0, 1, 2]
    nothing = run(tmp_path, 6, seconds=0)
    assert (nothing.samples, nothing.measured) == (3, 0)
    assert "missing: 3 samples; the same command again goes on" in summary_text(nothing)
    run(tmp_path, 6)
    assert order == [0, 1, 2, 0, 3, 4, 5]


def test_collections_share_a_store(tmp_path: Path, scripted: Callable[[Script], list[int]]) -> None:
    scripted(quiet)
    run(tmp_path, 3)
    other = Collection(2, seed=1, **SMALL)
    with Stock(tmp_path, HERE, other, ARENA, ahead=True) as second:
        assert (second.left, second.unseen) == (2, 2)
        first, following = islice(second.queue(float("inf"), ahead=1), 2)
        assert [first.work, following.work] == [other.sets(ARENA).draw(number).work for number in range(2)]
        second.store.add(first, quiet(0, 0))
        second.saw(first, quiet(0, 0))
        assert (second.left, second.unseen) == (1, 0)  # every 20th set is visited twice
    assert len(set(read_samples(tmp_path)["label"].to_pylist())) == 4


def test_only_a_gpu_has_a_limit_by_itself():
    assert seconds_or_default(None, "cpu") is None
    assert seconds_or_default(None, "cuda") == 1400
    assert seconds_or_default(3.0, "cuda") == 3.0
