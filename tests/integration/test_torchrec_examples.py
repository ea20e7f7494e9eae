"""The examples for TorchRec run as they stand."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, folder, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_dlrm_learns_alike_by_our_plan_and_torchrecs(tmp_path):
    """The example itself compares the losses of the first steps, and fails if they differ."""
    lines = run("torchrec_dlrm.py", tmp_path).splitlines()
    losses = {
        line.split(":")[0]: [float(x) for x in line.split("loss ")[1].split("  ")[0].split(" → ")] for line in lines[:2]
    }
    assert losses.keys() == {"shardwright", "torchrec"}
    assert losses["shardwright"] == pytest.approx(losses["torchrec"], abs=5e-3)
    assert all(last < 0.9 * first for first, last in losses.values())


def test_the_tutorial_runs(tmp_path):
    printed = run("torchrec_tutorial.py", tmp_path)
    assert "t39 is now row_wise" in printed
    assert "insufficient_storage" in printed
    assert "the plan is the same: True" in printed
    assert "rank 1:" in printed
