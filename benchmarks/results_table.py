"""Dated Markdown tables with commit and hardware: what every program in this folder writes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from shardwright.files import write_atomically
from shardwright.measure.hardware import fingerprint

RESULTS = Path(__file__).parent / "results"


def write_results(
    name: str,
    title: str,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[object]]]],
    command: str,
    measured_on: str | None = None,
) -> Path:
    """Write `results/<name>.md`; the file of an earlier run is replaced, git keeps it.

    Args:
        name: name of the file, without its ending.
        title: first line of the page.
        tables: caption, column heads and rows of each table.
        command: the command that makes the page anew.
        measured_on: the hardware that the figures are of; by default this machine.
    """
    lines = [
        f"# {title}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · commit {commit()} · {measured_on or hardware()}",
        "",
        f"    {command}",
        "",
    ]
    for caption, heads, rows in tables:
        lines += [caption, "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
        lines.append("")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    write_atomically(path, "\n".join(lines))
    print("\n".join(lines))
    return path


def commit() -> str:
    """The checked-out commit, with + where files differ from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=RESULTS.parent, check=False
    )
    return run.stdout.strip() or "unknown"


def hardware() -> str:
    """Processor, cores and library versions."""
    facts = fingerprint("cpu", "fbgemm")
    return f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, torch {facts['torch']}, FBGEMM {facts['fbgemm']}"
