"""The command `shardwright reproduce ablations`, as people run it."""

import json
import subprocess
import sys

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")


def reproduce(folder):
    command = [sys.executable, "-m", "shardwright", "reproduce", "ablations", "--quick", "--seconds", "5", "--json"]
    run = subprocess.run(
        [*command, "-o", str(folder)], capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["experiments"][0]


def test_a_run_out_of_time_is_gone_on_with(tmp_path):
    first = reproduce(tmp_path)
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    assert "the run was not finished" in (tmp_path / "ablations-quick.md").read_text()
    second = reproduce(tmp_path)
    assert second["pieces"] == first["made"] + second["made"] > first["made"]
    frame = pl.read_parquet(tmp_path / "ablations-quick.parquet")
    searches = frame.filter(pl.col("part") == "search")
    assert searches["step_ms"].null_count() == 0 < len(searches)
    assert "<svg" in (tmp_path / "ablations-quick.svg").read_text()
