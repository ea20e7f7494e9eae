from __future__ import annotations

import os
import tempfile

import pytest

from shardwright.measure.cores import ReservedCore


@pytest.fixture(autouse=True)
def own_locks(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test alone, on a machine of three cores."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})


def test_each_measuring_process_has_a_core_of_its_own() -> None:
    reserved = [ReservedCore() for _ in range(3)]
    assert [core.number for core in reserved] == [2, 1, 0]


def test_when_all_are_taken_the_last_is_shared() -> None:
    reserved = [ReservedCore() for _ in range(4)]
    assert reserved[-1].number == 2


def test_a_core_is_free_again_when_its_process_is_gone() -> None:
    first = ReservedCore()
    assert first._lock is not None
    first._lock.close()
    assert ReservedCore().number == 2


def test_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: pinned.append(cores))

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    ReservedCore().pin()
    assert pinned == [{2}]
