"""The documentation: every code block of every page runs, and nothing escapes."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.documentation import read_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),  # for the package of tests that the program is in
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    command = [sys.executable, "-m", "tests.documentation_program", str(page)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_the_page_runs(page, tmp_path):
    content = read_page(page)
    missing = [package for package in content.needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"the page needs {', '.join(missing)}")
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_of_results_are_those_of_their_figures():
    from scripts.results import pages

    assert {path: path.read_text(encoding="utf-8") for path in pages()} == pages()
