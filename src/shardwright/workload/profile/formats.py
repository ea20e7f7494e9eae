"""The formats of logs, and which of their columns hold embedding ids: Parquet, CSV and event files, read in batches of bounded size.

Parquet files are read by row groups, and their footers are checked before they are trusted. A CSV log has a header line; lists of ids in
a field are recognised. An event file has `user item` lines.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_COLUMNS = ("user", "item")

BATCH_VALUES = 1 << 18
"""Values of all columns together in a batch, for samples of average length."""

_LIST_VALUES = 1 << 17
_COLUMNS_AT_ONCE = 16
_TEXT_VALUES = 1 << 16
_DICTIONARY_BYTES = 1 << 22
_READ_AHEAD = 1 << 20

_BLOCK_BYTES = 1 << 22
_MESSAGE = 400
_NULLS = ["", "null", "NULL", "None", "NaN", "nan"]
_INTEGER_LIST = r"^\s*\[?\s*(-?\d+(\s*[ ,;|]\s*-?\d+)*)?\s*\]?\s*$"
_SEPARATORS = r"\s*[ ,;|]\s*"
_DECIMAL_COMMA = r"^\s*-?\d+(,\d+)?\s*$"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class ColumnKind:
    """The kind of ids in a column.

    Attributes:
        ids: whether the ids are whole numbers or text.
        is_list: whether a sample has a list of ids instead of one id.
    """

    ids: Literal["integers", "text"]
    is_list: bool

    def __str__(self) -> str:
        return f"lists of {self.ids}" if self.is_list else self.ids


def column_kind(column_type: pa.DataType) -> ColumnKind | None:
    """Return the kind of a column of this Arrow type; None if it holds no ids (floats, booleans, times, ...)."""
    import pyarrow as pa

    value_type = _value_type(column_type)
    if pa.types.is_dictionary(value_type):
        value_type = value_type.value_type
    if pa.types.is_integer(value_type):
        return ColumnKind("integers", is_list_type(column_type))
    return ColumnKind("text", is_list_type(column_type)) if is_text_type(value_type) else None


def is_list_type(column_type: pa.DataType) -> bool:
    """Whether this is any of Arrow's list types."""
    from pyarrow import types as t

    checks = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(check(column_type) for check in checks)


def is_text_type(column_type: pa.DataType) -> bool:
    """Whether this is any of Arrow's string and binary types."""
    from pyarrow import types as t

    strings = (t.is_string, t.is_large_string, t.is_string_view)
    binaries = (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view)
    return any(check(column_type) for check in (*strings, *binaries))


def is_nested(column_type: pa.DataType) -> bool:
    """Whether this type nests deeper than a list of scalars."""
    import pyarrow as pa

    return bool(pa.types.is_nested(_value_type(column_type)))


def is_empty_type(column_type: pa.DataType) -> bool:
    """Whether this is the type of columns without values: nulls, or lists of nulls."""
    import pyarrow as pa

    return bool(pa.types.is_null(_value_type(column_type)))


def _value_type(column_type: pa.DataType) -> pa.DataType:
    """Return the type of the ids: that of a list's elements, or of the column."""
    return column_type.value_type if is_list_type(column_type) else column_type


class LogReader:
    """Reader of one log file.

    Attributes:
        path: the file.
        schema: names and Arrow types of its columns.
        is_events: whether a line is one event of a user instead of one sample.
        pieces: number of pieces that can be read separately; 1 if the file is only read as a whole, 0 if it is empty.
    """

    path: Path
    schema: pa.Schema
    is_events = False
    pieces = 1

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Number of lookups in the columns; None if only reading the file would tell."""
        return None

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns in batches of at most tens of MB. A batch may hold some of the columns; each row of a column comes once.

        Args:
            columns: names of the columns.
            pieces: pieces to read; by default all. The batches of a piece do not depend on which other pieces are read.

        Raises:
            InvalidInput: the file is damaged or breaks its format; the message names the place.
        """
        raise NotImplementedError


class ParquetLog(LogReader):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: Any = None
        with self._damage_named(), self._open() as file:
            self._metadata = file.metadata
            self.schema = file.schema_arrow
            self._chunks_of = self._find_chunks()
            self.pieces = int(self._metadata.num_row_groups)

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Number of values of the columns by the footer (an empty list or a null counts as one)."""
        values = 0
        with self._damage_named(), self._open() as file:
            for group, together in self._parts(columns):
                values += sum(int(chunk.num_values) for chunk in self._chunks(file, group, together))
        return values

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns in batches of about `BATCH_VALUES` values; its pieces are its row groups.

        A row group is read a few columns at a time, since every open column takes a few MB. So a batch holds some of the columns.
        """
        with self._damage_named(), self._open() as probe:
            for group, together in self._parts(columns, pieces):
                chunks = self._chunks(probe, group, together)
                place = _place(group, together)
                with self._damage_named(place), self._open(self._short_texts(together, chunks)) as file:
                    yield from self._part_batches(file, group, together, chunks)

    def _open(self, read_dictionary: Sequence[str] = ()) -> Any:
        """Open the file with a small read buffer instead of whole column chunks: row groups may be of any size."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(
            self.path,
            metadata=self._metadata,
            read_dictionary=list(read_dictionary),
            buffer_size=_READ_AHEAD,
            pre_buffer=False,
        )

    def _parts(self, columns: Sequence[str], groups: range | None = None) -> Iterator[tuple[int, list[str]]]:
        """Yield what is read at once: a row group and some of its columns, scalars and lists apart."""
        kinds = {name: column_kind(self.schema.field(name).type) for name in columns}
        lists = [name for name in columns if (kind := kinds[name]) is not None and kind.is_list]
        scalars = [name for name in columns if name not in lists]
        together = [
            alike[start : start + _COLUMNS_AT_ONCE]
            for alike in (scalars, lists)
            for start in range(0, len(alike), _COLUMNS_AT_ONCE)
        ]
        return product(range(self.pieces) if groups is None else groups, together)

    def _chunks(self, file: Any, group: int, columns: Sequence[str]) -> list[Any]:
        """Return what the footer says about the columns in a row group.

        A row is read first: reading refuses a footer that is damaged or claims more bytes than the file has.
        `RowGroupMetaData.column` would end the process on such a footer.
        """
        with self._damage_named(_place(group, columns)):
            next(file.iter_batches(1, row_groups=[group], columns=list(columns)), None)
        info = self._metadata.row_group(group)
        return [info.column(position) for position in self._positions(columns)]

    def _part_batches(
        self, file: Any, group: int, columns: Sequence[str], chunks: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        claimed = int(self._metadata.row_group(group).num_rows)
        rows = 0
        batch_rows = self._batch_rows(columns, claimed, sum(int(chunk.num_values) for chunk in chunks))
        for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(columns)):
            batch.validate(full=True)  # damage can leave indices without entries in their dictionary
            rows += batch.num_rows
            yield batch
        if rows != claimed:
            raise self._damaged(f"claims {claimed:,} rows and holds {rows:,}", _place(group, columns))

    def _batch_rows(self, columns: Sequence[str], rows: int, values: int) -> int:
        """Rows of a batch: fewer if samples have lists, which may be much longer than on average, or text, which may be long."""
        kinds = [kind for name in columns if (kind := column_kind(self.schema.field(name).type)) is not None]
        most = _LIST_VALUES if any(kind.is_list for kind in kinds) else BATCH_VALUES
        most = most * rows // max(values, 1)
        if any(kind.ids == "text" for kind in kinds):
            most = min(most, _TEXT_VALUES)
        return max(1, min(most, BATCH_VALUES))

    def _short_texts(self, columns: Sequence[str], chunks: Sequence[Any]) -> list[str]:
        """Return the paths of text columns to read as dictionaries: those with a small chunk.

        A dictionary is much faster for few distinct texts. A long text that is repeated a million times then does not take a
        million times its size. But a dictionary grows with its row group, so columns with large chunks do not use one.
        """
        return [
            str(self._metadata.schema.column(position).path)
            for position, chunk in zip(self._positions(columns), chunks, strict=True)
            if chunk.physical_type == "BYTE_ARRAY" and chunk.total_uncompressed_size <= _DICTIONARY_BYTES
        ]

    def _positions(self, columns: Sequence[str]) -> list[int]:
        return [position for name in columns for position in self._chunks_of[name]]

    def _find_chunks(self) -> dict[str, list[int]]:
        """Positions of each column's chunks; the chunk of a list column has a path such as history.list.element."""
        found: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for position in range(self._metadata.num_columns):
            parts = self._metadata.schema.column(position).path.split(".")
            prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # names may have dots too
            name = next((name for name in prefixes if name in found), None)
            if name is None:
                raise self._damaged(f"column chunk {position} belongs to no column")
            found[name].append(position)
        return found

    @contextmanager
    def _damage_named(self, place: str = "") -> Iterator[None]:
        """Turn Arrow's errors into ones that name the file and the place in it."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._damaged(error, place) from error

    def _damaged(self, reason: object, place: str = "") -> InvalidInput:
        return InvalidInput(f"{self.path}: not a whole Parquet file: {place}{reason}; write it again")


def _place(group: int, columns: Sequence[str]) -> str:
    return f"row group {group}, {'column' if len(columns) == 1 else 'one of the columns'} {', '.join(columns)}: "


class CsvLog(LogReader):
    """A CSV file with a header line.

    Columns are separated by `delimiter`, or by another of comma, semicolon, tab and bar if the header shows that.

    A text column holds lists if every value in the file's first block is a list of integers, such as `1 2 3`, `[1, 2, 3]`,
    `1|2|3` or `1;2;3`. With a `list_separator`, it also holds lists if a value contains it.
    """

    def __init__(self, path: Path, delimiter: str, list_separator: str | None) -> None:
        import pyarrow as pa

        self.path = path
        self._delimiter = _delimiter_of(path, delimiter)
        self._separator = list_separator
        first = self._first_batch()
        types = [self._list_type(values) or values.type for values in first.columns]
        self.schema = pa.schema(list(zip(first.schema.names, types, strict=True)))

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
            _check_header(self.path, reader.schema.names)
            return next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))

    def _open(self, columns: Sequence[str] | None) -> Any:
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

        return open_csv(
            str(self.path),
            # One thread, since parse errors give line numbers only then.
            read_options=ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
            parse_options=ParseOptions(delimiter=self._delimiter),
            convert_options=ConvertOptions(null_values=_NULLS, strings_can_be_null=True, include_columns=columns),
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


def _delimiter_of(path: Path, usual: str) -> str:
    """Return the separator of the columns: the usual mark, or another one if only that is in the header.

    Raises:
        InvalidInput: several marks each separate header and first sample into an equal number of columns.
    """
    import pyarrow as pa

    with _clear_errors(path, ()), pa.input_stream(str(path)) as stream:
        lines = stream.read(_BLOCK_BYTES).decode("utf-8-sig", "replace").splitlines(keepends=True)
    columns = {mark: _columns_of(lines, mark) for mark in _DELIMITERS}
    possible = [mark for mark, counts in columns.items() if counts and counts[0] > 1]
    even = [mark for mark in possible if len(set(columns[mark])) == 1]  # the first sample has as many columns
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
    """Numbers of columns of the header and the first sample if this mark separates them."""
    try:
        rows = csv.reader((line for line in lines if line.strip()), delimiter=mark)
        return [len(row) for row in islice(rows, 2)]
    except csv.Error:  # a field is too long: the reader of the file reports it
        return []


def _check_header(path: Path, names: Sequence[str]) -> None:
    if all(re.fullmatch(r"-?[0-9.]*", name) for name in names):
        raise InvalidInput(
            f"{path}: the first line is {','.join(names)[:60]!r}; the first line of a CSV file must name its columns"
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
        raise InvalidInput(
            f"{path}: {message} (every line needs the header's number of columns, and a column ids of one kind; mend or exclude it)"
        ) from error


def _column_name(position: int, names: Sequence[str]) -> str:
    return f"column '{names[position]}'" if position < len(names) else f"column #{position}"


def _shortened(error: Exception) -> str:
    return str(error)[:_MESSAGE]


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
