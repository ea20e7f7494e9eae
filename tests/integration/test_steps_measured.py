"""`benchmarks/steps_measured.py`: rows that survive a kill, and plans measured in a bed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

pytestmark = pytest.mark.torchrec


def test_rows_survive_a_run_that_was_killed(program, tmp_path):
    measured = program("steps_measured")
    rows, case = measured.Rows(tmp_path / "rows.jsonl"), measured.Case(2, 1, "1gbit", "mixed")
    documents = [{"task": {"topology": {"links": number}}} for number in (1, 2)]
    rows.add([{**case.key, "document": document} for document in documents])
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"bed": "4x1", "ra')
    assert len(rows.of(case)) == 2
    assert rows.links(case) == 2
    other = measured.Case(4, 1, "1gbit", "mixed")
    assert rows.of(other) == []
    assert rows.links(other) is None


def test_rows_are_read_over_links_that_were_measured_anew(program, tmp_path):
    measured = program("steps_measured")
    rows = measured.Rows(tmp_path / "rows.jsonl")
    task = {"task": {"topology": {"links": 1}}}
    rows.add([{**measured.Case(*bed, "1gbit", "mixed").key, "document": task} for bed in ((2, 1), (4, 1))])
    (tmp_path / "links.json").write_text('{"2x1 1gbit": 2, "4x1 1gbit": 1}')
    links = measured.bed_links(tmp_path / "links.json", rows.read())
    assert [row["document"]["task"]["topology"]["links"] for row in rows.over(links).read()] == [2, 1]


@pytest.mark.slow
@pytest.mark.netns
def test_plans_are_measured_on_hosts_with_slow_links(program, tmp_path, monkeypatch, capsys):
    measured = program("steps_measured")
    if reason := measured.why_not():
        pytest.skip(reason)
    monkeypatch.setattr(measured, "LINK_MINUTES", "0.4")
    monkeypatch.setattr(measured, "MODELS", {"mixed": measured.MODELS["mixed"][-3:]})
    monkeypatch.setattr(measured, "FEW", {"rounds": 2, "steps": 2, "warm_up": 1, "profiled": 1})
    arguments = ["--quick", "--rows", str(tmp_path / "rows.jsonl")]
    measured.main(arguments)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {"auto", "row_wise"} <= {name for row in rows for name in (row["plan"], *row["also"])}
    for row in rows:
        assert [len(ranks) for ranks in row["reports"]] == [2, 2]
        assert all(ms > 0 for ranks in row["reports"] for report in ranks for ms in report["step_ms"])
    page = (tmp_path / "steps_measured.md").read_text()
    assert f"**{len(rows)} plans on beds" in page
    assert "| 2x1 | backward kernel |" in page
    measured.main(arguments)  # all of it is known
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
