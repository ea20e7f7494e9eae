"""CSV logs and event files: text, a sample a line.

A CSV log has a header line; lists of ids in a field are recognised. An event file has `user item` lines.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput
from shardwright.workload.profile.kinds import EVENT_COLUMNS, is_list_type, is_text_type

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 22
_MESSAGE = 400
_NULLS = ["", "null", "NULL", "None", "NaN", "nan"]
_INTEGER_LIST = r"^\s*\[?\s*(-?\d+(\s*[ ,;|]\s*-?\d+)*)?\s*\]?\s*$"
_SEPARATORS = r"\s*[ ,;|]\s*"
_DECIMAL_COMMA = r"^\s*-?\d+(,\d+)?\s*$"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


class CsvLog:
    """A CSV file with a header line; see `LogReader`.

    Its columns are separated by `delimiter`, or by another of comma, semicolon, tab and bar where the header shows that.

    A text column is one of lists where every value in the file's first block is a list of integers, such as `1 2 3`,
    `[1, 2, 3]`, `1|2|3` or `1;2;3`; or, where a `list_separator` is given, where a value contains it.
    """

    is_events = False
    pieces = 1

    def __init__(self, path: Path, delimiter: str, list_separator: str | None) -> None:
        import pyarrow as pa

        self.path = path
        self._delimiter = _delimiter_of(path, delimiter)
        self._separator = list_separator
        first = self._first_batch()
        types = [self._list_type(values) or values.type for values in first.columns]
        self.schema: pa.Schema = pa.schema(list(zip(first.schema.names, types, strict=True)))

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Unknown before the file is read."""
        return None

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """The columns, one block of the file at a time."""
        import pyarrow as pa

        with _clear_errors(self.path, self.schema.names), self._open(columns) as reader:
            for batch in reader:
                arrays = [self._lists(batch.column(name), name) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _first_batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        with _clear_errors(self.path, ()), self._open(None) as reader:
            _check_header(self.path, reader.schema.names)
            return next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))

    def _open(self, columns: Sequence[str] | None) -> Any:
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

        return open_csv(
            str(self.path),
            # One thread, as only then are the lines of parse errors numbered.
            read_options=ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
            parse_options=ParseOptions(delimiter=self._delimiter),
            convert_options=ConvertOptions(null_values=_NULLS, strings_can_be_null=True, include_columns=columns),
        )

    def _list_type(self, values: pa.Array) -> pa.DataType | None:
        """Type of the lists or numbers that these texts are, or None where they are plain ids."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not is_text_type(values.type) or values.null_count == len(values):
            return None
        # Where columns are separated by semicolons, 0,5 is a half; but 1,2,3 is a list there, too.
        decimal_commas = self._delimiter == ";" and self._separator != ","
        if decimal_commas and pc.all(pc.match_substring_regex(values, _DECIMAL_COMMA)).as_py():
            return pa.float64()
        if pc.all(pc.match_substring_regex(values, _INTEGER_LIST)).as_py():
            return pa.list_(pa.int64())
        if self._separator and pc.any(pc.match_substring(values, self._separator)).as_py():
            return pa.list_(pa.string())
        return None

    def _lists(self, values: pa.Array, name: str) -> pa.Array:
        """A column, its texts split where it is one of lists."""
        import pyarrow as pa
        import pyarrow.compute as pc

        list_type = self.schema.field(name).type
        if not is_list_type(list_type):
            return values
        if pa.types.is_string(list_type.value_type):
            return pc.split_pattern(values, self._separator)
        inner = pc.utf8_trim(values, "[] ")
        inner = pc.if_else(pc.equal(inner, ""), None, inner)
        try:
            return pc.split_pattern_regex(inner, _SEPARATORS).cast(list_type)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"{self.path}: column '{name}' begins with lists of integers, and later has a value that is none: {_shortened(error)}; "
                "mend it, or exclude the column"
            ) from error


def _delimiter_of(path: Path, usual: str) -> str:
    """What separates the columns: the usual mark, unless the header holds none of it and one of another.

    Raises:
        InvalidInput: several marks separate the header, and the first sample, into the same number of columns each.
    """
    import pyarrow as pa

    with _clear_errors(path, ()), pa.input_stream(str(path)) as stream:
        lines = stream.read(_BLOCK_BYTES).decode("utf-8-sig", "replace").splitlines(keepends=True)
    columns = {mark: _columns_of(lines, mark) for mark in _DELIMITERS}
    possible = [mark for mark, counts in columns.items() if counts and counts[0] > 1]
    even = [mark for mark in possible if len(set(columns[mark])) == 1]  # the first sample has them too
    if usual in possible and even in ([], [usual]):
        return usual
    found = even or possible or [usual]
    if len(found) > 1:
        names = " and ".join(_DELIMITERS[mark] for mark in found)
        raise InvalidInput(
            f"{path}: its columns may be separated by {names}: the header and the first sample hold both; separate them by one, and put "
            "values that hold the other in quotes"
        )
    return found[0]


def _columns_of(lines: Sequence[str], mark: str) -> list[int]:
    """How many columns the header and the first sample have where this mark separates them."""
    try:
        rows = csv.reader((line for line in lines if line.strip()), delimiter=mark)
        return [len(row) for row in islice(rows, 2)]
    except csv.Error:  # a field that is too long: the reader of the file says so
        return []


def _check_header(path: Path, names: Sequence[str]) -> None:
    if all(re.fullmatch(r"-?[0-9.]*", name) for name in names):
        raise InvalidInput(
            f"{path}: the first line is {','.join(names)[:60]!r}; the first line of a CSV file must name its columns"
        )


@contextmanager
def _clear_errors(path: Path, names: Sequence[str]) -> Iterator[None]:
    """Arrow's complaints about a CSV file with the file and the name of the column."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: the first line is not UTF-8 text: {error}; save the file as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        message = re.sub(r"column #(\d+)", lambda match: _column_name(int(match[1]), names), _shortened(error))
        raise InvalidInput(
            f"{path}: {message} (every line needs the header's number of columns, and a column ids of one kind; mend or exclude it)"
        ) from error


def _column_name(position: int, names: Sequence[str]) -> str:
    return f"column '{names[position]}'" if position < len(names) else f"column #{position}"


def _shortened(error: Exception) -> str:
    return str(error)[:_MESSAGE]


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
