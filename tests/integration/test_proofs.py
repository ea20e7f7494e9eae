"""A small part of the proofs against brute force finds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.proofs import verdict

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_small_part_of_the_proofs_finds_nothing():
    proofs = [sys.executable, "-m", "tests.proofs", "--tasks", "600", "--seed", "1"]
    done = subprocess.run(proofs, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "| all | 600 |" in done.stdout


def test_a_program_that_the_solver_gives_up_after_presolve_is_solved():
    record = verdict.judged(78_742, 0)
    assert record["exact"]
    assert record["findings"] == []
