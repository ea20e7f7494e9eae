"""`benchmarks/dlrm_throughput.py`: a DLRM trained alike on the plans of three planners, in a bed."""

from __future__ import annotations

import importlib
import json

import pytest
from benchmarks.hosts import why_not

from shardwright.errors import MeasurementFailed

pytest.importorskip("torchrec", reason="needs TorchRec")

pytestmark = pytest.mark.torchrec


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program, whose results go to a folder of the test."""
    monkeypatch.setattr("benchmarks.results_table.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.steps_measured.LINK_MINUTES", "0.4")
    return importlib.import_module("benchmarks.dlrm_throughput")


@pytest.mark.slow
@pytest.mark.netns
def test_plans_train_alike_on_hosts_with_slow_links(program, tmp_path, monkeypatch, capsys):
    if reason := why_not():
        pytest.skip(reason)
    rounds = {"rounds": 2, "steps": 2, "warm_up": 1, "profiled": 1}
    monkeypatch.setattr(program, "FEW", {"rounds": rounds, "batches": 4, "warm_up": 2})
    arguments = ["--quick", "--rows", str(tmp_path / "rows.jsonl")]
    program.main(arguments)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {name for row in rows for name in (row["plan"], *row["also"])} == set(program.PLANNERS)
    assert len(rows) > 1
    for row in rows:
        assert len(row["seconds"]) == 2
        assert min(row["seconds"]) > 0
        assert [len(of_round) for of_round in row["losses"]] == [6, 6]
    assert program.check_losses([row["losses"] for row in rows]) < program.AGREE
    page = (tmp_path / "dlrm_throughput.md").read_text()
    assert "**The throughput of our plans is" in page
    assert page.count("| 2x1 | 300mbit |") == 2 * len(rows)
    program.main(arguments)  # all of it is known
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
    assert "measured in" in capsys.readouterr().err


def test_plans_whose_losses_differ_are_refused(program):
    assert program.check_losses([[[0.5, 0.4]], [[0.5, 0.4002]]]) == pytest.approx(5e-4)
    for other in (0.41, float("nan")):
        with pytest.raises(MeasurementFailed, match="one of them trains another model"):
            program.check_losses([[[0.5, 0.4]], [[0.5, other]]])
