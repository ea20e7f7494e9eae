"""Progress of long work: a line on stderr where that is a terminal, nothing otherwise; its clock ticks whatever the work does."""

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


class CountColumn(MofNCompleteColumn):
    """Done and wanted; nothing where it is not known how much there is to do, or nothing is counted."""

    def render(self, task: Task) -> Text:
        """The count."""
        return Text() if task.total is None and not task.completed else super().render(task)


class RateColumn(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        """The rate; nothing until it is known."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.4g}/s" if speed else "", style="progress.data.speed")


class RemainingColumn(TimeRemainingColumn):
    """Estimated time to the end; nothing until it is known."""

    def render(self, task: Task) -> Text:
        """The time."""
        return Text() if task.time_remaining is None else super().render(task)


@contextmanager
def progress(title: str, total: float | None = None, detail: str = "") -> Iterator[Report]:
    """A line with a bar, a clock and what is being done, which is gone when the work is done.

    Args:
        title: what the work is.
        total: how much there is to do; without, the line shows that time passes.
        detail: what is being done until the work says more.
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
    # Libraries that are imported meanwhile may keep stdout for the process's end, so it is not to be a stand-in of rich's.
    title = printable(title)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not shown) as bars:
        bar = bars.add_task(title, total=total, detail=detail)

        def report(done: float, total: float | None = None, detail: str = "") -> None:
            bars.update(bar, completed=done, total=total, detail=printable(detail))

        yield report
