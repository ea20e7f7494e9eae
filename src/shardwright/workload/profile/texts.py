"""Logs that are text: CSV files, JSON lines and event files, read in batches of bounded size.

Lists of ids in a CSV field are recognised. JSON lines hold an object a sample. An event file has `user item` lines.
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
from shardwright.workload.profile.formats import LogReader, MixedIds, Reading, is_list_type, is_text_type

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_COLUMNS = ("user", "item")

_BLOCK_BYTES = 1 << 22
_MESSAGE = 400
_NULLS = ["", "null", "NULL", "None", "NaN", "nan"]
_INTEGER_LIST = r"^\s*\[?\s*(-?\d+(\s*[ ,;|]\s*-?\d+)*)?\s*\]?\s*$"
_SEPARATORS = r"\s*[ ,;|]\s*"
_DECIMAL_COMMA = r"^\s*-?\d+(,\d+)?\s*$"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_HEXADECIMAL = re.compile(r"column #(\d+).*conversion error to (?:int64|double): invalid value '[0-9a-fA-F]{3,}'")
_NO_DIGIT = "[^0-9a-fA-F]"
_EXPONENT = "[eE]"
_PADDED = r"^0\d{5,}$|[eE]"  # begins with a zero, and is longer than most codes of countries and shops
_NUMBER = re.compile(r"-?[0-9.]+([eE][+-]?[0-9]+)?")
_NO_HEADER = "if the file has none, add --no-header, or name its columns with --columns label,I1..I13,C1..C26"


class CsvLog(LogReader):
    """A CSV file, with a header line or with names from elsewhere.

    Columns are separated by `delimiter`, or by another of comma, semicolon, tab and bar if the header shows that.

    A text column holds lists if every value in the file's first block is a list of integers, such as `1 2 3`, `[1, 2, 3]`,
    `1|2|3` or `1;2;3`. With a `list_separator`, it also holds lists if a value contains it.

    Integers of one width, some with leading zeros, are hexadecimal ids, and so are floats without a point and signs, such as 1e5. These
    ids are text, even those without letters.
    """

    may_be_text = True

    def __init__(self, path: Path, delimiter: str, reading: Reading) -> None:
        import pyarrow as pa

        self.path = path
        lines = _first_lines(path)
        self._delimiter = _delimiter_of(path, delimiter, lines)
        self._separator = reading.list_separator
        self._names = None if reading.header else _names_of(path, lines, self._delimiter, reading.names)
        self._texts = reading.texts
        self._texts += self._hexadecimal(first := self._first_batch())
        if self._texts != reading.texts:
            first = self._first_batch()
        named = list(zip(first.schema.names, first.columns, strict=True))
        types = [None if name in self._texts else self._list_type(values) for name, values in named]
        self.schema = pa.schema(
            [(name, kind or values.type) for (name, values), kind in zip(named, types, strict=True)]
        )

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns, one block of the file at a time."""
        import pyarrow as pa

        with _clear_errors(self.path, self.schema.names), self._open(columns) as reader:
            for batch in reader:
                arrays = [self._lists(batch.column(name), name) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _first_batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        with _clear_errors(self.path, ()), self._open(None) as reader:
            if self._names is None:
                _check_header(self.path, reader.schema.names, self._delimiter)
            return next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))

    def _hexadecimal(self, first: pa.RecordBatch) -> tuple[str, ...]:
        """The columns of integers and floats whose texts in the first block are hexadecimal ids."""
        import pyarrow as pa

        kinds = dict(zip(first.schema.names, first.schema.types, strict=True))
        numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
        if not numbers or len(kinds) < len(first.schema.names):
            return ()
        with _clear_errors(self.path, ()), self._open(numbers, texts=numbers) as reader:
            batch = reader.read_next_batch()
        return tuple(name for name in numbers if _is_hexadecimal(batch.column(name)))

    def _open(self, columns: Sequence[str] | None, texts: Sequence[str] = ()) -> Any:
        import pyarrow as pa
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

        return open_csv(
            str(self.path),
            # One thread, since parse errors give line numbers only then.
            read_options=ReadOptions(block_size=_BLOCK_BYTES, use_threads=False, column_names=self._names),
            parse_options=ParseOptions(delimiter=self._delimiter),
            convert_options=ConvertOptions(
                null_values=_NULLS,
                strings_can_be_null=True,
                include_columns=columns,
                column_types=dict.fromkeys((*self._texts, *texts), pa.string()),
            ),
        )

    def _list_type(self, values: pa.Array) -> pa.DataType | None:
        """Return the type of the lists or numbers that these texts hold; None for plain ids."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not is_text_type(values.type) or values.null_count == len(values):
            return None
        # With semicolons between columns, 0,5 is a half; but 1,2,3 is still a list.
        decimal_commas = self._delimiter == ";" and self._separator != ","
        if decimal_commas and pc.all(pc.match_substring_regex(values, _DECIMAL_COMMA)).as_py():
            return pa.float64()
        if pc.all(pc.match_substring_regex(values, _INTEGER_LIST)).as_py():
            return pa.list_(pa.int64())
        if self._separator and pc.any(pc.match_substring(values, self._separator)).as_py():
            return pa.list_(pa.string())
        return None

    def _lists(self, values: pa.Array, name: str) -> pa.Array:
        """Return a column, with its texts split if it holds lists."""
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
                f"{self.path}: column '{name}' starts with lists of integers but later holds another value: {_shortened(error)}; "
                "correct that value, or exclude the column"
            ) from error


def _is_hexadecimal(values: pa.Array) -> bool:
    """Whether texts that look like numbers are hexadecimal ids: all have digits alone, and some an e, or one width and zeros before.

    Programs print floats with a point or with the sign of the exponent.
    """
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(values, _NO_DIGIT)).as_py():
        return False
    width = pc.min_max(pc.utf8_length(values)).as_py()
    hints = _PADDED if width["min"] == width["max"] else _EXPONENT
    return bool(pc.any(pc.match_substring_regex(values, hints)).as_py())


def _first_lines(path: Path) -> list[str]:
    """The lines of a text file's first block."""
    import pyarrow as pa

    with _clear_errors(path, ()), pa.input_stream(str(path)) as stream:
        lines: list[str] = stream.read(_BLOCK_BYTES).decode("utf-8-sig", "replace").splitlines(keepends=True)
    return lines


def is_csv(path: Path) -> bool:
    """Whether the first line has three columns or more, which no event has."""
    lines = _first_lines(path)
    return any(len(row) > 2 for mark in _DELIMITERS for row in _first_rows(lines, mark)[:1])


def _delimiter_of(path: Path, usual: str, lines: Sequence[str]) -> str:
    """Return the separator of the columns: the usual mark, or another one if only that is in the header.

    Raises:
        InvalidInput: several marks each separate header and first sample into an equal number of columns.
    """
    columns = {mark: [len(row) for row in _first_rows(lines, mark)] for mark in _DELIMITERS}
    possible = [mark for mark, counts in columns.items() if counts and counts[0] > 1]
    even = [mark for mark in possible if len(set(columns[mark])) == 1]  # the first sample has as many columns
    if usual in possible and even in ([], [usual]):
        return usual
    marks = even or possible or [usual]
    if len(marks) > 1:
        names = " and ".join(_DELIMITERS[mark] for mark in marks)
        raise InvalidInput(
            f"{path}: its columns may be separated by {names}: the header and the first sample hold both; separate them by one, and put "
            "values that hold the other in quotes"
        )
    return marks[0]


def _first_rows(lines: Sequence[str], mark: str) -> list[list[str]]:
    """The first two rows if this mark separates their columns."""
    try:
        return list(islice(csv.reader((line for line in lines if line.strip()), delimiter=mark), 2))
    except csv.Error:  # a field is too long: the reader of the file reports it
        return []


def _names_of(path: Path, lines: Sequence[str], delimiter: str, given: Sequence[str]) -> list[str]:
    """The names of the columns of a file without a header.

    Raises:
        InvalidInput: the first line has another number of columns than there are names, or is a header after all.
    """
    first = next(iter(_first_rows(lines, delimiter)), [])
    names = list(given) or [f"column_{number}" for number in range(1, len(first) + 1)]
    if first == names:
        raise InvalidInput(f"{path}: its first line names its columns; leave --no-header and --columns out")
    if first and len(first) != len(names):
        raise InvalidInput(
            f"{path}: its first line has {len(first)} columns, and --columns names {len(names)}; name each column"
        )
    return names


def _check_header(path: Path, names: Sequence[str], delimiter: str) -> None:
    """Check that the first line names columns: numbers and empty fields are values of a sample."""
    values = [name for name in names if not name.strip() or _NUMBER.fullmatch(name)]
    if len(values) > 1 or len(values) == len(names):
        raise InvalidInput(
            f"{path}: the first line is {delimiter.join(names)[:60]!r}, a sample rather than a header; {_NO_HEADER}"
        )


@contextmanager
def _clear_errors(path: Path, names: Sequence[str]) -> Iterator[None]:
    """Turn Arrow's errors about a CSV file into ones that name the file and the column."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: the first line is not UTF-8 text: {error}; save the file as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        message = re.sub(r"column #(\d+)", lambda match: _column_name(int(match[1]), names), _shortened(error))
        place = _HEXADECIMAL.search(str(error))
        if place is not None and int(place[1]) < len(names):
            raise MixedIds(
                f"{path}: {message} (its ids look like integers before, and are hexadecimal)", names[int(place[1])]
            ) from error
        raise InvalidInput(
            f"{path}: {message} (every line needs the header's number of columns, and a column ids of one kind; fix or exclude it)"
        ) from error


def _column_name(position: int, names: Sequence[str]) -> str:
    return f"column '{names[position]}'" if position < len(names) else f"column #{position}"


def _shortened(error: Exception) -> str:
    return str(error)[:_MESSAGE]


class JsonLog(LogReader):
    """A file of JSON lines: an object a sample, a key a column; a sample may leave keys out.

    The first block determines the columns and their types.
    """

    has_all_columns = False

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path = path
        self.schema = pa.schema([])
        first = next((line for line in _first_lines(path) if line.strip()), "")
        if first.lstrip().startswith("["):
            raise InvalidInput(
                f"{path}: holds a JSON array; write each of its objects in a line of its own, as jq -c '.[]' does"
            )
        if first:
            with _json_errors(path), self._open(None) as reader:
                self.schema = reader.schema

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns, one block of the file at a time; those that the file lacks hold nulls."""
        import pyarrow as pa

        known = pa.schema([self.schema.field(name) for name in columns if name in self.schema.names])
        if not self.schema:
            return
        with _json_errors(self.path), self._open(known) as reader:
            for batch in reader:
                nulls = pa.nulls(batch.num_rows)
                arrays = [batch.column(name) if name in known.names else nulls for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _open(self, schema: pa.Schema | None) -> Any:
        import pyarrow as pa
        from pyarrow.json import ParseOptions, ReadOptions, open_json

        parse = (
            ParseOptions()
            if schema is None
            else ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        )
        read = ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
        return open_json(pa.input_stream(str(self.path)), read_options=read, parse_options=parse)


@contextmanager
def _json_errors(path: Path) -> Iterator[None]:
    """Turn Arrow's errors about JSON lines into ones that name the file and the column."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        message = re.sub(r"Column\(/?(.*?)\)", r"column '\1'", _shortened(error))
        raise InvalidInput(
            f"{path}: {message} (each line is a JSON object, and a key has values of one kind; fix the line or exclude the column)"
        ) from error


class EventLog(LogReader):
    """A text file of `user item` lines, one event each, in time order per user."""

    is_events = True

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path = path
        self.schema = pa.schema(dict.fromkeys(EVENT_COLUMNS, pa.int64()))

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield users and items, one block of the file at a time."""
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
        """Yield numbered lines. A line longer than a block comes in parts, each with the number of the line."""
        import pyarrow as pa

        with pa.input_stream(str(self.path)) as stream, io.BufferedReader(stream) as lines:
            number = 1
            while line := lines.readline(_BLOCK_BYTES):
                yield number, line.rstrip(b"\r\n")
                number += line.endswith(b"\n")

    def _delimiter(self) -> str | None:
        """Tab, comma or space: the first of them in the first line; None if there is no line."""
        first = next((line for _, line in self._lines() if line.strip()), None)
        if first is None:
            return None
        return next((mark for mark in "\t," if mark.encode() in first), " ")

    def _bad_line(self) -> InvalidInput | None:
        """Return the error about the first line that is not two integers."""
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
