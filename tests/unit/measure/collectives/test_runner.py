from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.group import MOST_FAILURES, GroupFailed, GroupHung, GroupOptions, RankGroup, Runner
from shardwright.measure.collectives.sampling import ALL_TO_ALL, CollectiveSample
from shardwright.measure.collectives.timing import DeviceTimes

TIMES = DeviceTimes((1.0, 1.0), (1.0, 1.0))
KILLED, HUNG = GroupFailed("rank 1 was ended by SIGKILL"), GroupHung("took longer than 60 s")
SAMPLE = CollectiveSample(0, ALL_TO_ALL, 8, (4, 4), (0.0, 0.0))


class ScriptedGroup(RankGroup):
    """Does what a script says, one entry a measurement; counts how many of its kind are started and ended."""

    script: Sequence[Any] = ()
    started = ended = 0

    def __init__(self, options: GroupOptions) -> None:
        type(self).started += 1
        if options.device == "broken":
            raise GroupFailed("rank 0 exited with 1")

    def measure(self, sample: CollectiveSample) -> DeviceTimes:
        happens = next(self.script)  # type: ignore[call-overload]
        if isinstance(happens, Exception):
            raise happens
        return TIMES

    def close(self) -> None:
        type(self).ended += 1


def group(*script: Any) -> type[ScriptedGroup]:
    return type("Scripted", (ScriptedGroup,), {"script": iter(script), "started": 0, "ended": 0})


def test_a_group_serves_many_samples_and_is_started_when_needed() -> None:
    kind = group("ok", "ok", "ok")
    with Runner(GroupOptions(2), kind) as runner:
        assert kind.started == 0
        assert [runner.measure(SAMPLE) for _ in range(3)] == [TIMES] * 3
    assert (kind.started, kind.ended) == (1, 1)


def test_a_sample_during_which_a_rank_dies_is_tried_once_more() -> None:
    kind = group(KILLED, "ok", KILLED, KILLED, "ok")
    with Runner(GroupOptions(2), kind) as runner:
        assert [runner.measure(SAMPLE) for _ in range(3)] == [TIMES, None, TIMES]
    assert (kind.started, kind.ended) == (4, 4)


def test_a_sample_that_hangs_is_not_tried_again() -> None:
    kind = group(HUNG, "ok")
    with Runner(GroupOptions(2), kind) as runner:
        assert [runner.measure(SAMPLE) for _ in range(2)] == [None, TIMES]
    assert (kind.started, kind.ended) == (2, 2)


def test_failures_in_a_row_end_it_and_a_success_forgives_them() -> None:
    with Runner(GroupOptions(2), group(*[HUNG] * 4, "ok", *[HUNG] * 4, "ok")) as runner:
        assert [runner.measure(SAMPLE) for _ in range(10)] == [None] * 4 + [TIMES] + [None] * 4 + [TIMES]
    kind = group(*[HUNG] * MOST_FAILURES)
    with Runner(GroupOptions(2), kind) as runner:
        for _ in range(MOST_FAILURES - 1):
            assert runner.measure(SAMPLE) is None
        with pytest.raises(MeasurementFailed, match=r"2 processes failed 5 times in a row, .* took longer than 60 s"):
            runner.measure(SAMPLE)
    assert kind.started == kind.ended == MOST_FAILURES


def test_a_group_that_never_starts_is_given_up() -> None:
    kind = group()
    with (
        Runner(GroupOptions(2, "broken"), kind) as runner,
        pytest.raises(MeasurementFailed, match="5 times in a row, at last because rank 0 exited with 1"),
    ):
        runner.measure(SAMPLE)
    assert kind.started == MOST_FAILURES


def test_what_cannot_be_measured_here_is_not_tried_again() -> None:
    kind = group(MeasurementFailed("4 ranks on this machine need a GPU each, it has 1"), "ok")
    with Runner(GroupOptions(2), kind) as runner, pytest.raises(MeasurementFailed, match="need a GPU each"):
        runner.measure(SAMPLE)
    assert kind.started == 1
