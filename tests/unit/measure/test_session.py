from __future__ import annotations

import pytest
import torch

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import session as module
from shardwright.measure.device_work import QUIET
from shardwright.measure.session import Session
from shardwright.measure.timing import Timing, TimingPolicy
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

WORK = ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100))


class ScriptedSentinel:
    """Says one ratio after another, then 1."""

    def __init__(self, ratios: list[float]) -> None:
        self.ratios = ratios

    def read(self) -> float:
        return self.ratios.pop(0) if self.ratios else 1.0


def scripted(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float], timings: list[Timing], policy: TimingPolicy
) -> Session:
    """A session whose sentinel and timings follow a script."""
    monkeypatch.setattr(module, "Sentinel", lambda arena, clock: ScriptedSentinel(ratios))
    monkeypatch.setattr(module, "time_parts", lambda *given: timings.pop(0))
    return Session("cpu", "embedding_bag", 2**20, policy)


def test_a_quiet_sample_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted(monkeypatch, [1.0, 1.01], [Timing((3.0, 4.0), 12)], TimingPolicy())
    measured = session.visit([WORK], [0], "sgd")
    assert (measured.forward_ms, measured.backward_ms, measured.batches, measured.sentinel) == (3.0, 4.0, 2, 1.01)
    assert measured.quiet


@pytest.mark.parametrize("ratios", [[1.5, 1.01], [1.0, 1.5]])
def test_a_disturbance_before_or_after_is_reported(monkeypatch: pytest.MonkeyPatch, ratios: list[float]) -> None:
    session = scripted(monkeypatch, ratios, [Timing((3.0, 4.0), 12)], TimingPolicy())
    assert session.visit([WORK], [0], "sgd").sentinel == 1.5 > QUIET


def test_the_time_of_each_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted(monkeypatch, [], [Timing((3.0, 4.0), 12, 0.25, 0.5)], TimingPolicy())
    spent = session.visit([WORK], [0], "sgd").spent
    assert set(spent) == {"build", "batches", "warm-up", "runs", "sentinel"}
    assert (spent["warm-up"], spent["runs"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore"),
            r"does not fit .* allocate 9 GiB\)",
        ),
        (RuntimeError("D must be at most 2048"), r"cannot run this set \(D must be at most 2048\); leave it out"),
    ],
)
def test_a_set_that_the_kernels_refuse_fails_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    session = scripted(monkeypatch, [], [Timing((3.0, 4.0), 12)], TimingPolicy())
    time_parts = module.time_parts
    monkeypatch.setattr(module, "time_parts", lambda *given: (_ for _ in ()).throw(error))
    with pytest.raises(MeasurementFailed, match=message):
        session.visit([WORK], [0], "sgd")
    monkeypatch.setattr(module, "time_parts", time_parts)
    assert session.visit([WORK], [0], "sgd").forward_ms == 3.0


def test_without_cuda_the_message_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MeasurementFailed, match="'cuda' is not available here; use device='cpu'"):
        Session("cuda", "fbgemm", 2**20)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown backend 'tpu'; known backends are fbgemm, embedding_bag"):
        Session("cpu", "tpu", 2**20)
