"""Groups of real processes that only pretend to measure: what matters is how they are watched and ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.collect import collect_collectives, keys_of, new_collection, read_collectives
from shardwright.measure.collectives.group import MOST_FAILURES, GroupFailed, GroupHung, GroupOptions, RankGroup, Runner
from shardwright.measure.collectives.rank import DeviceTimes
from shardwright.measure.collectives.sampling import ALL_TO_ALL, CollectiveSample
from shardwright.task import AccessProfile, Table

SAMPLE = CollectiveSample(7, ALL_TO_ALL, 8, (4, 4), (0.0, 1.5))

PRETENDER = """
import json, os, signal, sys, time
rank = json.loads(sys.argv[1])["rank"]
if rank == 0:
    print('{{"ready": true}}', flush=True)
for line in sys.stdin:
    sample = json.loads(line)
    {body}
    if rank == 0:
        print(json.dumps({{"forward_ms": [1.0, sample["delays_ms"][1]], "backward_ms": [2.0, 3.0]}}), flush=True)
"""


def options(body: str = "", timeout_s: float = 60.0) -> GroupOptions:
    return GroupOptions(2, timeout_s=timeout_s, program=("-c", PRETENDER.format(body=body or "pass")))


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_sample_goes_to_all_ranks_and_rank_0_answers(tmp_path: Path) -> None:
    body = f"open({str(tmp_path)!r} + '/' + str(rank), 'a').write(str(sample['sample']))"
    with RankGroup(options(body)) as group:
        assert [group.measure(SAMPLE) for _ in range(2)] == [DeviceTimes((1.0, 1.5), (2.0, 3.0))] * 2
        pids = [rank.process.pid for rank in group._ranks]
        folder = Path(group._folder.name)
        assert folder.exists()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["77", "77"]
    assert not any(map(runs, pids))
    assert not folder.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named(rank: int) -> None:
    with (
        RankGroup(options(f"if rank == {rank}: os.kill(os.getpid(), signal.SIGKILL)\n    time.sleep(3600)")) as group,
        pytest.raises(GroupFailed, match=f"rank {rank} was ended by SIGKILL"),
    ):
        group.measure(SAMPLE)


@pytest.mark.slow
def test_a_rank_that_fails_is_named_with_its_last_words() -> None:
    with (
        RankGroup(options("if rank == 1: raise RuntimeError('odd')\n    time.sleep(3600)")) as group,
        pytest.raises(GroupFailed, match=r"rank 1 exited with 1\. Its last lines: .*RuntimeError: odd"),
    ):
        group.measure(SAMPLE)


def test_a_rank_that_hangs_is_given_up_and_ended() -> None:
    with RankGroup(options("time.sleep(3600)", timeout_s=0.3)) as group:
        with pytest.raises(GroupHung, match="took longer than 0.3 s for a sample"):
            group.measure(SAMPLE)
        pids = [rank.process.pid for rank in group._ranks]
    assert not any(map(runs, pids))


def test_what_a_rank_says_it_cannot_do_is_passed_on() -> None:
    answer = """print('{"error": "2 ranks on this machine need a GPU each"}', flush=True)"""
    with (
        RankGroup(options(f"if rank == 0: {answer}")) as group,
        pytest.raises(MeasurementFailed, match="need a GPU each"),
    ):
        group.measure(SAMPLE)


def test_a_group_that_never_gets_ready_is_ended() -> None:
    sleeping = GroupOptions(2, start_timeout_s=0.3, program=("-c", "import time; time.sleep(3600.25)"))
    with pytest.raises(GroupHung, match="took longer than 0.3 s to get ready"):
        RankGroup(sleeping)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"time.sleep(3600.25)" in command for command in commands)


def test_a_rank_that_dies_each_time_costs_the_sample_and_no_more(tmp_path: Path) -> None:
    body = "if rank == 0 and sample['sample'] == 1: os.kill(os.getpid(), signal.SIGKILL)"
    pool = (Table("t", 1000, 16, 2.0, access=AccessProfile.uniform(1000)),)
    collection = new_collection(tmp_path, samples=3, world=2, pool=pool)
    summary = collect_collectives(collection, group=options(body))
    assert (summary.samples, summary.skipped, summary.measured) == (2, 1, 3)
    assert keys_of(read_collectives(tmp_path)) == [(0, 0), (0, 1), (2, 0)]


def test_a_program_that_cannot_start_ends_the_collection(tmp_path: Path) -> None:
    pool = (Table("t", 1000, 16, 2.0, access=AccessProfile.uniform(1000)),)
    broken = GroupOptions(2, program=("-c", "raise SystemExit('no such thing')"))
    with pytest.raises(
        MeasurementFailed, match=r"5 times in a row, at last because rank \d exited with 1\..*no such thing"
    ):
        collect_collectives(new_collection(tmp_path, samples=3, world=2, pool=pool), group=broken)


TIMES = DeviceTimes((1.0, 1.0), (1.0, 1.0))
KILLED, HUNG = GroupFailed("rank 1 was ended by SIGKILL"), GroupHung("took longer than 60 s")
STILL_SAMPLE = CollectiveSample(0, ALL_TO_ALL, 8, (4, 4), (0.0, 0.0))


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
        assert [runner.measure(STILL_SAMPLE) for _ in range(3)] == [TIMES] * 3
    assert (kind.started, kind.ended) == (1, 1)


def test_a_sample_during_which_a_rank_dies_is_tried_once_more() -> None:
    kind = group(KILLED, "ok", KILLED, KILLED, "ok")
    with Runner(GroupOptions(2), kind) as runner:
        assert [runner.measure(STILL_SAMPLE) for _ in range(3)] == [TIMES, None, TIMES]
    assert (kind.started, kind.ended) == (4, 4)


def test_a_sample_that_hangs_is_not_tried_again() -> None:
    kind = group(HUNG, "ok")
    with Runner(GroupOptions(2), kind) as runner:
        assert [runner.measure(STILL_SAMPLE) for _ in range(2)] == [None, TIMES]
    assert (kind.started, kind.ended) == (2, 2)


def test_failures_in_a_row_end_it_and_a_success_forgives_them() -> None:
    with Runner(GroupOptions(2), group(*[HUNG] * 4, "ok", *[HUNG] * 4, "ok")) as runner:
        assert [runner.measure(STILL_SAMPLE) for _ in range(10)] == [None] * 4 + [TIMES] + [None] * 4 + [TIMES]
    kind = group(*[HUNG] * MOST_FAILURES)
    with Runner(GroupOptions(2), kind) as runner:
        for _ in range(MOST_FAILURES - 1):
            assert runner.measure(STILL_SAMPLE) is None
        with pytest.raises(MeasurementFailed, match=r"2 processes failed 5 times in a row, .* took longer than 60 s"):
            runner.measure(STILL_SAMPLE)
    assert kind.started == kind.ended == MOST_FAILURES


def test_a_group_that_never_starts_is_given_up() -> None:
    kind = group()
    with (
        Runner(GroupOptions(2, "broken"), kind) as runner,
        pytest.raises(MeasurementFailed, match="5 times in a row, at last because rank 0 exited with 1"),
    ):
        runner.measure(STILL_SAMPLE)
    assert kind.started == MOST_FAILURES


def test_what_cannot_be_measured_here_is_not_tried_again() -> None:
    kind = group(MeasurementFailed("4 ranks on this machine need a GPU each, it has 1"), "ok")
    with Runner(GroupOptions(2), kind) as runner, pytest.raises(MeasurementFailed, match="need a GPU each"):
        runner.measure(STILL_SAMPLE)
    assert kind.started == 1
