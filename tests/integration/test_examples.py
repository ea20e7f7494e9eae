"""The examples run as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = "gym_agent.py"  # has a test of its own
PLAIN = sorted(
    path.name for path in EXAMPLES.glob("*.py") if path.name != AGENT and not path.name.startswith("torchrec_")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_example_program_runs(name, tmp_path):
    run = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    cells = json.loads((EXAMPLES / "from_logs_to_report.ipynb").read_text(encoding="utf-8"))["cells"]
    assert 10 <= len(cells) <= 15
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    program = "\n".join("".join(cell["source"]) for cell in code)
    settings = {**os.environ, "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=settings, check=False)
    assert run.returncode == 0, run.stderr
    assert "doubtful: 'clicked' looks like a label" in run.stdout
    assert (tmp_path / "shop" / "report.html").stat().st_size > 10_000
    sw.Plan.load(tmp_path / "shop" / "plan.json").check()


def test_the_readme_names_every_example():
    named = set(re.findall(r"\]\(([\w./]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    present = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__", "plugin"}
    assert named >= present | {"plugin/pyproject.toml"}


@pytest.mark.slow
def test_the_agent_of_the_example_learns_something(tmp_path):
    pytest.importorskip("sb3_contrib", reason=f"{AGENT} needs sb3_contrib: pip install 'shardwright[examples]'")
    run = subprocess.run([sys.executable, EXAMPLES / AGENT], capture_output=True, text=True, cwd=tmp_path, check=True)
    random, agent = (float(line.split("reward ")[1].split()[0]) for line in run.stdout.splitlines()[:2])
    assert agent > random


def test_example_task_plans():
    task = sw.Task.load(EXAMPLES / "task.yaml")
    plan = sw.plan(task)
    plan.check()
    assert plan.sharding_type("user_id") in ("row_wise", "column_wise")
    assert plan.by_table["item_id"][0].devices == plan.by_table["item_category"][0].devices
