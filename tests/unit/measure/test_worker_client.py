"""Talking to a measuring process that does not do as it should."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork
from shardwright.measure.worker_client import Worker, WorkerOptions

NOTHING = DeviceWork((), (), "sgd")
ANSWER = '{"forward_ms": 1.5, "backward_ms": 2.5, "batches": 3, "sentinel": 1.0, "usual_ms": 1.0, "measured_at": 0.0, "spent": {}}'
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


def test_a_worker_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "import sys; print('kernel launched', file=sys.stderr, flush=True)"
    with stand_in(monkeypatch, f"{says}; {READY}; {SLEEPS}") as worker:
        assert worker.alive
        with pytest.raises(MeasurementFailed, match=r"no sign of its answer within 0\.3 s .* kernel launched"):
            worker.visit(NOTHING)
        assert not worker.alive
        assert worker._process.returncode is not None


def test_a_worker_that_hangs_in_the_middle_of_a_line_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        stand_in(monkeypatch, f"{READY}; print('{{', end='', flush=True); {SLEEPS}") as worker,
        pytest.raises(MeasurementFailed, match="no sign of its answer"),
    ):
        worker.visit(NOTHING)


def test_a_worker_that_never_starts_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "start_limit_s", 0.3)
    with pytest.raises(MeasurementFailed, match=r"no sign of its start within 0\.3 s"):
        stand_in(monkeypatch, SLEEPS)


def test_an_answer_in_pieces_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = "; ".join(f"print({part!r}, end='', flush=True)" for part in (ANSWER[:20], ANSWER[20:] + "\n"))
    with stand_in(monkeypatch, f"import sys; {READY}; sys.stdin.readline(); {pieces}; sys.stdin.read()") as worker:
        monkeypatch.setattr(Worker, "answer_limit_s", {"cpu": 60.0})
        assert worker.visit(NOTHING).backward_ms == 2.5


def test_the_last_words_of_a_process_that_ended_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in(monkeypatch, f"import sys; {READY}; sys.stdin.readline(); sys.exit('no more')") as worker:
        monkeypatch.setattr(Worker, "answer_limit_s", {"cpu": 60.0})
        with pytest.raises(MeasurementFailed, match=r"exited with 1\. Its last lines: no more"):
            worker.visit(NOTHING)
