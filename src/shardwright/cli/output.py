"""The output of commands: a JSON document or tables on stdout, notes and a progress line on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from shardwright.cli.layout import FittedTable, broken
from shardwright.errors import printable

MISSING = "–"
_PIPE_WIDTH = 140
_MOST_CELL, _MOST_NAME = 600, 100  # characters of a cell, and of a word in a cell

_NOTES: list[str] = []
_SAVED: list[str] = []


class Document(TypedDict, total=False):
    """What `emit` adds to every document: notes that go to stderr too, and the files that were saved. Commands may state own notes."""

    notes: list[str]
    saved: list[str]


def begin() -> None:
    """Forget the notes and saved files of an earlier command in this process."""
    _NOTES.clear()
    _SAVED.clear()


def emit(document: Document, *views: RenderableType | None, as_json: bool) -> None:
    """Print a command's result.

    Every document has `notes`, its own and those printed on stderr, and `saved`, the files that `saved` was called with.

    Args:
        document: the result, as the type of `documents` that the command's schema is made of.
        views: the result for people; None for parts that this result has not.
        as_json: whether to print the data rather than the views.
    """
    if as_json:
        own = document.get("notes", [])
        print_json({**document, "notes": list(dict.fromkeys([*own, *_NOTES])), "saved": list(_SAVED)})
        return
    show(*views)


def show(*views: RenderableType | None) -> None:
    """Print results for people. On a terminal, lines are at most as wide as it is; elsewhere, lines of text stay whole.

    Text is printed as it is. If stdout is no terminal, the lines are wide enough for every table.
    """
    shown = sys.stdout.isatty()
    room = None if shown else _PIPE_WIDTH
    console = Console(markup=False, emoji=False, highlight=False, force_terminal=shown, width=room)
    width = console.width if shown else None
    for view in views:
        if isinstance(view, str):
            console.print("\n".join(_fitting(line, width) for line in view.split("\n")), soft_wrap=True)
        elif view is not None:
            console.print(view, crop=False)


def _fitting(line: str, width: int | None) -> str:
    text = printable(line)
    return text if width is None else "\n".join(broken(text, width, within_words=False))


def print_json(document: Mapping[str, object]) -> None:
    """Print a JSON document. Dataclasses become objects; NaN and infinities, which JSON lacks, become null."""
    print(json.dumps(_finite(document), allow_nan=False, indent=1))


def note(text: str) -> None:
    """Print a note on stderr, with any characters. A command prints each note once.

    All notes but errors also become `notes` of a JSON document.
    """
    if not text.startswith("error: "):
        shown = printable(text.removeprefix("note: "))
        if shown in _NOTES:
            return
        _NOTES.append(shown)
    width = Console(stderr=True).width if sys.stderr.isatty() else None
    line = _fitting(text, width) + "\n"
    print(line, end="", file=sys.stderr, flush=True)  # in one write, so that Ctrl-C cannot cut the line


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str | None = None,
    *,
    texts: Collection[int] = (0,),
) -> FittedTable:
    """Build a table that is at most as wide as the terminal, unless its numbers need more.

    Args:
        title: text above the table.
        columns: heads of the columns, which break at spaces if room is short.
        rows: cells of each row.
        caption: text below the table.
        texts: indices of the text columns, which are aligned left and broken if room is short. All other columns hold numbers,
            which are aligned right and never broken.
    """
    heads, cells = _cells(columns), [_cells(row) for row in rows]
    below = caption and printable(caption, keep="\n")
    return FittedTable(printable(title, keep="\n"), heads, cells, below, texts=texts)


def _cells(texts: Sequence[str]) -> list[str]:
    return [printable(text, most=_MOST_CELL, most_word=_MOST_NAME) for text in texts]


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    return MISSING if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A share for people: 0.031 → "3.1%"."""
    return MISSING if value is None else f"{100 * value:.1f}%"


def signed(share: float | None) -> str:
    """A share as signed percent, such as "+3.1%"."""
    return MISSING if share is None else f"{100 * share:+.1f}%"


def seconds(value: float | None) -> str:
    """Seconds for people."""
    return MISSING if value is None else f"{value:.2f}"


def saved(path: Path | None) -> str:
    """A line about the file of a result; the file becomes one of `saved` in a JSON document."""
    if path is not None:
        _SAVED.append(printable(str(path)))
    return f"saved {printable(str(path))}" if path is not None else "not saved: name a file with -o"


def _finite(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _finite(asdict(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class Report(Protocol):
    """A callback that shows the progress of work."""

    def __call__(self, done: float, total: float | None = None, detail: str = "") -> None:
        """Show `done` of `total` (None: as before) with a short detail."""


class CountColumn(MofNCompleteColumn):
    """Done and total; empty while the total is unknown and no work is done."""

    def render(self, task: Task) -> Text:
        """The count."""
        return Text() if task.total is None and not task.completed else super().render(task)


class RateColumn(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        """The rate; empty until it is known."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.4g}/s" if speed else "", style="progress.data.speed")


class RemainingColumn(TimeRemainingColumn):
    """Estimated time to the end; empty until it is known."""

    def render(self, task: Task) -> Text:
        """The time."""
        return Text() if task.time_remaining is None else super().render(task)


class SearchProgress:
    """Shows the best plan so far and its gap on a progress line."""

    def __init__(self, report: Report) -> None:
        self._report, self._step_ms, self._bound_ms = report, math.inf, 0.0

    def __call__(self, step_ms: float, bound_ms: float | None) -> None:
        """Update the best step and the bound."""
        self._step_ms, self._bound_ms = min(self._step_ms, step_ms), max(self._bound_ms, bound_ms or 0.0)
        proven = 0 < self._bound_ms <= self._step_ms
        gap = f", gap {percent(self._step_ms / self._bound_ms - 1)}" if proven else ""
        self._report(0, None, f"best {ms(self._step_ms)} ms{gap}")


@contextmanager
def progress(title: str, total: float | None = None, detail: str = "") -> Iterator[Report]:
    """Show a line with a bar, a clock and a detail if stderr is a terminal; the line disappears when the work is done.

    The clock ticks even if the work reports nothing.

    Args:
        title: name of the work.
        total: amount of work; with None, the line only shows that time passes.
        detail: text to show until the work reports another.
    """
    shown = sys.stderr.isatty()
    console = Console(stderr=True, force_terminal=shown)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        CountColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        RemainingColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    # Libraries that are imported during the work may keep stdout until the process ends, so rich must not replace it.
    title = printable(title)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not shown) as bars:
        bar = bars.add_task(title, total=total, detail=detail)

        def report(done: float, total: float | None = None, detail: str = "") -> None:
            bars.update(bar, completed=done, total=total, detail=printable(detail))

        yield report
