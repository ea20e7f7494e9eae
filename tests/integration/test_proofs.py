"""A small part of the proofs against brute force: it finds no fault, and finds faults that are planted."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.proofs import verdict

REPOSITORY = Path(__file__).parents[2]
PLANTED = 16


@pytest.mark.slow
def test_a_small_part_of_the_proofs_finds_nothing():
    proofs = [sys.executable, "-m", "tests.proofs", "--tasks", "200", "--seed", "1"]
    done = subprocess.run(proofs, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "| all | 200 |" in done.stdout


def test_a_program_that_the_solver_gives_up_after_presolve_is_solved():
    record = verdict.judged(78_742, 0)
    assert record["exact"]
    assert record["findings"] == []


@pytest.mark.parametrize(("number", "seed"), [(165, 1), (473, 1), (3348, 5), (3711, 5)])
def test_a_table_that_may_only_be_a_grid_may_be_one_of_any_row_blocks(number, seed):
    assert verdict.judged(number, seed)["findings"] == []


def test_the_optimum_of_a_grid_of_uneven_rows_deals_them_in_order():
    record = verdict.judged(5698, 5)
    assert record["exact"]
    assert record["findings"] == []


def test_rows_under_shared_collectives_are_never_reduced_on_the_way():
    assert verdict.judged(138, 2)["findings"] == []


def test_an_optimum_without_uneven_rows_is_found_out(monkeypatch):
    monkeypatch.setattr("shardwright.search.exact.placement.row_place", lambda *_: None)
    assert any("exact" in finding for finding in verdict.judged(PLANTED, 0)["findings"])


def test_a_bound_above_a_plan_is_found_out(monkeypatch):
    solve = verdict.BoundProof.solve
    monkeypatch.setattr(verdict.BoundProof, "solve", lambda *arguments: _raised(solve(*arguments)))
    findings = [finding for number in (1, 2, 4, 5) for finding in verdict.judged(number, 0)["findings"]]
    assert any("bound" in finding for finding in findings)


def _raised(bound):
    return type(bound)(bound.ms * 100, bound.prices, bound.choice, bound.by)
