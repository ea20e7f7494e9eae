"""The commands `shardwright reproduce neuroshard-table` and `neuroshard-production`, as people run them."""

import json
import subprocess
import sys

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")


def reproduce(name, folder, *options):
    command = [sys.executable, "-m", "shardwright", "reproduce", name, "--quick", "-o", str(folder), "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["experiments"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neuroshard-table", "neuroshard-production"])
def test_a_run_out_of_time_is_gone_on_with(name, tmp_path):
    first = reproduce(name, tmp_path, "--seconds", "0.5")
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    assert "the run was not finished" in (tmp_path / f"{name}-quick.md").read_text()
    second = reproduce(name, tmp_path, "--seconds", "0.5")
    assert second["pieces"] == first["made"] + second["made"]
    frame = pl.read_parquet(tmp_path / f"{name}-quick.parquet")
    assert len(frame) == second["pieces"]
    assert frame["strategy"].to_list()[0] == "random"
    assert "<svg" in (tmp_path / f"{name}-quick.svg").read_text()
