from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure import sentinel as module
from shardwright.measure.arena import Arena
from shardwright.measure.sentinel import Sentinel, at_state


class Machine:
    """A clock on which everything takes `elapsed` ms."""

    def __init__(self) -> None:
        self.elapsed = 1.0
        self.timed = 0

    def time(self, parts: Sequence[Callable[[int], None]], run: int) -> list[float]:
        for part in parts:
            part(run)
        self.timed += 1
        return [self.elapsed for _ in parts]


def make(monkeypatch: pytest.MonkeyPatch) -> tuple[Sentinel, Machine]:
    for name, value in {"SENTINEL_BYTES": 2**18, "_REMEMBERED": 500}.items():
        monkeypatch.setattr(module, name, value)
    machine = Machine()
    return Sentinel(Arena(2**20, torch.device("cpu")), machine), machine


def test_a_slow_machine_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel, machine = make(monkeypatch)
    assert sentinel.usual_ms == sentinel.read() == 1
    machine.elapsed = 1.3
    assert sentinel.beyond_usual(sentinel.read()) == 1.3
    machine.elapsed = 1.0
    assert sentinel.beyond_usual(sentinel.read()) == 1.0


def test_a_machine_that_stays_slow_is_usual_then_but_times_keep_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel, machine = make(monkeypatch)
    machine.elapsed = 1.3
    for _ in range(600):
        sentinel.read()
    assert sentinel.beyond_usual(1.3) == 1.0
    assert sentinel.usual_ms == 1.0


@given(st.floats(0.1, 100), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_times_convert_from_state_to_state(ms: float, first: float, second: float, third: float) -> None:
    assert at_state(ms, first, first) == pytest.approx(ms)
    assert at_state(at_state(ms, first, second), second, third) == pytest.approx(at_state(ms, first, third))
    assert (at_state(ms, first, second) > ms) == (second > first)
