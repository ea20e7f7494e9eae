"""How long a process takes to import the package and to plan 200 tables.

python benchmarks/start_up.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_table import write_results

from shardwright.workload.generators import random_task

RUNS = 9


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        task_file, plan_file = Path(folder) / "task.yaml", Path(folder) / "plan.json"
        random_task(0, tables=200, devices=16, memory="40 GB", device="cpu", batch_size=1024).save(task_file)
        command = [sys.executable, "-m", "shardwright"]
        rows = [
            ("`import numpy`", *measure([sys.executable, "-c", "import numpy"])),
            ("`import shardwright`", *measure([sys.executable, "-c", "import shardwright"])),
            ("`shardwright --help`", *measure([*command, "--help"])),
            (
                "`shardwright plan`, 200 tables × 16 devices",
                *measure([*command, "plan", str(task_file), "-o", str(plan_file)]),
            ),
        ]
    heads = ("process", "median s", "fastest s", "slowest s")
    write_results(
        "start_up",
        "Start-up",
        [(f"Whole processes, {RUNS} runs after one warm-up.", heads, rows)],
        "python benchmarks/start_up.py",
    )


def measure(command: list[str]) -> tuple[str, str, str]:
    """Median, fastest and slowest wall time of a process."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    counted = times[1:]
    return f"{statistics.median(counted):.3f}", f"{min(counted):.3f}", f"{max(counted):.3f}"


if __name__ == "__main__":
    main()
