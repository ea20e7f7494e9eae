"""The program `python -m experiments`, as people run it: stopped and resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
ROOT = str(Path(__file__).parents[2])
KEYS = {
    "neuroshard-table": ("part", "devices", "max_dim", "task", "by", "strategy"),
    "neuroshard-production": ("world", "seed", "by"),
    "neuroshard-published": ("part", "devices", "max_dim", "task", "by", "network", "plan_of", "strategy"),
    "dreamshard-tables": ("tables", "devices", "half", "task", "strategy"),
    "autoshard-transfer": ("strategy", "trained", "seed", "tested", "task"),
    "flexshard-traffic": ("part", "accesses", "tables", "hosts", "gbits", "seed", "exchange", "memory", "strategy"),
    "ablations": ("part", "devices", "max_dim", "task", "system", "variant"),
}
"""Fields that together identify a row."""


KEEPS = ("autoshard-transfer", "ablations")
"""Those that train policies or collect samples, which are kept in `out`."""


def reproduce(folder, name):
    """Run the command for a second in a folder of its own, to which policies and samples would go as well."""
    options = ["--quick", "--seconds", "1", "-o", "results", "--json"]
    command = [sys.executable, "-m", "experiments", name, *options]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=folder, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["experiments"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_a_run_out_of_time_resumes(tmp_path, name):
    first = reproduce(tmp_path, name)
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    results = tmp_path / "results"
    assert "the run was not finished" in (results / f"{name}-quick.md").read_text()
    assert "<svg" in (results / f"{name}-quick.svg").read_text()
    before = pl.read_parquet(results / f"{name}-quick.parquet")
    second = reproduce(tmp_path, name)
    assert second["pieces"] == first["made"] + second["made"] > first["made"]
    after = pl.read_parquet(results / f"{name}-quick.parquet")
    assert after.join(before, on=KEYS[name], how="semi", nulls_equal=True).select(before.columns).equals(before)
    assert after.select(KEYS[name]).is_unique().all()
    made = {path.name for path in tmp_path.iterdir()}
    assert made - ({"out"} if name in KEEPS else set()) == {
        "results"
    }  # a fast machine gets as far as training a policy
    if "step_ms" in after.columns:
        assert after["step_ms"].null_count() < len(after)
