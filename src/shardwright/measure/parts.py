"""One Parquet part of the sample store: its columns, writing it atomically, and reading it without trust."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput
from shardwright.files import input_size, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
"""Version of the sample format."""

REUSE_BINS = 17
_METADATA_KEY = b"shardwright"
_LARGEST_RATIO = 100  # most a part may claim to unpack to; real ones stay below 10
_LARGEST_STRING = 2**20


class DamagedPart(Exception):
    """A part cannot be read; the message says why."""


@cache
def schema() -> pa.Schema:
    """Columns of a part of kernel samples; one row per measurement."""
    import pyarrow as pa

    shard = pa.struct(
        [
            ("rows", pa.int64()),
            ("dim", pa.int32()),
            ("samples", pa.int32()),
            ("lookups", pa.float64()),
            ("pooled", pa.bool_()),
            ("dtype", pa.string()),
            ("reuse_rows", pa.list_(pa.float32(), REUSE_BINS)),
            ("reuse_lookups", pa.list_(pa.float32(), REUSE_BINS)),
        ]
    )
    return pa.schema(
        [
            ("sample", pa.int64()),
            ("repeat", pa.int8()),
            ("batch_size", pa.int32()),
            ("optimizer", pa.string()),
            ("device_kind", pa.string()),
            ("forward_ms", pa.float64()),
            ("backward_ms", pa.float64()),
            ("runs", pa.int16()),
            ("sentinel", pa.float32()),
            ("measured_at", pa.timestamp("ms", tz="UTC")),
            ("shards", pa.list_(shard)),
        ]
    )


def rows_to_table(rows: Sequence[dict[str, Any]], columns: pa.Schema | None = None) -> pa.Table:
    """A table of rows; `measured_at` is given in milliseconds since 1970. By default with the columns of kernel samples."""
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=columns or schema())


def write_part(path: Path, table: pa.Table, identity: dict[str, Any], **encoding: Any) -> None:
    """Write a part atomically, with the identity in its metadata and a checksum on each page.

    Args:
        path: the part.
        table: its samples.
        identity: what they were measured on and for.
        **encoding: options of `pyarrow.parquet.write_table`, for parts that are to be small.
    """
    import pyarrow.parquet as pq

    labelled = table.replace_schema_metadata({_METADATA_KEY: json.dumps(identity).encode()})
    buffer = BytesIO()
    pq.write_table(labelled, buffer, compression="zstd", write_page_checksum=True, **encoding)
    write_atomically(path, buffer.getvalue())


def read_part(path: Path, columns: pa.Schema | None = None) -> tuple[dict[str, Any], pa.Table]:
    """The identity and the samples of a part.

    A footer that claims more than the file can hold is refused before anything is allocated for it.

    Args:
        path: the part.
        columns: what it must hold; by default those of kernel samples.

    Raises:
        DamagedPart: the file is cut short, changed, not a part, or of another format version.
        InvalidInput: it is whole, but a value is missing in it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = input_size(path, "part")
        with pq.ParquetFile(
            path,
            page_checksum_verification=True,
            thrift_string_size_limit=_LARGEST_STRING,
            thrift_container_size_limit=_LARGEST_STRING,
        ) as part:
            identity = _identity_of(part.schema_arrow, columns or schema())
            _check_claims(part.metadata, size)
            table = part.read(use_threads=False)
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedPart(
            f"the part is damaged ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error
    check_filled(path, table)
    return identity, table.replace_schema_metadata(None)


def check_filled(path: Path, table: pa.Table) -> None:
    """Check that no value of a file's samples is missing.

    Raises:
        InvalidInput: one is; the message names file, column and row.
    """
    for name in table.column_names:
        _check_column(path, name, table[name].combine_chunks())


def _check_column(path: Path, name: str, column: Any) -> None:
    """Refuse a column, or a field of its lists, with a value missing: as a number it would be anything."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        unit, place = "entry" if "." in name else "row", pc.index(column.is_null(), True).as_py()
        raise InvalidInput(
            f"{path}: column {name} has no value in {unit} {place} of {len(column)}, must have one in each; remove this file, and collect "
            "again what it held"
        )
    if isinstance(column, pa.StructArray):
        for field in column.type:
            _check_column(path, f"{name}.{field.name}", column.field(field.name))
    elif isinstance(column, (pa.ListArray, pa.FixedSizeListArray)):
        _check_column(path, f"{name}.element", column.flatten())


def _identity_of(found: pa.Schema, columns: pa.Schema) -> dict[str, Any]:
    """The identity in the metadata, checked; and the columns, checked."""
    identity = json.loads((found.metadata or {})[_METADATA_KEY])
    if identity["format"] != FORMAT:
        raise ValueError(f"format version {identity['format']}, this release reads version {FORMAT}")
    if not isinstance(identity["hardware"], dict) or not isinstance(identity["request"], dict):
        raise ValueError("its metadata has no hardware and request")
    if not found.remove_metadata().equals(columns):
        raise ValueError("its columns are not those of a sample part")
    return dict(identity)


def _check_claims(metadata: Any, size: int) -> None:
    """Check that what the footer claims can be in a file of `size` bytes."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    unpacked = sum(column.total_uncompressed_size for column in columns)
    stored = sum(column.total_compressed_size for column in columns)
    if metadata.num_rows != sum(group.num_rows for group in groups) or metadata.num_rows > size:
        raise ValueError(f"it claims {metadata.num_rows} samples in {size} bytes")
    if (
        min([0, *(column.total_uncompressed_size for column in columns)]) < 0
        or unpacked > _LARGEST_RATIO * size
        or stored > size
    ):
        raise ValueError(f"it claims to unpack to {unpacked} bytes from a file of {size}")
