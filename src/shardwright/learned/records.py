"""The record of a training: the figures of every step, as TensorBoard event files and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.files import is_missing, read_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FIGURES_FILE = "figures.jsonl"

Progress = Callable[[int, int, str], None]


class TrainingRecord:
    """Writes and shows the figures of each training step.

    Without a folder, no files are written. A training that resumes from a checkpoint adds to the existing files and replaces the rows of
    the steps that it repeats.

    Args:
        folder: where the files go; created if missing.
        progress: called with the step's number, the number of steps and a short text of the step's figures.

    Attributes:
        rows: "iteration" and the figures of each step made since the record was opened.
    """

    def __init__(self, folder: Path | None = None, progress: Progress | None = None) -> None:
        self._folder = folder
        self._progress = progress
        self.rows: list[dict[str, float | None]] = []
        self._events: SummaryWriter | None = None
        self._lines: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, iteration: int, total: int, figures: Mapping[str, float]) -> None:
        """Record one step.

        Args:
            iteration: the step's number, from 1.
            total: number of steps of the whole training.
            figures: figures by name, for example "reward", "cost_error", "entropy", "latency_ms".

        Raises:
            InvalidInput: the folder cannot be made or written to.
            MissingDependency: a folder was given, but TensorBoard is not installed.
        """
        self.rows.append({"iteration": iteration, **_plain(figures)})
        if self._folder is not None:
            self._write(self._folder, iteration, figures)
        if self._progress is not None:
            self._progress(iteration, total, ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))

    def close(self) -> None:
        """Close the files."""
        if self._events is not None:
            self._events.close()
        if self._lines is not None:
            self._lines.close()
        self._events = self._lines = None

    def _write(self, folder: Path, iteration: int, figures: Mapping[str, float]) -> None:
        if self._events is None or self._lines is None:
            self._events, self._lines = _open(folder, iteration)
        for name, value in figures.items():
            self._events.add_scalar(name, value, iteration)
        self._events.flush()
        self._lines.write(json.dumps(self.rows[-1]) + "\n")
        self._lines.flush()


def read_figures(folder: Path) -> list[dict[str, float | None]]:
    """Read the rows of a record in order: "iteration" and the figures. A figure that was not finite is None.

    Raises:
        InvalidInput: the folder holds no record.
    """
    path = folder / FIGURES_FILE
    rows: list[dict[str, float | None]] = []
    text = read_text(path, "record of 'learn --log'")
    for line in text[: text.rfind("\n") + 1].splitlines():  # a killed process may have left the last line unfinished
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), (int, float)):
            raise InvalidInput(
                f"{path}: line {len(rows) + 1} is not a row of training figures; name a folder that 'learn --log' wrote"
            )
        rows.append(row)
    return rows


def _open(folder: Path, iteration: int) -> tuple[SummaryWriter, TextIO]:
    """Open the writers at a step. Drop rows from that step on: an earlier run wrote them after its last checkpoint and was then killed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependency(
            f"a log of the training needs tensorboard ({error}); install it with: pip install 'shardwright[learn]', or train without a log"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FIGURES_FILE
        kept = (
            [row for row in read_figures(folder) if (row["iteration"] or 0) < iteration] if not is_missing(path) else []
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
        return SummaryWriter(str(folder), purge_step=iteration), path.open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{folder}: the log cannot be written there ({error.strerror}); name a folder you may write to"
        ) from error


def _plain(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The figures as JSON can hold them: a value that is not finite becomes null."""
    numbers = {name: float(value) for name, value in figures.items()}
    return {name: value if abs(value) < float("inf") else None for name, value in numbers.items()}
