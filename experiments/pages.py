"""Dated Markdown pages with commit, hardware and command: what experiments and benchmark programs write."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from experiments.experiment import Page, ResultTable, Row
from experiments.rows import COMMIT, DATE, HARDWARE
from shardwright import __version__
from shardwright.files import write_atomically
from shardwright.measure.hardware import fingerprint


def write_page(
    folder: Path, name: str, page: Page, *, rows: Sequence[Row], share: tuple[int, int], command: str
) -> tuple[Path, ...]:
    """Write `<name>.md` and its pictures; files of an earlier run are replaced.

    Args:
        folder: where they go.
        name: name of the files, without their ending.
        page: what to write.
        rows: the rows it is made of, for their commits, dates and hardware.
        share: pieces of work done, and all of them.
        command: the command that makes the page anew.
    """
    from experiments.pictures import save

    pictures = {ending: folder / f"{name}{f'_{ending}' if ending else ''}.svg" for ending in page.figures}
    for ending, path in pictures.items():
        save(page.figures[ending], path)
    shown = [f"![{page.title}]({path.name})" for path in pictures.values()]
    part = [] if share[0] == share[1] else [f"**{share[0]} of {share[1]} pieces of work: the run was not finished.**"]
    text = markdown(page.title, [*part, *page.text, *shown], _told(page), command, made_of(rows))
    path = folder / f"{name}.md"
    write_atomically(path, text)
    return (path, *pictures.values())


def _told(page: Page) -> list[ResultTable]:
    """The tables with the page's conditions in their captions."""
    return [replace(table, caption=f"{table.caption} {page.conditions}".rstrip()) for table in page.tables]


def markdown(
    title: str,
    paragraphs: Sequence[str],
    tables: Sequence[ResultTable],
    command: str,
    made: str | None = None,
) -> str:
    """The text of a page.

    Args:
        title: first line.
        paragraphs: what comes before the tables.
        tables: the tables.
        command: the command that makes the page anew.
        made: date, commit and hardware; by default now, the checked-out commit and this machine.
    """
    made = made or _made(f"{datetime.now(UTC):%Y-%m-%d %H:%M}", commit(), hardware())
    lines = [f"# {title}", "", made, "", f"    {command}", ""]
    for paragraph in paragraphs:
        lines += [paragraph, ""]
    for table in tables:
        lines += [table.caption, "", "| " + " | ".join(table.heads) + " |", "|" + " --- |" * len(table.heads)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.rows]
        lines.append("")
    return "\n".join(lines)


def made_of(rows: Sequence[Row]) -> str:
    """Dates, commits and hardware of the rows; where there are none, this machine."""
    dates = sorted(str(row[DATE]) for row in rows)
    commits = sorted({str(row[COMMIT]) for row in rows})
    machines = Counter(str(row[HARDWARE]) for row in rows)
    jobs = sorted({int(row["jobs"] or 1) for row in rows})
    span = "no rows" if not dates else dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    several = f" · {', '.join(map(str, jobs))} processes" if jobs not in ([], [1]) else ""
    by = next(iter(machines), hardware())
    if len(machines) > 1:
        by = "; ".join(f"{machine} ({count:,} rows)" for machine, count in machines.most_common())
    return _made(span, ", ".join(commits) or commit(), by) + several


def _made(when: str, version: str, machine: str) -> str:
    return f"{when} UTC · commit {version} · {machine}"


def commit() -> str:
    """The checked-out commit, with + where files differ from it; outside of a checkout the package's version."""
    folder = Path(__file__).parent
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=folder, check=False
    )
    return (run.returncode == 0 and run.stdout.strip()) or f"of version {__version__}"


def hardware() -> str:
    """Processor, cores and library versions."""
    facts = fingerprint("cpu", "fbgemm")
    return f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, torch {facts['torch']}, FBGEMM {facts['fbgemm']}"


def processor_of(machine: str) -> str:
    """The processor in what `hardware` said."""
    return machine.partition(" cores, ")[0].rpartition(", ")[0]
