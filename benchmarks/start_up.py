"""Time that a process takes to import the package and to plan.

python -m benchmarks.start_up
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results_table import write_results
from shardwright.workload.generators import random_task

RUNS = 9


def main() -> None:
    command = [sys.executable, "-m", "shardwright"]
    rows = [
        ("`import numpy`", *measure([sys.executable, "-c", "import numpy"])),
        ("`import shardwright`", *measure([sys.executable, "-c", "import shardwright"])),
        ("`shardwright --help`", *measure([*command, "--help"])),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for tables, devices in ((50, 8), (200, 16)):
            task_file, plan_file = Path(folder) / f"{tables}.yaml", Path(folder) / "plan.json"
            task = random_task(0, tables=tables, devices=devices, memory="40 GB", device="cpu", batch_size=1024)
            task.save(task_file)
            plan = [*command, "plan", str(task_file), "-o", str(plan_file), "--json"]
            for options in ([], ["--strategy", "certified"], ["--time-limit", "0.3"]):
                what = " ".join(["`shardwright plan", *options]) + f"`, {tables} tables × {devices} devices"
                rows.append((what, *measure([*plan, *options])))
    heads = ("process", "median s", "fastest s", "slowest s")
    caption = f"Whole processes, {RUNS} runs after one that is not counted."
    write_results("start_up", "Start-up", [(caption, heads, rows)], "python -m benchmarks.start_up")


def measure(command: list[str]) -> tuple[str, str, str]:
    """Return the median, fastest and slowest wall time of a process, after one that is not counted."""
    times = [_seconds(command) for _ in range(RUNS + 1)][1:]
    return f"{statistics.median(times):.3f}", f"{min(times):.3f}", f"{max(times):.3f}"


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
