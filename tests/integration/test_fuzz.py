"""A small part of the fuzz finds nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_small_part_of_the_fuzz_finds_nothing():
    pytest.importorskip("fbgemm_gpu", reason="the fuzz measures kernels too")
    fuzz = [sys.executable, "-m", "tests.fuzz", "--cases", "150", "--json"]
    done = subprocess.run(fuzz, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    *commands, together = json.loads(done.stdout)["rows"]
    assert together["cases"] == 150
    assert {"plan", "profile", "show", "report", "compare", "train", "learn", "review", "scale", "drift"} <= {
        row["command"] for row in commands
    }
