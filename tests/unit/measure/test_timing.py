from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure import timing as module
from shardwright.measure.backend import Arena
from shardwright.measure.timing import (
    CpuClock,
    CudaClock,
    Elasticity,
    HeadStart,
    Sentinel,
    Steady,
    TimingPolicy,
    at_state,
    time_parts,
)


@dataclass
class ScriptedClock:
    """Runs the parts, and returns the times of a script, which is given the number of the call."""

    times: Callable[[int], list[float]]
    calls: list[int] = field(default_factory=list)

    def time(self, parts: Sequence[Callable[[int], None]], run: int) -> list[float]:
        for part in parts:
            part(run)
        self.calls.append(run)
        return self.times(len(self.calls) - 1)


def nothing(_: int) -> None:
    """A part that does nothing."""


def test_warm_up_runs_are_not_counted_and_the_first_is_not_timed() -> None:
    seen: list[int] = []
    clock = ScriptedClock(lambda call: [0.1, 0.1] if call < 2 else [5.0, 7.0])
    timing = time_parts([seen.append, nothing], clock, TimingPolicy(warm_up=3, passes=3, runs=1), Steady())
    assert timing.parts_ms == (5.0, 7.0)
    assert timing.runs == 3
    assert seen == [0] * 6


@pytest.mark.parametrize(("statistic", "expected"), [("minimum", (1.0 + 10.0) / 2), ("median", (2.0 + 11.0) / 2)])
def test_a_statistic_of_each_batch_and_the_mean_over_them(statistic: Any, expected: float) -> None:
    times = [3.0, 12.0, 1.0, 10.0, 2.0, 11.0]  # two batches in turn, three passes
    clock = ScriptedClock(lambda call: [times[call]])
    timing = time_parts([nothing], clock, TimingPolicy(statistic, warm_up=0, passes=3, runs=6), Steady(), batches=2)
    assert clock.calls == [0, 1, 0, 1, 0, 1]
    assert timing.parts_ms == (expected,)


@pytest.mark.parametrize(("batches", "runs"), [(1, 10), (2, 10), (4, 12), (40, 120)])
def test_each_batch_has_its_passes_and_all_have_their_runs(batches: int, runs: int) -> None:
    timing = time_parts([nothing], ScriptedClock(lambda _: [1.0]), TimingPolicy(passes=3, runs=10), Steady(), batches)
    assert timing.runs == runs


def test_the_time_limit_ends_warm_up_and_runs_but_one_is_counted() -> None:
    clock = ScriptedClock(lambda call: [1.0 + call])
    timing = time_parts([nothing], clock, TimingPolicy(warm_up=50, passes=50, time_limit_s=0.0), Steady(), batches=4)
    assert timing.runs == 1
    assert timing.parts_ms == (1.0,)
    assert len(clock.calls) == 1


class Restless:
    """A machine in one state after another."""

    usual_ms = 2.0

    def __init__(self, *states: float) -> None:
        self.states = list(states)

    def read(self) -> float:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def test_times_are_converted_to_the_usual_state() -> None:
    clock = ScriptedClock(lambda call: [12.0])
    timing = time_parts([nothing], clock, TimingPolicy(warm_up=0, passes=3, runs=1), Restless(4.0))
    assert timing.parts_ms == (pytest.approx(12.0 / 2**0.7),)
    assert (timing.state_ms, timing.usual_ms) == (4.0, 2.0)
    assert 6.0 < timing.parts_ms[0] < 12.0


def test_each_run_has_the_state_that_was_read_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATE_LASTS_S", 0.0)
    machine, slow = Restless(2.0, 2.0, 8.0, 8.0), 4**0.7
    clock = ScriptedClock(lambda call: [[1.0], [2.5**0.7], [slow]][call])
    timing = time_parts([nothing], clock, TimingPolicy("median", warm_up=0, passes=3, runs=1), machine)
    assert timing.parts_ms == (pytest.approx(1.0),)


def test_the_cpu_clock_times_each_part_in_order() -> None:
    seen: list[str] = []
    times = CpuClock().time([lambda run: seen.append(f"a{run}"), lambda run: seen.append(f"b{run}")], 4)
    assert seen == ["a4", "b4"]
    assert len(times) == 2
    assert min(times) >= 0


def test_the_head_start_follows_what_the_host_has_lately_needed() -> None:
    head_start = HeadStart()
    assert head_start.milliseconds == 0.1
    for host_ms in (0.4, 2.0, 0.4, 2.0):  # forward, backward
        head_start.saw(host_ms)
    assert head_start.milliseconds == 3.0
    for _ in range(8):
        head_start.saw(0.4)
    assert head_start.milliseconds == pytest.approx(0.6)
    head_start.saw(700.0)  # one stall does not make the device idle
    assert head_start.milliseconds == pytest.approx(0.6)
    head_start.saw(700.0)  # a library was loaded
    assert head_start.milliseconds == 20.0


def test_the_gpu_is_flushed_and_kept_busy_before_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock's own part, with a device that only takes notes; what a GPU does with it is checked where there is one."""
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, _: Event) -> float:
            return 8.0

    class Properties:
        L2_cache_size = 1024

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append(f"idle {cycles}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    clock = CudaClock(torch.device("cpu"))
    assert clock._flushed.nbytes == 2048
    log.clear()
    clock._flushed.fill_(1)  # so that the sum shows that all of it was read
    parts = [lambda run: log.append(f"forward {run}"), lambda run: log.append(f"backward {run}")]
    assert clock.time(parts, 3) == [8.0, 8.0]
    assert clock._sum == clock._flushed.numel()
    assert (clock._flushed == 1).all()
    assert [entry.split()[0] for entry in log] == [
        *("idle", "event", "forward", "event"),
        *("idle", "event", "backward", "event"),
        "wait",
    ]
    assert log[0] == f"idle {int(0.1 * 20_000_000 / 8)}"


def make(monkeypatch: pytest.MonkeyPatch) -> tuple[Sentinel, ScriptedClock]:
    for name, value in {"SENTINEL_BYTES": 2**18, "_READINGS_KEPT": 500}.items():
        monkeypatch.setattr(module, name, value)
    clock = ScriptedClock(lambda _: [1.0])
    return Sentinel(Arena(2**20, torch.device("cpu")), clock), clock


def test_a_slow_machine_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel, clock = make(monkeypatch)
    for elapsed in (1.0, 1.3, 1.0):
        clock.times = lambda _, elapsed=elapsed: [elapsed]
        assert (sentinel.read(), sentinel.usual_ms) == (elapsed, 1.0)


@pytest.mark.parametrize(("elapsed", "readings"), [(1.3, 600), (0.5, 30)], ids=["slow from now on", "a burst before"])
def test_a_state_that_lasts_is_usual_then(monkeypatch: pytest.MonkeyPatch, elapsed: float, readings: int) -> None:
    sentinel, clock = make(monkeypatch)
    clock.times = lambda _: [elapsed]
    for _ in range(readings):
        sentinel.read()
    assert sentinel.usual_ms == elapsed


@given(st.floats(0.1, 100), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_times_convert_from_state_to_state(ms: float, first: float, second: float, third: float) -> None:
    times = np.array([ms, ms])
    exponents = np.array([0.7, 0.35])
    np.testing.assert_allclose(at_state(times, first, first, exponents), times)
    there = at_state(at_state(times, first, second, exponents), second, third, exponents)
    np.testing.assert_allclose(there, at_state(times, first, third, exponents))
    assert ((at_state(times, first, second, exponents) > ms) == (second > first)).all()


@given(st.floats(0.0, 1.4), st.floats(0.0, 1.4), st.integers(0, 10**6))
def test_the_elasticity_of_each_part_is_learned(forward: float, backward: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = Elasticity()
    np.testing.assert_array_equal(known.of_parts, [0.7, 0.7])
    for _ in range(40):
        batches = int(rng.integers(1, 9))
        states = rng.lognormal(0.5, 0.3, (3, batches))
        states[-1, batches // 2 :] = np.nan  # time was up
        times = rng.lognormal(1, 1, (1, batches, 2)) * states[..., None] ** [forward, backward]
        known.saw(times * rng.lognormal(0, 0.02, times.shape), states)
    np.testing.assert_allclose(known.of_parts, [forward, backward], atol=0.1)


def test_runs_in_one_state_teach_nothing() -> None:
    known = Elasticity(1)
    known.saw(np.array([[[1.0]], [[5.0]], [[0.0]]]), np.full((3, 1), 2.0))
    np.testing.assert_allclose(known.of_parts, [0.7])
