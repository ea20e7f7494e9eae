"""Dated Markdown pages with commit, hardware and command, and their pictures: SVG files, equal bytes for equal data."""

from __future__ import annotations

import io
import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.experiment import Page, ResultTable, Row
from experiments.rows import COMMIT, DATE, HARDWARE
from shardwright import __version__
from shardwright.errors import MissingDependency
from shardwright.files import write_atomically
from shardwright.hardware import fingerprint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_page(
    folder: Path, name: str, page: Page, *, rows: Sequence[Row], share: tuple[int, int], command: str
) -> tuple[Path, ...]:
    """Write `<name>.md` and its pictures; they replace the files of an earlier run.

    Args:
        folder: folder of the files.
        name: name of the files, without their ending.
        page: the page to write.
        rows: the rows that the page is made of, for their commits, dates and hardware.
        share: number of pieces of work done, and number of all pieces.
        command: the command that makes the page anew.
    """
    pictures = {ending: folder / f"{name}{f'_{ending}' if ending else ''}.svg" for ending in page.figures}
    for ending, path in pictures.items():
        save(page.figures[ending], path)
    shown = [f"![{page.title}]({path.name})" for path in pictures.values()]
    part = [] if share[0] == share[1] else [f"**{share[0]} of {share[1]} pieces of work: the run was not finished.**"]
    conditions = [f"**Conditions of all tables.** {page.conditions}"] if page.conditions else []
    text = markdown(page.title, [*part, *page.text, *conditions, *shown], page.tables, command, made_of(rows))
    path = folder / f"{name}.md"
    write_atomically(path, text)
    return (path, *pictures.values())


def markdown(
    title: str, paragraphs: Sequence[str], tables: Sequence[ResultTable], command: str, made: str | None = None
) -> str:
    """The text of a page.

    Args:
        title: the heading.
        paragraphs: paragraphs before the tables.
        tables: the tables.
        command: the command that makes the page anew.
        made: date, commit and hardware; by default the current time, the checked-out commit and this machine.
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
    """Dates, commits and hardware of the rows; without rows, the checked-out commit and this machine."""
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
    """The checked-out commit, with + if files differ from it; outside a checkout, the package's version."""
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
    """The processor in a text that `hardware` returned."""
    return machine.partition(" cores, ")[0].rpartition(", ")[0]


COLOURS = {
    "random": "#bbbbbb", "size": "#999999", "dim": "#999999", "lookup": "#999999", "size_lookup": "#777777", "best sorted": "#777777",
    "greedy": "#4062bb", "rnn": "#b58900", "autoshard": "#7b3f98", "dreamshard": "#d81b60", "dreamshard+": "#2aa198", "torchrec": "#e8871e",
    "neuroshard": "#c1440e", "certified": "#0b6e4f",
}  # fmt: skip
"""The colour of each strategy in all pictures."""

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "svg.hashsalt": "shardwright",
    "svg.fonttype": "none",
}


def panels(
    titles: Sequence[Sequence[str]], *, width: float = 3.4, height: float = 2.7
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of titled axes, row by row; the last row may have fewer.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    mpl = require_matplotlib()
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * len(titles[0]), height * len(titles)), layout="constrained")
        axes = figure.subplots(len(titles), len(titles[0]), squeeze=False)
    for row, names in zip(axes, titles, strict=True):
        for axis, name in zip(row, names, strict=False):
            axis.set_title(name, fontsize=9)
        for surplus in row[len(names) :]:
            surplus.remove()
    return figure, [list(row) for row in axes]


def mark(axis: Axes, values: Sequence[float]) -> None:
    """Set the ticks of a logarithmic x axis to these values only, shown as plain numbers."""
    axis.set_xticks(values, [f"{value:,g}" for value in values], rotation=45, fontsize=7)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG."""
    mpl = require_matplotlib()
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    write_atomically(path, buffer.getvalue())


def require_matplotlib() -> Any:
    """The matplotlib package.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependency(
            f"pictures need matplotlib ({error}); install it with: pip install 'shardwright[report]'"
        ) from error
    return mpl
