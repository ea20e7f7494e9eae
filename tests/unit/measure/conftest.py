from __future__ import annotations

import pytest

from shardwright.measure import measurer
from tests.unit.measure import workers


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[workers.FakeWorker]:
    """No process is started to measure: see `workers.FakeWorker`."""
    monkeypatch.setattr(measurer, "Worker", workers.FakeWorker)
    monkeypatch.setattr(workers.FakeWorker, "answer", workers.by_lookups)
    for notes in (workers.FakeWorker.asked, workers.FakeWorker.controls, workers.FakeWorker.started):
        notes.clear()
    return workers.FakeWorker
