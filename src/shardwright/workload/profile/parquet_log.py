"""Parquet logs: row groups in small batches, footers not believed before they are checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput
from shardwright.workload.profile.kinds import column_kind

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_VALUES = 1 << 18
"""Values of all columns together in a batch of average samples."""

_LIST_VALUES = 1 << 17
_COLUMNS_AT_ONCE = 16
_TEXT_VALUES = 1 << 16
_DICTIONARY_BYTES = 1 << 22
_READ_AHEAD = 1 << 20


class ParquetLog:
    """A Parquet file; see `LogReader`."""

    is_events = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: Any = None
        with self._damage_named(), self._open() as file:
            self._metadata = file.metadata
            self.schema: pa.Schema = file.schema_arrow
            self._chunks_of = self._find_chunks()
            self.pieces = int(self._metadata.num_row_groups)

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Values of the columns by the footer (empty lists and nulls counted as one)."""
        values = 0
        with self._damage_named(), self._open() as file:
            for group, together in self._parts(columns):
                values += sum(int(chunk.num_values) for chunk in self._chunks(file, group, together))
        return values

    def batches(self, columns: Sequence[str], pieces: range | None = None) -> Iterator[pa.RecordBatch]:
        """The columns in batches of about `BATCH_VALUES` values; its pieces are its row groups.

        A row group is read some columns at a time, as every open column takes a few MB; so a batch holds a part of the columns.
        """
        with self._damage_named(), self._open() as probe:
            for group, together in self._parts(columns, pieces):
                chunks = self._chunks(probe, group, together)
                place = _place(group, together)
                with self._damage_named(place), self._open(self._short_texts(together, chunks)) as file:
                    yield from self._part_batches(file, group, together, chunks)

    def _open(self, read_dictionary: Sequence[str] = ()) -> Any:
        """The file with a small read buffer instead of whole column chunks: row groups may be of any size."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(
            self.path,
            metadata=self._metadata,
            read_dictionary=list(read_dictionary),
            buffer_size=_READ_AHEAD,
            pre_buffer=False,
        )

    def _parts(self, columns: Sequence[str], groups: range | None = None) -> Iterator[tuple[int, list[str]]]:
        """What is read at once: a row group, and some of the columns, scalars and lists apart."""
        kinds = {name: column_kind(self.schema.field(name).type) for name in columns}
        lists = [name for name in columns if (kind := kinds[name]) is not None and kind.is_list]
        scalars = [name for name in columns if name not in lists]
        together = [
            kin[start : start + _COLUMNS_AT_ONCE]
            for kin in (scalars, lists)
            for start in range(0, len(kin), _COLUMNS_AT_ONCE)
        ]
        return product(range(self.pieces) if groups is None else groups, together)

    def _chunks(self, file: Any, group: int, columns: Sequence[str]) -> list[Any]:
        """What the footer says of the columns in a row group.

        Reading a row comes first: it refuses a footer that is damaged, or claims more bytes than the file has;
        in `RowGroupMetaData.column` it would end the process.
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
            batch.validate(full=True)  # damage can leave a dictionary without the entries its indices name
            rows += batch.num_rows
            yield batch
        if rows != claimed:
            raise self._damaged(f"claims {claimed:,} rows and holds {rows:,}", _place(group, columns))

    def _batch_rows(self, columns: Sequence[str], rows: int, values: int) -> int:
        """Rows of a batch: fewer where samples have lists, which may be much longer than on average, or text, which may be long."""
        kinds = [kind for name in columns if (kind := column_kind(self.schema.field(name).type)) is not None]
        most = _LIST_VALUES if any(kind.is_list for kind in kinds) else BATCH_VALUES
        most = most * rows // max(values, 1)
        if any(kind.ids == "text" for kind in kinds):
            most = min(most, _TEXT_VALUES)
        return max(1, min(most, BATCH_VALUES))

    def _short_texts(self, columns: Sequence[str], chunks: Sequence[Any]) -> list[str]:
        """Paths of the text columns that are to be read as dictionaries: those with a small chunk.

        A dictionary is much faster for few distinct texts, and keeps a long text that is repeated a million times
        from taking a million times its size. But it grows with its row group, so not where chunks are large.
        """
        return [
            str(self._metadata.schema.column(position).path)
            for position, chunk in zip(self._positions(columns), chunks, strict=True)
            if chunk.physical_type == "BYTE_ARRAY" and chunk.total_uncompressed_size <= _DICTIONARY_BYTES
        ]

    def _positions(self, columns: Sequence[str]) -> list[int]:
        return [position for name in columns for position in self._chunks_of[name]]

    def _find_chunks(self) -> dict[str, list[int]]:
        """Positions of each column's chunks; that of a list column has a path such as history.list.element."""
        found: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for position in range(self._metadata.num_columns):
            parts = self._metadata.schema.column(position).path.split(".")
            prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # names may have dots, too
            name = next((name for name in prefixes if name in found), None)
            if name is None:
                raise self._damaged(f"column chunk {position} belongs to no column")
            found[name].append(position)
        return found

    @contextmanager
    def _damage_named(self, place: str = "") -> Iterator[None]:
        """Arrow's complaints, as errors that name the file and the place in it."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._damaged(error, place) from error

    def _damaged(self, reason: object, place: str = "") -> InvalidInput:
        return InvalidInput(f"{self.path}: not a whole Parquet file: {place}{reason}; write it again")


def _place(group: int, columns: Sequence[str]) -> str:
    return f"row group {group}, {'column' if len(columns) == 1 else 'one of the columns'} {', '.join(columns)}: "
