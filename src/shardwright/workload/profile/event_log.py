"""Event files: text of `user item` lines."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.errors import InvalidInput
from shardwright.workload.profile.kinds import EVENT_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 22


class EventLog:
    """A text file of `user item` lines, one event each, in time order per user; see `LogReader`."""

    is_events = True
    pieces = 1

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path = path
        self.schema: pa.Schema = pa.schema(dict.fromkeys(EVENT_COLUMNS, pa.int64()))

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Unknown before the file is read."""
        return None

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Users and items, one block of the file at a time."""
        import pyarrow as pa
        from pyarrow import csv

        try:
            delimiter = self._delimiter()
            if delimiter is None:
                return
            with csv.open_csv(
                str(self.path),
                read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=EVENT_COLUMNS),
                parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False),
                convert_options=csv.ConvertOptions(column_types=self.schema, null_values=[]),
            ) as reader:
                yield from reader
        except (pa.ArrowException, OSError) as error:
            bad_line = None
            with suppress(OSError):
                bad_line = self._bad_line()
            raise bad_line or InvalidInput(f"{self.path}: cannot be read: {str(error)[:400]}") from error

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered lines; of a line longer than a block, its first part."""
        import pyarrow as pa

        with pa.input_stream(str(self.path)) as stream, io.BufferedReader(stream) as lines:
            number = 0
            while line := lines.readline(_BLOCK_BYTES):
                number += 1
                yield number, line.rstrip(b"\r\n")

    def _delimiter(self) -> str | None:
        """Tab, comma or space: the first of them that the first line has; None where there is no line."""
        first = next((line for _, line in self._lines() if line.strip()), None)
        if first is None:
            return None
        return next((mark for mark in "\t," if mark.encode() in first), " ")

    def _bad_line(self) -> InvalidInput | None:
        """The complaint about the first line that is not two integers."""
        pattern = re.compile(rb"(-?[0-9]{1,19})%s(-?[0-9]{1,19})" % (self._delimiter() or " ").encode())
        for number, line in self._lines():
            match = pattern.fullmatch(line)
            if line and (match is None or any(abs(int(part)) >= 1 << 63 for part in match.groups())):
                shown = line[:60].decode("utf-8", "backslashreplace")
                return InvalidInput(
                    f"{self.path}: line {number}: {shown!r} is not an event; an event file has lines of two integers, `user item` "
                    "(files of other formats: name them .parquet, .csv or .tsv)"
                )
        return None
