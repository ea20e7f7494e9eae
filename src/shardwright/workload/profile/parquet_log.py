"""Parquet logs: row groups in small batches, footers not believed before they are checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput
from shardwright.task.units import format_bytes
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
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self._metadata: Any = file.metadata
                self.schema: pa.Schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        self._groups = int(self._metadata.num_row_groups)
        self._chunks_of = self._find_chunks()

    def lookups(self, columns: Sequence[str]) -> int | None:
        """Values of the columns by the footer (empty lists and nulls counted as one)."""
        chunks = self._chunks(columns)
        return sum(int(info.column(chunk).num_values) for info in self._row_groups() for chunk in chunks)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The columns in batches of about `BATCH_VALUES` values.

        A row group is read some columns at a time, as every open column takes a few MB; so a batch holds a part of the columns.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._check_footer(columns)
        try:
            # A small read buffer instead of whole column chunks: row groups may be of any size.
            with pq.ParquetFile(
                self.path,
                metadata=self._metadata,
                read_dictionary=self._short_text(columns),
                buffer_size=_READ_AHEAD,
                pre_buffer=False,
            ) as file:
                for group, together in product(range(self._groups), self._together(columns)):
                    yield from self._group_batches(file, group, together)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _row_groups(self) -> Iterator[Any]:
        return map(self._metadata.row_group, range(self._groups))

    def _group_batches(self, file: Any, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        claimed = self._metadata.row_group(group).num_rows
        rows = 0
        for batch in file.iter_batches(self._batch_rows(group, columns), row_groups=[group], columns=list(columns)):
            rows += batch.num_rows
            yield batch
        if rows != claimed:
            raise self._damaged(f"row group {group} claims {claimed:,} rows and holds {rows:,}")

    def _together(self, columns: Sequence[str]) -> list[list[str]]:
        """The columns in groups to read at once, scalars and lists apart."""
        kinds = {name: column_kind(self.schema.field(name).type) for name in columns}
        lists = [name for name in columns if (kind := kinds[name]) is not None and kind.is_list]
        scalars = [name for name in columns if name not in lists]
        return [
            kin[start : start + _COLUMNS_AT_ONCE]
            for kin in (scalars, lists)
            for start in range(0, len(kin), _COLUMNS_AT_ONCE)
        ]

    def _batch_rows(self, group: int, columns: Sequence[str]) -> int:
        """Rows of a batch: fewer where samples have lists, which may be much longer than on average, or text, which may be long."""
        info = self._metadata.row_group(group)
        values = sum(int(info.column(chunk).num_values) for chunk in self._chunks(columns))
        kinds = [kind for name in columns if (kind := column_kind(self.schema.field(name).type)) is not None]
        most = _LIST_VALUES if any(kind.is_list for kind in kinds) else BATCH_VALUES
        most = most * int(info.num_rows) // max(values, 1)
        if any(kind.ids == "text" for kind in kinds):
            most = min(most, _TEXT_VALUES)
        return max(1, min(most, BATCH_VALUES))

    def _check_footer(self, columns: Sequence[str]) -> None:
        """A footer that claims more bytes than the file has is refused before anything is allocated for it."""
        size = self.path.stat().st_size
        chunks = self._chunks(columns)
        for group, info in enumerate(self._row_groups()):
            for chunk in map(info.column, chunks):
                if not (0 <= chunk.total_compressed_size <= size and 0 <= chunk.data_page_offset <= size):
                    raise self._damaged(
                        f"row group {group} claims {format_bytes(chunk.total_compressed_size)} of column '{chunk.path_in_schema}' "
                        f"at byte {chunk.data_page_offset:,}, and the file has {format_bytes(size)}"
                    )

    def _chunks(self, columns: Sequence[str]) -> list[int]:
        """Positions of the columns' chunks in a row group."""
        return [chunk for name in columns for chunk in self._chunks_of[name]]

    def _find_chunks(self) -> dict[str, list[int]]:
        """Positions of each column's chunks; that of a list column has a path such as history.list.element."""
        found: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for chunk in range(self._metadata.num_columns):
            path = self._metadata.schema.column(chunk).path
            parts = path.split(".")
            prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))  # names may have dots, too
            found[next(name for name in prefixes if name in found)].append(chunk)
        return found

    def _short_text(self, columns: Sequence[str]) -> list[str]:
        """Paths of the text columns that are to be read as dictionaries: all of whose chunks are small.

        A dictionary is much faster for few distinct texts, and keeps a long text that is repeated a million times
        from taking a million times its size. But it grows with its row group, so not where chunks are large.
        """
        sizes = dict.fromkeys(self._chunks(columns), 0)
        for info in self._row_groups():
            sizes = {chunk: max(size, info.column(chunk).total_uncompressed_size) for chunk, size in sizes.items()}
        found = [self._metadata.schema.column(chunk) for chunk, size in sizes.items() if size <= _DICTIONARY_BYTES]
        return [column.path for column in found if column.physical_type == "BYTE_ARRAY"]

    def _damaged(self, reason: object) -> InvalidInput:
        return InvalidInput(f"{self.path}: not a whole Parquet file: {reason}; write it again")
