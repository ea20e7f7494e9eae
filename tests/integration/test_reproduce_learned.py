"""The commands `shardwright reproduce dreamshard-tables` and `autoshard-transfer`, as people run them."""

import json
import subprocess
import sys

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
KEYS = {
    "dreamshard-tables": ("tables", "devices", "half", "task", "strategy"),
    "autoshard-transfer": ("strategy", "trained", "tested", "task"),
}


def reproduce(folder, name, *options):
    """The command in a folder of its own, where policies would go to as well."""
    command = [sys.executable, "-m", "shardwright", "reproduce", name, "--quick", "-o", "results", "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["experiments"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dreamshard-tables", "autoshard-transfer"])
def test_a_run_out_of_time_is_gone_on_with(tmp_path, name):
    first = reproduce(tmp_path, name, "--seconds", "1")
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    results = tmp_path / "results"
    assert "the run was not finished" in (results / f"{name}-quick.md").read_text()
    assert "<svg" in (results / f"{name}-quick.svg").read_text()
    before = pl.read_parquet(results / f"{name}-quick.parquet")
    second = reproduce(tmp_path, name, "--seconds", "1")
    assert second["made"] > 0
    assert second["pieces"] == first["made"] + second["made"]
    after = pl.read_parquet(results / f"{name}-quick.parquet")
    assert after.head(len(before)).equals(before)
    assert after.select(*KEYS[name]).is_unique().all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
