"""Which sample is visited next."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure import agenda as module
from shardwright.measure.agenda import Agenda
from shardwright.measure.failures import Failures
from shardwright.measure.session import QUIET
from shardwright.measure.visits import Visits

KEYS = [(sample, 0) for sample in range(4)]


def visited(visits: Visits, key: tuple[int, int], *, quiet: bool) -> None:
    visits.add({"sample": key[0], "repeat": key[1], "sentinel": QUIET if quiet else 2 * QUIET})


def test_new_samples_come_first_and_disturbed_ones_again() -> None:
    visits = Visits()
    visited(visits, (1, 0), quiet=True)
    visited(visits, (2, 0), quiet=False)
    agenda = Agenda(KEYS, visits, None)
    assert len(agenda) == 3
    assert agenda.coming(5) == [(0, 0), (3, 0)]
    assert agenda.take() == (2, 0)  # of an earlier collection, so its minute is over
    visited(visits, (2, 0), quiet=False)
    agenda.visited((2, 0))
    assert [agenda.take(), agenda.take()] == [(0, 0), (3, 0)]
    assert agenda.take() == (2, 0)  # nothing else is left
    visited(visits, (2, 0), quiet=False)
    agenda.visited((2, 0))
    assert len(agenda) == 0  # that was enough


def test_a_minute_later_a_disturbed_sample_goes_before_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now, visits = [100.0], Visits()
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    agenda = Agenda(KEYS, visits, None)
    assert agenda.take() == (0, 0)
    visited(visits, (0, 0), quiet=False)
    agenda.visited((0, 0))
    assert agenda.take() == (1, 0)
    now[0] += 61
    assert agenda.take() == (0, 0)


def test_on_a_gpu_it_waits_for_all_others_and_failures_are_left_out(tmp_path: Path) -> None:
    failures, visits = Failures(tmp_path), Visits()
    failures.add((3, 0), MeasurementFailed("no"))
    visited(visits, (0, 0), quiet=False)
    agenda = Agenda(KEYS, visits, failures)
    assert [agenda.take() for _ in range(3)] == [(1, 0), (2, 0), (0, 0)]
    failures.add((1, 0), MeasurementFailed("no"))
    agenda.visited((1, 0))
    assert len(agenda) == 0


def test_what_was_lost_is_next() -> None:
    agenda = Agenda(KEYS, Visits(), None)
    first = agenda.take()
    agenda.lost(first)
    assert (len(agenda), agenda.take()) == (4, first)
