"""The program `python -m experiments`: stopped and resumed."""

import json

import polars as pl
import pytest
from experiments.__main__ import main

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
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


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    """Runs the command for a moment in a folder of the test, to which policies and samples would go as well."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        assert main([name, "--quick", "--seconds", "0.2", "-o", "results", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["experiments"][0]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_a_run_out_of_time_resumes(reproduce, tmp_path, name):
    first = reproduce(name)
    assert 0 < first["made"] == first["pieces"] < first["wanted"]
    results = tmp_path / "results"
    assert "the run was not finished" in (results / f"{name}-quick.md").read_text()
    assert "<svg" in (results / f"{name}-quick.svg").read_text()
    before = pl.read_parquet(results / f"{name}-quick.parquet")
    second = reproduce(name)
    assert second["pieces"] == first["made"] + second["made"] > first["made"]
    after = pl.read_parquet(results / f"{name}-quick.parquet")
    assert after.join(before, on=KEYS[name], how="semi", nulls_equal=True).select(before.columns).equals(before)
    assert after.select(KEYS[name]).is_unique().all()
    made = {path.name for path in tmp_path.iterdir()}  # a fast machine gets as far as training a policy
    assert made - ({"out"} if name in KEEPS else set()) == {"results"}
    if "step_ms" in after.columns:
        assert after["step_ms"].null_count() < len(after)
