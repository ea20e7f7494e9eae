"""`benchmarks/runtime_steps.py` and `benchmarks/runtime_dlrm.py`: our runtime beside TorchRec, in a bed."""

from __future__ import annotations

import importlib
import json

import pytest
from benchmarks.hosts import why_not

import shardwright as sw
from shardwright.errors import InvalidPlan
from shardwright.sharding import Shard
from shardwright.sharding.runtimes import training_runtime

pytest.importorskip("torchrec", reason="needs TorchRec")

from benchmarks.runtime_steps import run_by

pytestmark = pytest.mark.torchrec
FEW = {
    "runtime_steps": {"rounds": 2, "steps": 2, "warm_up": 1, "profiled": 1},
    "runtime_dlrm": {"rounds": 2, "batches": 3, "warm_up": 1},
}


@pytest.fixture(params=FEW)
def program(request, tmp_path, monkeypatch):
    """A program, whose results go to a folder of the test."""
    monkeypatch.setattr("benchmarks.results_table.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.steps_measured.LINK_MINUTES", "0.4")
    module = importlib.import_module(f"benchmarks.{request.param}")
    monkeypatch.setattr(module, "FEW", FEW[request.param])
    return module


@pytest.mark.slow
@pytest.mark.netns
def test_entries_take_turns_on_hosts_with_slow_links(program, tmp_path, capsys):
    if reason := why_not():
        pytest.skip(reason)
    arguments = ["--quick", "--rows", str(tmp_path / "rows.jsonl")]
    program.main(arguments)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    measured = rows[0]["seconds"] if "seconds" in rows[0] else {row["plan"]: row["reports"] for row in rows}
    assert list(measured) == [title for title, *_ in program.ENTRIES]
    assert all(len(rounds) == 2 for rounds in measured.values())
    if "reports" in rows[0]:
        assert all(row["link_bytes"] > 0 for row in rows)
        assert all(
            min(rank["phases"]["output_dist_ms"]) > 0 for row in rows for ranks in row["reports"] for rank in ranks
        )
    name = program.__name__.rpartition(".")[2]
    assert (tmp_path / f"{name}.md").read_text().count("| 2x1 | 300mbit |") >= len(program.ENTRIES)
    program.main(arguments)  # all of it is known
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
    capsys.readouterr()


def test_each_entry_is_trained_by_the_runtime_of_its_title():
    task = sw.Task([sw.Table("a", 1000, 16, 2.0), sw.Table("b", 500, 8, 1.0)], sw.Topology(2, 1, "cpu"), 64)
    for runtime in ("torchrec", "shardwright"):
        whole = sw.Plan(task, [Shard.whole(table, number) for number, table in enumerate(task.tables)])
        assert training_runtime(run_by(whole, runtime)) == runtime
    rows = (0, 1000)
    unequal = [Shard("a", rows, (0, 4), (0,)), Shard("a", rows, (4, 16), (1,)), Shard.whole(task.tables[1], 0)]
    with pytest.raises(InvalidPlan):
        run_by(sw.Plan(task, unequal), "torchrec")


@pytest.mark.parametrize("name", [*FEW, "dlrm_throughput", "steps_measured", "flexshard_measured"])
def test_a_benchmark_without_root_or_tools_prints_the_reason_and_ends(name, tmp_path, monkeypatch, capsys):
    program = importlib.import_module(f"benchmarks.{name}")
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr("benchmarks.steps_measured.why_not", lambda: "hosts need root")
    monkeypatch.setattr(program, "why_not", lambda: "hosts need root", raising=False)
    program.main(["--journal" if name == "flexshard_measured" else "--rows", str(rows)])
    assert "skipped: hosts need root" in capsys.readouterr().err
    assert not rows.exists()
