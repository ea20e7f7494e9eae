"""The store of an experiment's rows: a Parquet file, and a journal of newer rows, so that a killed run loses nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.experiment import Piece, Row, Value
from shardwright.errors import InvalidInput
from shardwright.files import input_size, is_missing, read_bytes, write_atomically

VERSION, COMMIT, DATE, HARDWARE = "version", "commit", "date", "hardware"
"""Columns that every row has besides the experiment's own."""


class RowStore:
    """Rows of results in `<name>.parquet`; newer rows wait in `<name>.journal.jsonl` beside it.

    An unfinished last line of the journal is dropped.

    Args:
        folder: folder of the files.
        name: name of the experiment.

    Attributes:
        rows: all rows, in the order of their making.

    Raises:
        InvalidInput: a file is not one of an experiment.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.parquet"
        self._journal = folder / f"{name}.journal.jsonl"
        self.rows: list[Row] = [*_read_parquet(self.path), *_read_journal(self._journal)]
        self._by_key: dict[tuple[str, ...], dict[tuple[object, ...], list[Row]]] = {}

    def of(self, piece: Piece) -> list[Row]:
        """The rows of a piece that were made with the piece's version."""
        return self._index(tuple(piece.key)).get((*piece.key.values(), piece.version), [])

    def add(self, rows: Sequence[Row]) -> None:
        """Add the rows of one piece; they are on disk when this returns."""
        self.rows.extend(rows)
        self._by_key.clear()
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(list(rows)) + "\n")

    def compact(self, pieces: Sequence[Piece]) -> None:
        """Write the Parquet file without rows of other versions of these pieces, and remove the journal."""
        names = tuple(pieces[0].key) if pieces else ()
        current: dict[tuple[Value, ...], str] = {tuple(piece.key.values()): piece.version for piece in pieces}
        self.rows = [row for row in self.rows if _version(row, names, current) == row[VERSION]]
        self._by_key.clear()
        if self.rows:
            columns = dict.fromkeys(name for row in self.rows for name in row)
            buffer = io.BytesIO()
            pq.write_table(pa.table({name: [row.get(name) for row in self.rows] for name in columns}), buffer)
            write_atomically(self.path, buffer.getvalue())
        self._journal.unlink(missing_ok=True)

    def _index(self, names: tuple[str, ...]) -> dict[tuple[object, ...], list[Row]]:
        """Rows by the values of these columns and by version."""
        if names not in self._by_key:
            index: dict[tuple[object, ...], list[Row]] = {}
            for row in self.rows:
                index.setdefault((*(row.get(name) for name in names), row[VERSION]), []).append(row)
            self._by_key[names] = index
        return self._by_key[names]


def _version(row: Row, names: tuple[str, ...], current: Mapping[tuple[Value, ...], str]) -> Value:
    """The version that a row must have to stay; a row of a piece that is not wanted now always stays."""
    return current.get(tuple(row.get(name) for name in names), row[VERSION])


def _read_parquet(path: Path) -> list[Row]:
    if is_missing(path):
        return []
    input_size(path, "table of results")
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(
            f"{path}: is not a Parquet file of results ({error}); move it away, or name another folder with -o"
        ) from None
    return _checked(rows, path)


def _read_journal(path: Path) -> list[Row]:
    if is_missing(path):
        return []
    written = read_bytes(path, "journal of results", None)
    whole = written[: written.rfind(b"\n") + 1]
    if whole != written:  # else the next row would be appended to the unfinished line
        write_atomically(path, whole)
    rows: list[Row] = []
    for line in whole.decode("utf-8", "replace").splitlines():
        try:
            rows += json.loads(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"{path}: is not a journal of results ({error}); remove it, or name another folder with -o"
            ) from None
    return _checked(rows, path)


def _checked(rows: list[Row], path: Path) -> list[Row]:
    if any(not isinstance(row, dict) or VERSION not in row for row in rows):
        raise InvalidInput(
            f"{path}: its rows lack the column {VERSION!r}; move it away, or name another folder with -o"
        )
    return rows
