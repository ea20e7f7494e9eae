"""Programs of benchmarks/ that train plans on hosts with slow links: rows that survive a kill, and tiny runs of all of it."""

from __future__ import annotations

import json

import pytest

import shardwright as sw
from shardwright.errors import InvalidPlan, MeasurementFailed
from shardwright.sharding import Shard
from shardwright.sharding.runtimes import training_runtime

pytest.importorskip("torchrec", reason="needs TorchRec")

pytestmark = pytest.mark.torchrec
ROUNDS = {"rounds": 2, "steps": 2, "warm_up": 1, "profiled": 1}
FEW = {
    "steps_measured": ROUNDS,
    "dlrm_throughput": {"rounds": ROUNDS, "batches": 4, "warm_up": 2},
    "runtime_steps": ROUNDS,
    "runtime_dlrm": {"rounds": 2, "batches": 3, "warm_up": 1},
}


@pytest.fixture(scope="module")
def links_measured_once():
    """All quick runs have the same bed: the first one measures its links."""
    from benchmarks import steps_measured

    measure, links = steps_measured.links_of, []

    def links_of(bed):
        if not links:
            links.append(measure(bed))
        return links[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_measured, "LINK_MINUTES", "0.3")
        patch.setattr(steps_measured, "links_of", links_of)
        for name in ("steps_measured", "runtime_steps"):
            patch.setattr(f"benchmarks.{name}._SEARCH_S", 0.5)
        yield


@pytest.fixture
def quick_run(program, tmp_path, monkeypatch, links_measured_once, capsys):
    """Runs a program twice, of which the second run knows all, and returns the module, its rows and its page."""

    def run(name):
        module = program(name)
        if reason := program("hosts").why_not():
            pytest.skip(reason)
        monkeypatch.setattr(module, "FEW", FEW[name])
        if hasattr(module, "MODELS"):
            monkeypatch.setattr(module, "MODELS", {name: tables[-3:] for name, tables in module.MODELS.items()})
        arguments = ["--quick", "--rows", str(tmp_path / "rows.jsonl")]
        module.main(arguments)
        written = (tmp_path / "rows.jsonl").read_text()
        module.main(arguments)
        assert (tmp_path / "rows.jsonl").read_text() == written
        return module, [json.loads(line) for line in written.splitlines()], (tmp_path / f"{name}.md").read_text()

    return run


@pytest.mark.slow
@pytest.mark.netns
def test_steps_of_plans_are_measured(quick_run):
    _, rows, page = quick_run("steps_measured")
    assert {"auto", "row_wise"} <= {name for row in rows for name in (row["plan"], *row["also"])}
    for row in rows:
        assert [len(ranks) for ranks in row["reports"]] == [2, 2]
        assert all(ms > 0 for ranks in row["reports"] for report in ranks for ms in report["step_ms"])
    assert f"**{len(rows)} plans on beds" in page
    assert "| 2x1 | backward kernel |" in page
    assert "| a set of collectives for each sharding type |" in page


@pytest.mark.slow
@pytest.mark.netns
def test_plans_train_a_dlrm_alike(quick_run):
    module, rows, page = quick_run("dlrm_throughput")
    assert {name for row in rows for name in (row["plan"], *row["also"])} == set(module.PLANNERS)
    assert len(rows) > 1
    for row in rows:
        assert len(row["seconds"]) == 2
        assert min(row["seconds"]) > 0
        assert [len(of_round) for of_round in row["losses"]] == [6, 6]
    assert module.check_losses([row["losses"] for row in rows]) < module.AGREE
    assert page.count("| 2x1 | 300mbit |") == 2 * len(rows)


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.parametrize("name", ["runtime_steps", "runtime_dlrm"])
def test_the_runtime_takes_turns_with_torchrec(quick_run, name):
    module, rows, page = quick_run(name)
    measured = rows[0]["seconds"] if "seconds" in rows[0] else {row["plan"]: row["reports"] for row in rows}
    assert list(measured) == [title for title, *_ in module.ENTRIES]
    assert all(len(rounds) == 2 for rounds in measured.values())
    if "reports" in rows[0]:
        assert all(row["link_bytes"] > 0 for row in rows)
        phases = [rank["phases"] for row in rows for ranks in row["reports"] for rank in ranks]
        assert all(min(of_rank["output_dist_ms"]) > 0 for of_rank in phases)
    assert page.count("| 2x1 | 300mbit |") >= len(module.ENTRIES)


def test_each_entry_is_trained_by_the_runtime_of_its_title(program):
    run_by = program("runtime_steps").run_by
    task = sw.Task([sw.Table("a", 1000, 16, 2.0), sw.Table("b", 500, 8, 1.0)], sw.Topology(2, 1, "cpu"), 64)
    for runtime in ("torchrec", "shardwright"):
        whole = sw.Plan(task, [Shard.whole(table, number) for number, table in enumerate(task.tables)])
        assert training_runtime(run_by(whole, runtime)) == runtime
    rows = (0, 1000)
    unequal = [Shard("a", rows, (0, 4), (0,)), Shard("a", rows, (4, 16), (1,)), Shard.whole(task.tables[1], 0)]
    with pytest.raises(InvalidPlan):
        run_by(sw.Plan(task, unequal), "torchrec")


def test_plans_whose_losses_differ_are_refused(program):
    check_losses = program("dlrm_throughput").check_losses
    assert check_losses([[[0.5, 0.4]], [[0.5, 0.4002]]]) == pytest.approx(5e-4)
    for other in (0.41, float("nan")):
        with pytest.raises(MeasurementFailed):
            check_losses([[[0.5, 0.4]], [[0.5, other]]])


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


@pytest.mark.parametrize("name", [*FEW, "flexshard_measured"])
def test_a_benchmark_without_root_or_tools_prints_the_reason_and_ends(program, name, tmp_path, monkeypatch, capsys):
    module, rows = program(name), tmp_path / "rows.jsonl"
    monkeypatch.setattr("benchmarks.steps_measured.why_not", lambda: "hosts need root")
    monkeypatch.setattr(module, "why_not", lambda: "hosts need root", raising=False)
    module.main(["--journal" if name == "flexshard_measured" else "--rows", str(rows)])
    assert "skipped: hosts need root" in capsys.readouterr().err
    assert not rows.exists()
