"""Dated Markdown tables with commit and hardware: what every program in this folder writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from experiments.experiment import ResultTable
from experiments.pages import commit, markdown

from shardwright.files import write_atomically

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
    made = measured_on and f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · commit {commit()} · {measured_on}"
    text = markdown(title, (), [ResultTable(*table) for table in tables], command, made)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    write_atomically(path, text)
    print(text)
    return path
