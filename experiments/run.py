"""A run of an experiment: the missing pieces, one after another or in several processes, then the page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from experiments.experiment import Experiment, Piece, Row
from experiments.pages import commit, hardware, write_page
from experiments.rows import COMMIT, DATE, HARDWARE, VERSION, RowStore
from shardwright.errors import InvalidInput


class Progress(Protocol):
    """Reports how far the work is."""

    def __call__(self, done: float, total: float | None = None, detail: str = "") -> None:
        """Show `done` of `total` with a short detail."""


def _silent(done: float, total: float | None = None, detail: str = "") -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of an experiment.

    Attributes:
        name: name of the experiment.
        files: the files written.
        pieces: number of pieces with stored rows.
        wanted: number of all pieces.
        made: number of pieces done by this run.
        seconds: duration of the run.
    """

    name: str
    files: tuple[Path, ...]
    pieces: int
    wanted: int
    made: int
    seconds: float


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool = False,
    seconds: float | None = None,
    jobs: int = 1,
    progress: Progress = _silent,
    command: str,
) -> Outcome:
    """Run the missing pieces of an experiment, and write its page, its rows and its pictures.

    Args:
        experiment: the experiment.
        folder: folder for `<name>.md`, `.parquet` and `.svg` (a quick run adds "-quick" to the name); rows stored there are used.
        quick: run only the part that takes minutes.
        seconds: begin no piece after this time; the page then states how many pieces are done.
        jobs: number of processes. Several at once lengthen search times, so every row stores this number.
        progress: called after every piece.
        command: the command that makes the page anew.

    Raises:
        InvalidInput: a file in the folder is not one of an experiment, or a requirement of the experiment is missing.
    """
    start = time.monotonic()
    name = f"{experiment.name}-quick" if quick else experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    store, pieces = RowStore(folder, name), experiment.pieces(quick)
    missing = [piece for piece in pieces if not store.of(piece)]
    there = len(pieces) - len(missing)
    made_by: Row = {"jobs": jobs, COMMIT: commit(), HARDWARE: hardware()}
    progress(there, len(pieces), "")
    # The time to list pieces does not count, so every run makes progress.
    deadline = None if seconds is None else time.monotonic() + seconds
    for piece, rows in _results(experiment, missing, jobs, deadline):
        store.add([_whole_row(piece, row, made_by) for row in rows])
        there += 1
        progress(there, len(pieces), " · ".join(map(str, piece.key.values())))
    store.compact(pieces)
    rows = [row for piece in pieces for row in store.of(piece)]
    share = (there, len(pieces))
    files = write_page(folder, name, experiment.page(rows, quick), rows=rows, share=share, command=command)
    made = there - len(pieces) + len(missing)
    return Outcome(name, (*files, store.path), there, len(pieces), made, time.monotonic() - start)


def write_stored(experiment: Experiment, folder: Path, *, quick: bool = False, command: str) -> Outcome:
    """Write the page from all rows stored in the folder, of any version, without running anything."""
    name = f"{experiment.name}-quick" if quick else experiment.name
    rows = RowStore(folder, name).rows
    if not rows:
        raise InvalidInput(f"{folder} holds no rows of {name}; run it first, or name its folder with -o")
    pieces = experiment.pieces(quick)
    columns = tuple(pieces[0].key) if pieces else ()
    stored = {tuple(row.get(column) for column in columns) for row in rows}
    there = sum(tuple(piece.key.values()) in stored for piece in pieces)
    page = experiment.page(rows, quick)
    files = write_page(folder, name, page, rows=rows, share=(there, len(pieces)), command=command)
    return Outcome(name, files, there, len(pieces), 0, 0.0)


def _whole_row(piece: Piece, row: Row, made_by: Row) -> Row:
    alone = {"jobs": 1} if piece.alone else {}
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    return {**piece.key, **row, **made_by, **alone, VERSION: piece.version, DATE: now}


def _results(
    experiment: Experiment, pieces: Sequence[Piece], jobs: int, deadline: float | None
) -> Iterator[tuple[Piece, Sequence[Row]]]:
    """Do the pieces, and yield each with its rows as soon as it is done."""
    beside = [piece for piece in pieces if jobs > 1 and not piece.alone]
    if beside:
        yield from _side_by_side(experiment, _in_time(beside, deadline), jobs)
    for piece in _in_time((piece for piece in pieces if jobs == 1 or piece.alone), deadline):
        yield piece, experiment.run(piece)


def _in_time(pieces: Iterable[Piece], deadline: float | None) -> Iterator[Piece]:
    return (piece for piece in pieces if deadline is None or time.monotonic() < deadline)


def _side_by_side(experiment: Experiment, in_time: Iterator[Piece], jobs: int) -> Iterator[tuple[Piece, Sequence[Row]]]:
    """Do the pieces in several processes, which end with the last piece, and yield each piece with its rows."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(experiment.run, piece): piece for piece in islice(in_time, jobs)}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
            running |= {pool.submit(experiment.run, piece): piece for piece in islice(in_time, jobs - len(running))}
