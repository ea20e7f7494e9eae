"""The program that runs TorchRec's own tests with our planner: on a checkout that is made here, with tests of ours in it."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from tests.torchrec_suite.__main__ import main

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

TESTS = """
import multiprocessing
import unittest

from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology


def planner_of_a_process(answers):
    answers.put(type(EmbeddingShardingPlanner(Topology(2, "cuda"), 8)).__name__)


class TestMade(unittest.TestCase):
    def test_both_plan(self):
        self.assertEqual(EmbeddingShardingPlanner(Topology(2, "cuda"), 8)._num_plans, 0)

    def test_ours_has_no_partitioner(self):
        EmbeddingShardingPlanner(Topology(2, "cuda"), 8)._partitioner

    def test_processes_have_torchrecs(self):
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        process = context.Process(target=planner_of_a_process, args=(answers,))
        process.start()
        name = answers.get(timeout=300)
        process.join()
        self.assertEqual(name, "EmbeddingShardingPlanner")

    def test_nothing_is_planned(self):
        self.assertEqual(1 + 1, 2)
"""


@pytest.fixture
def checkout(tmp_path):
    """The installed package, as a checkout of it would be, with one test file."""
    package = Path(find_spec("torchrec").origin).parent
    (tmp_path / "torchrec").mkdir()
    for part in package.iterdir():
        (tmp_path / "torchrec" / part.name).symlink_to(part)
    (tmp_path / "version.txt").write_text(f"{version('torchrec')}\n")
    (tmp_path / "torchrec" / "made").mkdir()
    (tmp_path / "torchrec" / "made" / "test_made.py").write_text(TESTS)
    return tmp_path


def test_tests_that_plan_run_with_both_planners_in_every_process(checkout, capsys):
    assert main([str(checkout), "--limit", "900"]) == 1
    said = capsys.readouterr()
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in said.out.splitlines()]
    assert ["made/test_made.py", "3", "3", "1", "0", "2"] in rows
    failed = {row[0]: row[1] for row in rows if row[0].startswith("TestMade::")}
    assert "no attribute '_partitioner'" in failed["TestMade::test_ours_has_no_partitioner"]
    assert "ShardwrightPlanner" in failed["TestMade::test_processes_have_torchrecs"]
    assert "1 passed" in said.out


@pytest.mark.parametrize("release", [None, "0.1.0"])
def test_a_checkout_of_another_release_is_refused_with_the_one_needed(release, tmp_path, capsys):
    if release:
        (tmp_path / "torchrec").mkdir()
        (tmp_path / "version.txt").write_text(release)
    assert main([str(tmp_path)]) == 2
    assert f"check out release/v{version('torchrec')}" in capsys.readouterr().err
