"""The loop of a collection, with a measuring process that follows a script."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure import visiting as module
from shardwright.measure.drawing import Drawer
from shardwright.measure.failures import MOST_IN_A_ROW, Failures, read_failures
from shardwright.measure.sampling import SampleSpace
from shardwright.measure.session import Measurement
from shardwright.measure.store import SampleStore, read_samples
from shardwright.measure.visiting import Visitor
from shardwright.task import Table

HARDWARE = {"device_kind": "cuda", "processor": "p", "cores": "1", "backend": "b", "torch": "t", "fbgemm": "f"}
SPACE = SampleSpace((Table("t", 100, 16, 2.0),), batch_sizes=(16,))

Answer = Callable[[tuple[int, ...]], Measurement]


class ScriptedWorker:
    """Answers as a function of the seeds says, and counts how often one is started."""

    def __init__(self, answer: Answer, log: list[str]) -> None:
        self.answer, self.alive, self.log = answer, True, log
        log.append("start")

    def measure(self, works: object, seeds: tuple[int, ...], optimizer: str) -> Measurement:
        try:
            return self.answer(seeds)
        except ProcessLookupError:
            self.alive = False
            raise MeasurementFailed("the measuring process exited") from None

    def close(self) -> None:
        self.log.append("close")


def visit(
    folder: Path, samples: int, answer: Answer, *, gpu: bool = True, stop_at: float = math.inf
) -> tuple[Visitor, list[str], list[int]]:
    log: list[str] = []
    left: list[int] = []
    with SampleStore(folder, HARDWARE, {}) as store, Drawer(SPACE, ahead=gpu) as drawer:
        start: Any = lambda: ScriptedWorker(answer, log)  # noqa: E731
        visitor = Visitor(drawer, store, Failures(folder) if gpu else None, start, stop_at)
        try:
            visitor.visit(
                [(sample, 0) for sample in range(samples)], lambda done, wanted, _: left.append(wanted - done)
            )
        finally:
            assert log.count("start") == log.count("close")
    return visitor, log, left


def quiet(_: tuple[int, ...]) -> Measurement:
    return Measurement(1.0, 2.0, 10, 1.0, {"runs": 0.5, "build": 0.25})


def failing(*samples: int, error: Exception) -> Answer:
    wrong = {SPACE.draw(sample).seeds for sample in samples}

    def answer(seeds: tuple[int, ...]) -> Measurement:
        if seeds in wrong:
            raise error
        return quiet(seeds)

    return answer


def test_a_failing_sample_is_noted_and_skipped_for_good(tmp_path: Path) -> None:
    visitor, log, left = visit(tmp_path, 5, failing(2, error=MeasurementFailed("too large")))
    assert visitor.measured == 5
    assert left[-1] == 0
    assert log == ["start", "close"]
    assert read_failures(tmp_path) == {(2, 0): "too large"}
    again, log, _ = visit(tmp_path, 6, quiet)
    assert again.measured == 1  # sample 5; the failed one is not tried again
    assert len(read_failures(tmp_path)) == 1


def test_on_a_cpu_a_failure_ends_the_collection(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="too large"):
        visit(tmp_path, 5, failing(2, error=MeasurementFailed("too large")), gpu=False)
    assert read_failures(tmp_path) == {}


def test_a_process_that_ends_is_started_anew(tmp_path: Path) -> None:
    visitor, log, _ = visit(tmp_path, 5, failing(1, 3, error=ProcessLookupError()))
    assert log == ["start", "close"] * 3
    assert set(read_failures(tmp_path)) == {(1, 0), (3, 0)}
    assert visitor.measured == 5


class Starts:
    """Starts workers, but as often as told fails to, after the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer, failing: int) -> None:
        self.answer, self.left, self.tried, self.pauses = answer, failing, 0, 0
        monkeypatch.setattr(module, "sleep", self.pause)

    def __call__(self) -> Any:
        self.tried += 1
        if self.tried > 1 and self.left:
            self.left -= 1
            raise MeasurementFailed("arena: 60 GB are needed, 2 GB are free")
        return ScriptedWorker(self.answer, [])

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses += 1

    def collect(self, folder: Path, samples: int) -> None:
        with SampleStore(folder, HARDWARE, {}) as store, Drawer(SPACE, ahead=False) as drawer:
            Visitor(drawer, store, Failures(folder), self, math.inf).visit([(i, 0) for i in range(samples)], None)


def test_a_process_that_cannot_start_is_no_fault_of_the_next_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, failing(1, error=ProcessLookupError()), failing=2)
    starts.collect(tmp_path, 5)
    assert set(read_failures(tmp_path)) == {(1, 0)}
    assert (starts.tried, starts.pauses) == (4, 2)
    assert sorted(read_samples(tmp_path)["sample"].to_pylist()) == [0, 2, 3, 4]


def test_processes_that_cannot_start_end_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, failing(1, error=ProcessLookupError()), failing=99)
    with pytest.raises(MeasurementFailed, match="3 attempts to start another one failed, the last with: arena: 60 GB"):
        starts.collect(tmp_path, 5)
    assert set(read_failures(tmp_path)) == {(1, 0)}
    assert starts.tried == 4
    visitor, _, _ = visit(tmp_path, 5, quiet)
    assert visitor.measured == 3  # all but the first, which is there, and the second, which ended the process


def test_a_first_process_that_cannot_start_says_why_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, quiet, failing=99)
    starts.tried = 1
    with pytest.raises(MeasurementFailed, match=r"^arena: 60 GB"):
        starts.collect(tmp_path, 5)
    assert (starts.tried, starts.pauses) == (2, 0)


def test_failures_one_after_another_are_the_machines(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="no more"):
        visit(tmp_path, 60, failing(*range(5, 60), error=MeasurementFailed("no more")))
    assert len(read_failures(tmp_path)) == MOST_IN_A_ROW


def test_failures_that_are_rare_are_no_reason_to_stop(tmp_path: Path) -> None:
    visitor, _, _ = visit(tmp_path, 60, failing(*range(0, 60, 2), error=MeasurementFailed("no")))
    assert visitor.measured == 60


def test_time_that_is_up_starts_nothing(tmp_path: Path) -> None:
    visitor, log, _ = visit(tmp_path, 5, quiet, stop_at=monotonic())
    assert (visitor.measured, log) == (0, [])


def test_it_stops_when_time_is_up_and_goes_on_later(tmp_path: Path) -> None:
    until = monotonic() + 3600

    def slow(seeds: tuple[int, ...]) -> Measurement:
        nonlocal until
        if seeds == SPACE.draw(2).seeds:
            visitor_stop[0].stop_at = 0.0
        return quiet(seeds)

    visitor_stop: list[Visitor] = []
    with SampleStore(tmp_path, HARDWARE, {}) as store, Drawer(SPACE, ahead=False) as drawer:
        start: Any = lambda: ScriptedWorker(slow, [])  # noqa: E731
        visitor_stop.append(Visitor(drawer, store, Failures(tmp_path), start, until))
        visitor_stop[0].visit([(sample, 0) for sample in range(5)], None)
    assert visitor_stop[0].measured == 3
    rest, _, _ = visit(tmp_path, 5, quiet)
    assert rest.measured == 2


def test_on_a_gpu_a_disturbed_sample_waits_for_the_others(tmp_path: Path) -> None:
    order: list[int] = []
    numbers = {SPACE.draw(sample).seeds: sample for sample in range(4)}

    def answer(seeds: tuple[int, ...]) -> Measurement:
        order.append(numbers[seeds])
        return Measurement(1.0, 2.0, 10, 1.5 if order.count(1) == 1 and numbers[seeds] == 1 else 1.0)

    visit(tmp_path, 4, answer)
    assert order == [0, 1, 2, 3, 1]


def test_what_was_measured_and_is_to_be_revisited_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    ratios = iter([1.0, 1.5, 1.5, 1.0, 1.5, 1.0])

    def answer(_: tuple[int, ...]) -> Measurement:
        return Measurement(1.0, 2.0, 10, next(ratios))

    with SampleStore(tmp_path, HARDWARE, {}) as store, Drawer(SPACE, ahead=False) as drawer:
        start: Any = lambda: ScriptedWorker(answer, [])  # noqa: E731
        visitor = Visitor(drawer, store, None, start, math.inf)
        visitor.visit([(sample, 0) for sample in range(3)], lambda *found: told.append(found))
    why = "to be revisited: the machine was not quiet"
    assert told == [
        (1, 3, ""),
        (2, 3, f"1 {why}"),
        (3, 3, f"2 {why}"),
        (3, 3, f"1 {why}"),
        (3, 3, f"1 {why}"),
        (3, 3, ""),
    ]


def test_where_the_time_goes_is_added_up(tmp_path: Path) -> None:
    visitor, _, _ = visit(tmp_path, 4, quiet)
    assert (visitor.spent["runs"], visitor.spent["build"]) == (2.0, 1.0)
    assert {"start", "waiting for a draw", "talking"} <= set(visitor.spent)


def test_samples_drawn_ahead_are_the_same() -> None:
    with Drawer(SPACE, ahead=True) as ahead, Drawer(SPACE, ahead=False) as plain:
        ahead.expect([3, 4, 3])
        for sample in (3, 4, 9):
            assert ahead.get(sample) == plain.get(sample)
        assert len(ahead.get(3).shards) == len(SPACE.draw(3).works)


def test_a_line_of_failures_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    failures = Failures(tmp_path)
    failures.add((3, 0), MeasurementFailed("why"))
    with (tmp_path / "failures.jsonl").open("a") as file:
        file.write('\n{"sample": 4, "rep')
    assert read_failures(tmp_path) == {(3, 0): "why"}
    again = Failures(tmp_path)
    assert (3, 0) in again
    again.add((5, 1), MeasurementFailed("because"))
    assert read_failures(tmp_path) == {(3, 0): "why", (5, 1): "because"}
