"""A CSV file of rows added as they are found, so that a stopped run resumes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from shardwright.files import write_atomically

Row = dict[str, str]


class Journal:
    """Rows on disk.

    A last line that a killed run left unfinished is dropped.

    Args:
        path: the file; created if needed.
        columns: heads of the columns; a file with other columns is started afresh.

    Attributes:
        rows: all rows, in order.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path, self._columns = path, tuple(columns)
        self.rows: list[Row] = []
        if path.exists():
            text = path.read_text("utf-8")
            lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
            if tuple(next(lines, ())) == self._columns:
                self.rows = [dict(zip(columns, line, strict=True)) for line in lines if len(line) == len(columns)]
        self._write()

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Keep only the wanted rows."""
        self.rows = [row for row in self.rows if wanted(row)]
        self._write()

    def add(self, row: Row) -> None:
        """Add a row, on disk at once."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(row.values()))

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [self._line(self._columns), *(self._line(row.values()) for row in self.rows)]
        write_atomically(self._path, "".join(lines))

    @staticmethod
    def _line(values: object) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)  # type: ignore[arg-type]
        return text.getvalue()
