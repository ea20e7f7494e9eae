"""Groups of real processes that only pretend to measure, to test how they are watched and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.collect import collect_collectives, new_collection
from shardwright.measure.collectives.group import GroupFailed, GroupOptions, RankGroup
from shardwright.task import AccessProfile, Table

SAMPLE = {"sample": 7, "delays_ms": [0.0, 1.5]}

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
        assert [group.ask(SAMPLE, "for a sample") for _ in range(2)] == [
            {"forward_ms": [1.0, 1.5], "backward_ms": [2.0, 3.0]}
        ] * 2
        pids = [rank.process.pid for rank in group._ranks]
        folder = Path(group._folder.name)
        assert folder.exists()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["77", "77"]
    assert not any(map(runs, pids))
    assert not folder.exists()


KILLED = "if rank == {}: os.kill(os.getpid(), signal.SIGKILL)\n    time.sleep(3600)"


@pytest.mark.parametrize(
    ("body", "timeout_s", "error", "says"),
    [
        (KILLED.format(0), 60.0, GroupFailed, "rank 0 was ended by SIGKILL"),
        (KILLED.format(1), 60.0, GroupFailed, "rank 1 was ended by SIGKILL"),
        pytest.param("if rank == 1: raise RuntimeError('odd')\n    time.sleep(3600)", 60.0, GroupFailed,
                     r"rank 1 exited with 1\..*RuntimeError: odd", marks=pytest.mark.slow),
        ("time.sleep(3600)", 0.3, GroupFailed, r"0\.3 s for a sample"),
        ("""if rank == 0: print('{"error": "a GPU each"}', flush=True)""", 60.0, MeasurementFailed, "a GPU each"),
    ],
    ids=["killed", "another killed", "failed", "hangs", "refuses"],
)  # fmt: skip
def test_a_rank_that_does_not_answer_is_named_and_all_are_ended(
    body: str, timeout_s: float, error: type[MeasurementFailed], says: str
) -> None:
    with RankGroup(options(body, timeout_s)) as group:
        with pytest.raises(error, match=says):
            group.ask(SAMPLE, "for a sample")
        pids = [rank.process.pid for rank in group._ranks]
    assert not any(map(runs, pids))


def test_a_group_that_never_gets_ready_is_ended() -> None:
    sleeping = GroupOptions(2, start_timeout_s=0.3, program=("-c", "import time; time.sleep(3600.25)"))
    with pytest.raises(GroupFailed, match=r"0\.3 s to get ready"):
        RankGroup(sleeping)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"time.sleep(3600.25)" in command for command in commands)


def test_a_program_that_cannot_start_ends_the_collection(tmp_path: Path) -> None:
    pool = (Table("t", 1000, 16, 2.0, access=AccessProfile.uniform(1000)),)
    broken = GroupOptions(2, program=("-c", "raise SystemExit('no such thing')"))
    with pytest.raises(MeasurementFailed, match=r"rank \d exited with 1\..*no such thing.*kept"):
        collect_collectives(new_collection(tmp_path, samples=3, world=2, pool=pool), group=broken)
