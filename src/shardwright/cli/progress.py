"""Progress of long work: a bar on stderr where that is a terminal, nothing otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
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

from shardwright.errors import printable


class Report(Protocol):
    """Says how far the work is."""

    def __call__(self, done: float, total: float | None = None, detail: str = "") -> None:
        """Show `done` of `total` (None: as before) with a short detail."""


class RateColumn(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        """The rate; nothing until it is known."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.4g}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Report]:
    """A bar that is gone when the work is done; without a total, it only shows that time passes."""
    shown = sys.stderr.isatty()
    console = Console(stderr=True, force_terminal=shown)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not shown) as bars:
        bar = bars.add_task(printable(title), total=total, detail="")

        def report(done: float, total: float | None = None, detail: str = "") -> None:
            bars.update(bar, completed=done, total=total, detail=printable(detail))

        yield report
