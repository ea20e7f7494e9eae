"""The work of one device as fused calls, with calls that take notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from shardwright.measure import fused as module
from shardwright.measure.arena import Arena
from shardwright.measure.backends import load_backend
from shardwright.measure.fused import DeviceCalls
from shardwright.measure.timing import CpuClock, Steady, TimingPolicy, time_parts
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

CPU = torch.device("cpu")


class Noting:
    """PyTorch's own operators, and the gradients that each backward is given."""

    name = "noting"

    def __init__(self) -> None:
        self.gradients: list[list[torch.Tensor]] = []

    def build(self, *given: Any) -> Any:
        call: Any = load_backend("embedding_bag").build(*given)
        backward = call.backward

        def noted(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
            assert [one.shape for one in outputs] == [one.shape for one in gradients]
            self.gradients.append(list(gradients))
            backward(outputs, gradients)

        call.backward = noted
        return call


def work(lookups: float, *, pooled: bool) -> ShardWork:
    return ShardWork(100, 8, 16, lookups, pooled, AccessProfile.uniform(100))


def timed(monkeypatch: pytest.MonkeyPatch, works: Sequence[ShardWork], batches: int) -> Noting:
    """What the calls of `works` are given over a pass that warms up and two that count."""
    monkeypatch.setattr(module, "fresh_batches", lambda works, cache: batches)
    backend = Noting()
    calls = DeviceCalls(works, range(len(works)), "sgd", backend, Arena(2**20, CPU))
    policy = TimingPolicy(warm_up=batches, passes=2, runs=1)
    time_parts([calls.forward, calls.backward], CpuClock(), policy, Steady(), calls.batches)
    return backend


def test_counted_runs_of_sequences_find_their_gradients_made(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [
        work(20.5, pooled=False),
        work(33.5, pooled=False),
    ]  # rounded up or down at random: the batches differ in length
    found = timed(monkeypatch, works, 4).gradients
    assert len({one.shape for gradients in found for one in gradients}) > 2
    counted = found[4:]
    for number in range(2):
        assert len({gradients[number].untyped_storage().data_ptr() for gradients in counted}) == 1
    assert counted[0][0].data_ptr() != counted[0][1].data_ptr()


@pytest.mark.parametrize("pooled", [True, False])
def test_gradients_are_small_positive_and_all_different(monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    gradient = timed(monkeypatch, [work(40.0, pooled=pooled)], 1).gradients[0][0]
    assert 0 < gradient.min() < gradient.max() < 2e-6
    assert gradient.unique().numel() > 0.9 * gradient.numel()
