"""The interface of log readers, the columns that hold embedding ids, and the reader of Parquet files.

Parquet files are read by row groups, and their footers are checked before they are trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_VALUES = 1 << 18
"""Values of all columns together in a batch, for samples of average length."""

_LIST_VALUES = 1 << 17
_COLUMNS_AT_ONCE = 16
_TEXT_VALUES = 1 << 16
_DICTIONARY_BYTES = 1 << 22
_READ_AHEAD = 1 << 20


@dataclass(frozen=True)
class Reading:
    """Properties that a log does not state.

    Attributes:
        list_separator: separator of the ids of a list in a CSV field; lists of integers are recognised without it.
        header: whether the first line of a CSV file names its columns.
        names: names of the columns of CSV files without a header; by default "column_1" and so on.
        texts: names of columns of CSV files whose ids are text even if they look like integers, such as hexadecimal ones.
    """

    list_separator: str | None = None
    header: bool = True
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.names and self.header:
            raise InvalidInput("names are for files without a header; give header=False too, or leave names out")


class MixedIds(InvalidInput):
    """A column's ids look like integers in one place and are text in another."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


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


def is_empty_type(column_type: pa.DataType) -> bool:
    """Whether this is the type of columns without values: nulls, or lists of nulls."""
    import pyarrow as pa

    return bool(pa.types.is_null(_value_type(column_type)))


def _value_type(column_type: pa.DataType) -> pa.DataType:
    """Return the type of the ids: that of a list's elements, or of the column."""
    return column_type.value_type if is_list_type(column_type) else column_type


class LogReader(ABC):
    """Reader of one log file.

    Attributes:
        path: the file.
        schema: names and Arrow types of its columns.
        is_events: whether a line is one event of a user instead of one sample.
        has_all_columns: whether a column that the schema lacks is missing; False if a sample may leave out columns without a value.
        may_be_text: whether ids that look like integers can be read as text; False if the file's types are fixed.
        pieces: number of pieces that can be read separately; 1 if the file is only read as a whole, 0 if it is empty.
    """

    path: Path
    schema: pa.Schema
    is_events = False
    has_all_columns = True
    may_be_text = False
    pieces = 1

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Number of lookups in the columns; None if only reading the whole file would show it."""
        return None

    @abstractmethod
    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns in batches of at most tens of MB. A batch may hold some of the columns; each row of a column comes once.

        Args:
            columns: names of the columns.
            pieces: pieces to read; by default all. The batches of a piece do not depend on which other pieces are read.

        Raises:
            InvalidInput: the file is damaged or breaks its format; the message names the place.
        """


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
        """Yield the units of reading: a row group and some of its columns, scalars and lists apart."""
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
        """Return the footer's entries for the columns of a row group.

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
            batch.validate(full=True)  # a damaged file can have indices without entries in their dictionary
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

        If few texts are distinct, a dictionary is much faster, and it stores a long text that occurs a million times only once. But a
        dictionary grows with its row group, so columns with large chunks do not use one.
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
        chunks: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for position in range(self._metadata.num_columns):
            parts = self._metadata.schema.column(position).path.split(".")
            prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # names may have dots too
            name = next((name for name in prefixes if name in chunks), None)
            if name is None:
                raise self._damaged(f"column chunk {position} belongs to no column")
            chunks[name].append(position)
        return chunks

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
