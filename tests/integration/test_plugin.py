"""The example package, installed as a user installs it: its strategy plans, and its own test passes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.documentation import read_page

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package, as pip installs it without a network."""
    pytest.importorskip("setuptools", reason="the example package is built by setuptools")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", folder / "target", folder / "source"]
    subprocess.run(command, check=True, timeout=300)
    return folder


def run(installed, *command):
    paths = [str(installed / "target"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=installed, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_its_strategy_plans_from_the_command_line(installed):
    done = run(installed, "shardwright", "plan", ROOT / "examples" / "task.yaml", "--strategy", "snake", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["strategy"] == "snake"


@pytest.mark.slow
def test_its_own_test_passes(installed):
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider", installed / "source")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_page_shows_the_example():
    page = read_page(ROOT / "docs" / "tutorials" / "plug-ins.md")
    (shown,) = (block.code for block in page.blocks if block.title == "shardwright_snake.py")
    assert shown == (EXAMPLE / "shardwright_snake.py").read_text()
