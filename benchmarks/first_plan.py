"""Time from a log to a plan for a new user: time every block of docs/tutorials/first-plan.md.

    python -m benchmarks.first_plan

The blocks run in order in an empty folder, twice. This takes half a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.documentation import Block, read_page

from benchmarks.results_table import write_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorials/first-plan.md"
_PROGRAMS = {"bash": ["bash", "-euc"], "python": [sys.executable, "-c"]}


def main() -> None:
    first, again = timed(), timed()
    rows = [(step, f"{before:.1f}", f"{after:.1f}") for (step, before), (_, after) in zip(first, again, strict=True)]
    rows.append(("all together", *(f"{sum(took for _, took in run):.1f}" for run in (first, again))))
    caption = "Wall seconds of every command of docs/tutorials/first-plan.md; twice in a row."
    tables = [(caption, ("step", "first", "again"), rows)]
    write_results("first_plan", "From a log to a plan", tables, "python -m benchmarks.first_plan")


def timed() -> list[tuple[str, float]]:
    """Return the seconds of each command of the page."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs}
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for block in read_page(PAGE).blocks:
            if block.action == "file":
                Path(folder, str(block.title)).write_text(block.code, encoding="utf-8")
            for step, command in steps(block):
                began = time.perf_counter()
                subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
                times.append((step, time.perf_counter() - began))
    return times


def steps(block: Block) -> list[tuple[str, list[str]]]:
    """Return the commands of a block with their names: each line of bash, or a whole block of Python."""
    if block.action == "python":
        return [("the log is made", [*_PROGRAMS["python"], block.code])]
    if block.action == "bash":
        return [(f"`{line}`", [*_PROGRAMS["bash"], line]) for line in block.code.splitlines()]
    return []


if __name__ == "__main__":
    main()
