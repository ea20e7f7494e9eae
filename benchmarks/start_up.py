"""How long a process takes to import the package and to plan 200 tables, also the first time, when the search is compiled.

python benchmarks/start_up.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from results_table import write_results

from shardwright.workload.generators import random_task

RUNS, FIRST_RUNS = 9, 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        task_file, plan_file = Path(folder) / "task.yaml", Path(folder) / "plan.json"
        random_task(0, tables=200, devices=16, memory="40 GB", device="cpu", batch_size=1024).save(task_file)
        command = [sys.executable, "-m", "shardwright"]
        plan = [*command, "plan", str(task_file), "-o", str(plan_file)]
        rows = [
            ("`import numpy`", *measure([sys.executable, "-c", "import numpy"])),
            ("`import shardwright`", *measure([sys.executable, "-c", "import shardwright"])),
            ("`shardwright --help`", *measure([*command, "--help"])),
            ("`shardwright plan`, 200 tables × 16 devices", *measure(plan)),
            ("the same with nothing compiled yet", *measure_first(plan)),
        ]
    heads = ("process", "median s", "fastest s", "slowest s")
    write_results(
        "start_up",
        "Start-up",
        [(f"Whole processes, {RUNS} runs after one warm-up; with nothing compiled, {FIRST_RUNS}.", heads, rows)],
        "python benchmarks/start_up.py",
    )


def measure(command: list[str]) -> tuple[str, str, str]:
    """Median, fastest and slowest wall time of a process, after one that is not counted."""
    return _summary([_seconds(command) for _ in range(RUNS + 1)][1:])


def measure_first(command: list[str]) -> tuple[str, str, str]:
    """The same of a process that finds no compiled code."""
    times = []
    for _ in range(FIRST_RUNS):
        with tempfile.TemporaryDirectory() as folder:
            times.append(_seconds(command, {"NUMBA_CACHE_DIR": folder}))
    return _summary(times)


def _seconds(command: list[str], variables: Mapping[str, str] | None = None) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **(variables or {})})
    return time.perf_counter() - start


def _summary(times: list[float]) -> tuple[str, str, str]:
    return f"{statistics.median(times):.3f}", f"{min(times):.3f}", f"{max(times):.3f}"


if __name__ == "__main__":
    main()
