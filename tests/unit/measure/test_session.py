from __future__ import annotations

import pytest
import torch

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import session as module
from shardwright.measure.session import QUIET, Session
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
    monkeypatch.setattr(module, "time_parts", lambda parts, clock, policy: timings.pop(0))
    monkeypatch.setattr(module, "_PAUSES_S", (0.0,))
    return Session("cpu", "embedding_bag", 2**20, policy)


def test_a_quiet_sample_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted(monkeypatch, [1.0, 1.01], [Timing((3.0, 4.0), 12)], TimingPolicy())
    measured = session.measure([WORK], [0], "sgd")
    assert (measured.forward_ms, measured.backward_ms, measured.runs, measured.sentinel) == (3.0, 4.0, 12, 1.01)


def test_a_disturbed_sample_is_measured_again_and_the_minimum_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [Timing((3.0, 5.0), 12), Timing((3.1, 4.0), 10), Timing((9.0, 9.0), 1)]
    session = scripted(monkeypatch, [1.0, 1.2, 1.2, 1.0, 1.0, 1.02], timings, TimingPolicy())
    measured = session.measure([WORK], [0], "sgd")
    assert (measured.forward_ms, measured.backward_ms) == (3.0, 4.0)
    assert (measured.runs, measured.sentinel) == (23, 1.02)


def test_attempts_are_bounded_and_the_disturbance_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [Timing((3.0, 5.0), 12)] * 2
    session = scripted(monkeypatch, [1.5, 1.4, 1.3, 1.2], timings, TimingPolicy(attempts=2))
    assert session.measure([WORK], [0], "sgd").sentinel == 1.3 > QUIET


def test_medians_are_those_of_the_quietest_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [Timing((3.0, 5.0), 12), Timing((4.0, 6.0), 12), Timing((1.0, 1.0), 12)]
    policy = TimingPolicy("median", attempts=3)
    session = scripted(monkeypatch, [1.5, 1.5, 1.1, 1.1, 1.3, 1.3], timings, policy)
    measured = session.measure([WORK], [0], "sgd")
    assert (measured.forward_ms, measured.backward_ms) == (4.0, 6.0)


def test_without_cuda_the_message_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MeasurementFailed, match="'cuda' is not available here; use device='cpu'"):
        Session("cuda", "fbgemm", 2**20)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown backend 'tpu'; known backends are fbgemm, embedding_bag"):
        Session("cpu", "tpu", 2**20)
