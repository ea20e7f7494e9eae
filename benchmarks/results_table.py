"""Pages of results: dated Markdown tables with commit and hardware."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.experiment import ResultTable
from experiments.pages import commit, hardware, markdown

from shardwright.files import write_atomically

RESULTS = Path(__file__).parent / "results"


def command_of(program: str, arguments: Sequence[object] | None) -> str:
    """Return the command that runs a program of this folder; without arguments, with those of this process."""
    given = sys.argv[1:] if arguments is None else map(str, arguments)
    return shlex.join(["python", "-m", f"benchmarks.{program}", *given])


def write_measured(
    name: str,
    title: str,
    paragraphs: Sequence[str],
    tables: Sequence[ResultTable],
    command: str,
    rows: Sequence[Mapping[str, Any]],
    priced: str = "",
) -> Path:
    """Write `results/<name>.md`, dated by the days on which its rows were measured; `priced` stands before the commit."""
    days = sorted({row["at"][:10] for row in rows})
    made = f"{' to '.join(dict.fromkeys((days[0], days[-1])))} · {priced}commit {commit()} · {hardware()}"
    path = RESULTS / f"{name}.md"
    write_atomically(path, markdown(title, paragraphs, tables, command, made))
    return path


def write_results(
    name: str,
    title: str,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[object]]]],
    command: str,
    measured_on: str | None = None,
) -> Path:
    """Write `results/<name>.md`; replaces the file of an earlier run, which git keeps.

    Args:
        name: name of the file, without its ending.
        title: first line of the page.
        tables: caption, column heads and rows of each table.
        command: command that makes the page again.
        measured_on: hardware of the figures; by default this machine.
    """
    made = measured_on and f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · commit {commit()} · {measured_on}"
    text = markdown(title, (), [ResultTable(*table) for table in tables], command, made)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    write_atomically(path, text)
    print(text)
    return path
