"""The command `shardwright reproduce flexshard-traffic`, as people run it."""

import json
import subprocess
import sys

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")


def reproduce(folder, *options):
    command = [
        sys.executable,
        "-m",
        "shardwright",
        "reproduce",
        "flexshard-traffic",
        "--quick",
        "-o",
        str(folder),
        "--json",
    ]
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["experiments"][0]


def test_a_run_out_of_time_is_gone_on_with(tmp_path):
    first = reproduce(tmp_path, "--seconds", "2")
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    assert "the run was not finished" in (tmp_path / "flexshard-traffic-quick.md").read_text()
    second = reproduce(tmp_path, "--seconds", "1")
    assert second["pieces"] == first["made"] + second["made"]
    frame = pl.read_parquet(tmp_path / "flexshard-traffic-quick.parquet")
    assert len(frame) == second["pieces"]
    assert "<svg" in (tmp_path / "flexshard-traffic-quick.svg").read_text()
