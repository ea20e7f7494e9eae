from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest
import torch

from shardwright.errors import MeasurementFailed
from shardwright.measure import worker as module
from shardwright.measure.device_work import DeviceWork
from shardwright.measure.timing import Timing
from shardwright.measure.worker import ReservedCore, Session, Worker, WorkerOptions
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile


@pytest.fixture(autouse=True)
def own_locks(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test alone, on a machine of three cores."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})


def test_each_measuring_process_has_a_core_of_its_own_while_there_are_any() -> None:
    reserved = [ReservedCore() for _ in range(4)]
    assert [core.number for core in reserved] == [2, 1, 0, 2]
    reserved[1]._lock.close()  # as when its process ends
    assert ReservedCore().number == 1


def test_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: pinned.append(cores))

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    ReservedCore().pin()
    assert pinned == [{2}]


WORK = DeviceWork((ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100)),), (0,), "sgd")


class ScriptedSentinel:
    """A machine whose usual state is 2 ms."""

    usual_ms = 2.0

    def read(self) -> float:
        return 2.0


def scripted(monkeypatch: pytest.MonkeyPatch, timing: Timing) -> Session:
    """A session whose sentinel and timing follow a script."""
    monkeypatch.setattr(module, "Sentinel", lambda arena, clock: ScriptedSentinel())
    monkeypatch.setattr(module, "time_parts", lambda *given: timing)
    return Session(WorkerOptions("cpu", "embedding_bag", 2**20))


@pytest.mark.parametrize(("state_ms", "quiet"), [(2.0, True), (2.8, True), (3.5, False)])
def test_a_visit_records_what_was_timed_and_in_which_state(
    monkeypatch: pytest.MonkeyPatch, state_ms: float, quiet: bool
) -> None:
    visit = scripted(monkeypatch, Timing((3.0, 4.0), 12, state_ms, 2.0, 0.25, 0.5)).visit(WORK)
    assert (visit.forward_ms, visit.backward_ms, visit.batches) == (3.0, 4.0, 2)
    assert (visit.sentinel, visit.usual_ms, visit.quiet) == (state_ms / 2, 2.0, quiet)
    assert visit.elasticity == [0.7, 0.7]
    assert set(visit.spent) == {"build", "batches", "warm-up", "runs"}
    assert (visit.spent["warm-up"], visit.spent["runs"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore"), r"does not fit .*9 GiB\)"),
        (RuntimeError("D must be at most 2048"), r"\(D must be at most 2048\)"),
    ],
)
def test_a_set_that_the_kernels_refuse_fails_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    session = scripted(monkeypatch, Timing((3.0, 4.0), 12, 2.0, 2.0))
    time_parts = module.time_parts
    monkeypatch.setattr(module, "time_parts", lambda *given: (_ for _ in ()).throw(error))
    with pytest.raises(MeasurementFailed, match=message):
        session.visit(WORK)
    monkeypatch.setattr(module, "time_parts", time_parts)
    assert session.visit(WORK).forward_ms == 3.0


def test_without_cuda_the_message_names_it() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MeasurementFailed, match="'cuda' is not available here; use device='cpu'"):
        Session(WorkerOptions("cuda", "fbgemm", 2**20))


NOTHING = DeviceWork((), (), "sgd")
ANSWER = (
    '{"forward_ms": 1.5, "backward_ms": 2.5, "batches": 3, "sentinel": 1.0, "usual_ms": 1.0, "measured_at": 0.0, '
    '"elasticity": [0.9, 0.35], "spent": {}}'
)
READY = "print('{\"ready\": true}', flush=True)"
SLEEPS = "import time; time.sleep(600)"


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> Worker:
    """A worker whose process runs another program."""
    popen = subprocess.Popen

    def other(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "Popen", other)
    monkeypatch.setattr(Worker, "answer_limit_s", {"cpu": 0.3})
    return Worker(WorkerOptions("cpu", "embedding_bag", 2**20))


@pytest.mark.parametrize("begun", ["pass", "print('{', end='', flush=True)"])
def test_a_worker_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    says = "import sys; print('kernel launched', file=sys.stderr, flush=True)"
    with stand_in(monkeypatch, f"{says}; {READY}; {begun}; {SLEEPS}") as worker:
        assert worker.alive
        with pytest.raises(MeasurementFailed, match=r"within 0\.3 s .* kernel launched"):
            worker.visit(NOTHING)
        assert not worker.alive
        assert worker.process.returncode is not None


def test_a_worker_that_never_starts_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "start_limit_s", 0.3)
    with pytest.raises(MeasurementFailed, match=r"sent no start within 0\.3 s"):
        stand_in(monkeypatch, SLEEPS)


def test_an_answer_in_pieces_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = "; ".join(f"print({part!r}, end='', flush=True)" for part in (ANSWER[:20], ANSWER[20:] + "\n"))
    with stand_in(monkeypatch, f"import sys; {READY}; sys.stdin.readline(); {pieces}; sys.stdin.read()") as worker:
        monkeypatch.setattr(Worker, "answer_limit_s", {"cpu": 60.0})
        assert worker.visit(NOTHING).backward_ms == 2.5


def test_the_last_output_of_an_ended_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in(monkeypatch, f"import sys; {READY}; sys.stdin.readline(); sys.exit('no more')") as worker:
        monkeypatch.setattr(Worker, "answer_limit_s", {"cpu": 60.0})
        with pytest.raises(MeasurementFailed, match=r"exited with 1\. Its last lines: no more"):
            worker.visit(NOTHING)
