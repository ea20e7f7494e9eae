"""A wheel works in a fresh environment that has no compiler."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys


class Absent:  # modules that only the optional parts bring
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "pyarrow", "scipy", "matplotlib", "ray", "fbgemm_gpu"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())

import shardwright as sw
from shardwright.workload import random_task

for strategy in ("certified", "autoshard", "dreamshard+", "exact"):
    sw.plan(random_task(0, tables=3, devices=2, device="cpu"), strategy=strategy).check()
print(sw._engine.__file__)
"""


@pytest.mark.slow
def test_a_wheel_plans_without_a_compiler_and_optional_packages(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path / "wheels"), str(ROOT)]
    subprocess.run(build, check=True, timeout=600)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "fresh")], check=True)
    (packages,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        assert not [name for name in archive.namelist() if name.startswith(("native", "tests"))]
    (packages / "dependencies.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # a path, so no hook of an editable install runs
    run = subprocess.run(
        [str(tmp_path / "fresh/bin/python"), "-c", PROGRAM],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).parent == packages / "shardwright"
