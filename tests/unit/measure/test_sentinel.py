from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from shardwright.measure import sentinel as module
from shardwright.measure.arena import Arena
from shardwright.measure.sentinel import Sentinel


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


def make(monkeypatch: object) -> tuple[Sentinel, Machine]:
    for name, value in {"SENTINEL_BYTES": 2**18, "_FRESH_S": 0.0, "_REMEMBERED": 500}.items():
        monkeypatch.setattr(module, name, value)  # type: ignore[attr-defined]
    machine = Machine()
    return Sentinel(Arena(2**20, torch.device("cpu")), machine), machine


def test_a_slow_machine_shows(monkeypatch: object) -> None:
    sentinel, machine = make(monkeypatch)
    assert sentinel.read() == 1
    machine.elapsed = 1.3
    assert sentinel.read() == 1.3
    machine.elapsed = 1.0
    assert sentinel.read() == 1.0


def test_a_machine_that_stays_slow_becomes_the_new_normal(monkeypatch: object) -> None:
    sentinel, machine = make(monkeypatch)
    machine.elapsed = 1.3
    for _ in range(600):
        sentinel.read()
    assert sentinel.quiet_ms == 1.3
    machine.elapsed = 1.0
    assert sentinel.read() < 1


def test_a_fresh_reading_is_used_again(monkeypatch: object) -> None:
    sentinel, machine = make(monkeypatch)
    sentinel.read()
    timed = machine.timed
    monkeypatch.setattr(module, "_FRESH_S", 1e9)  # type: ignore[attr-defined]
    sentinel.read()
    assert machine.timed == timed
