"""Measured sets as a table, read from a store, or from a Parquet file, the form in which stores are kept and exchanged.

A file has one row per set, and a second row, with `repeat` 1, for a random set that was visited again on purpose. Its columns are those of
`columns()`, but times and lookups have four digits, and reuse bins are whole numbers on a logarithmic scale. So a file of 1,000 sets takes
about 0.5 MB. The metadata of the file hold the fingerprint of the hardware.

`python -m shardwright.measure.samples STORE... -o FILE.parquet` makes one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput, printable, telling_errors
from shardwright.files import input_size, write_atomically
from shardwright.hardware import Fingerprint
from shardwright.measure.device_work import Visit
from shardwright.measure.store import chosen_hardware, fingerprint_of, hardware_of, reading, visit_of
from shardwright.measure.visits import time_of, usual_state
from shardwright.sharding.work import COLUMNS
from shardwright.task.table import DTYPE_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

BINS = 17

_FORMAT = 3  # files of version 2 have no numbers of features: 1 each
_METADATA_KEY = b"shardwright"
_STEPS, _OCTAVES = 700, 40  # steps per octave (exact to 0.05%), and octaves below 1: numbers below 2^-40 become 0
_LARGEST_RATIO = 100  # largest unpacked size over file size that a file may claim; real files stay below 10
_LARGEST_STRING = 2**20
# In these columns, bytes of equal significance are stored together, which compresses better.
_SPLIT = ("lookups", "rows", "reuse_rows.list.element", "reuse_lookups.list.element")


@cache
def columns() -> pa.Schema:
    """The columns of measured sets; one row per set and hardware.

    `sample` is a digest of the set's work, so equal sets have equal numbers in all stores. `sentinel` is the state of the machine at the
    quietest visit. `shards` holds the features of each shard; reuse bins are those of `shardwright.task.access.REUSE_EDGES`.
    """
    return _schema("float64")


@cache
def _packed_columns(version: int = _FORMAT) -> pa.Schema:
    """The columns of a file, which stores the lookups of a reuse bin as lookups per row of the bin."""
    return _schema("uint16", version)


def _schema(bin_type: str, version: int = _FORMAT) -> pa.Schema:
    import pyarrow as pa

    reuse = pa.list_(pa.type_for_alias(bin_type), BINS)
    shard = pa.struct(
        [
            ("rows", pa.int64()),
            ("dim", pa.int32()),
            ("samples", pa.int32()),
            ("lookups", pa.float64()),
            ("pooled", pa.bool_()),
            ("dtype", pa.string()),
            ("reuse_rows", reuse),
            ("reuse_lookups", reuse),
            *([("features", pa.int32())] if version > 2 else []),
        ]
    )
    return pa.schema(
        [
            ("sample", pa.int64()),
            ("repeat", pa.int8()),
            ("kind", pa.string()),
            ("label", pa.string()),
            ("batch_size", pa.int32()),
            ("optimizer", pa.string()),
            ("device_kind", pa.string()),
            ("forward_ms", pa.float64()),
            ("backward_ms", pa.float64()),
            ("visits", pa.int16()),
            ("sentinel", pa.float32()),
            ("shards", pa.list_(shard)),
        ]
    )


def read_samples(
    path: str | Path,
    *,
    hardware: Fingerprint | str | None = None,
    allow_other_hardware: bool = False,
    optimizer: str | None = None,
) -> pa.Table:
    """Read the measured sets of a store or a Parquet file, in the order of their first visit, even while another process collects.

    Controls are left out. The visits to a set are merged into one time (`shardwright.measure.visits.time_of`). A random set with several
    quiet visits gets a second row, with `repeat` 1, for the last quiet visit. The two rows show the noise, which no cost model can beat.

    Args:
        path: a store's folder, or a file.
        hardware: hardware of the sets: a fingerprint, or a part of the name of a processor or backend; None if there is only one kind.
        allow_other_hardware: take sets of any hardware, also of several kinds.
        optimizer: take sets with this optimizer only.

    Raises:
        InvalidInput: there is no store, no set matches, the sets are of several kinds of hardware, or a value is impossible.
    """
    import pyarrow.compute as pc

    if Path(path).suffix == ".parquet":
        fingerprint, table = read_parquet(path)
        chosen_hardware(path, [(0, fingerprint)], hardware, allow_other=allow_other_hardware)
    else:
        table = _stored(Path(path), hardware, allow_other=allow_other_hardware)
    table = table.filter(pc.not_equal(table["kind"], "control"))
    if optimizer is not None:
        table = table.filter(pc.equal(table["optimizer"], optimizer))
    if not table.num_rows:
        asked = "" if optimizer is None else f" with optimizer {optimizer!r}"
        raise InvalidInput(
            f"{path}: holds no readable samples{asked}; measure some with: shardwright collect -o {path}"
        )
    return table


def fingerprints(path: str | Path) -> list[Fingerprint]:
    """The hardware of the sets of a store, or of a Parquet file."""
    if Path(path).suffix == ".parquet":
        return [read_parquet(path)[0]]
    with reading(path) as db:
        return [fingerprint for _, fingerprint in hardware_of(db, "visits")]


def _stored(folder: Path, wanted: Fingerprint | str | None, *, allow_other: bool) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    shards: list[Floats] = []
    with reading(folder) as db:
        hardware = hardware_of(db, "visits")
        if not hardware:
            return columns().empty_table()
        works = {
            number: (optimizer, batch, _shards(blob, *features))
            for number, optimizer, batch, blob, *features in db.execute("SELECT * FROM works")
        }
        sets = db.execute("SELECT work, kind, label FROM sets ORDER BY id").fetchall()
        for number in chosen_hardware(folder, hardware, wanted, allow_other=allow_other):
            visits: defaultdict[int, list[Visit]] = defaultdict(list)
            for row in db.execute("SELECT * FROM visits WHERE hardware = ? ORDER BY id", (number,)):
                visits[row[1]].append(visit_of(row))
            usual = usual_state(visits.values())
            device_kind = dict(hardware)[number].get("device_kind", "cpu")
            for work, kind, label in sets:
                optimizer, batch, held = works[work]
                for repeat, made in enumerate(_measurements(visits.get(work, []), kind)):
                    forward, backward = time_of(made, usual)
                    rows.append(
                        {
                            "sample": work,
                            "repeat": repeat,
                            "kind": kind,
                            "label": label,
                            "batch_size": batch,
                            "optimizer": optimizer,
                            "device_kind": device_kind,
                            "forward_ms": forward,
                            "backward_ms": backward,
                            "visits": len(made),
                            "sentinel": min(visit.sentinel for visit in made),
                        }
                    )
                    shards.append(held)
        plain = pa.schema([field for field in columns() if field.name != "shards"])
        table = pa.Table.from_pylist(rows, schema=plain)
        return table.append_column(columns().field("shards"), _shard_lists(shards))


def _measurements(visits: Sequence[Visit], kind: str) -> Iterator[Sequence[Visit]]:
    """The visits behind each row of a set; a set has one row or two."""
    quiet = [place for place, visit in enumerate(visits) if visit.quiet]
    if kind == "random" and len(quiet) > 1:
        yield visits[: quiet[-1]]
        yield visits[quiet[-1] : quiet[-1] + 1]
    elif visits:
        yield visits


def _shards(blob: object, features: object = None) -> Floats:
    """Parse and check the numbers of a set's shards: `columns_of` and the number of features, which is 1 if none are given.

    Raises:
        ValueError: they are damaged.
    """
    if not isinstance(blob, bytes) or not isinstance(features, bytes | None):
        raise ValueError("the shards of a set are no numbers")
    numbers = np.frombuffer(blob, dtype="<f8").reshape(-1, COLUMNS)
    if not len(numbers) or not np.isfinite(numbers).all() or (np.abs(numbers) > 2.0**62).any():
        raise ValueError("the shards of a set are no numbers that can be")
    shared_by = np.ones(len(numbers)) if features is None else np.frombuffer(features, dtype="<i4")
    return np.column_stack([numbers, shared_by])


def _shard_lists(sets: Sequence[Floats]) -> pa.Array:
    """The column `shards` for these sets."""
    import pyarrow as pa

    flat = np.concatenate(sets) if sets else np.zeros((0, COLUMNS + 1))
    names = {size: name for name, size in DTYPE_BYTES.items()}
    kind = columns().field("shards").type
    reuse = [
        pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), BINS)
        for part in (flat[:, 6 : 6 + BINS], flat[:, 6 + BINS : COLUMNS])
    ]
    arrays = [
        pa.array(flat[:, 0].astype(np.int64)),
        pa.array(flat[:, 1].astype(np.int32)),
        pa.array(flat[:, 2].astype(np.int32)),
        pa.array(flat[:, 3]),
        pa.array(flat[:, 4] > 0),
        pa.array([names.get(size, f"of {size:g} bytes") for size in flat[:, 5].tolist()], pa.string()),
        *reuse,
        pa.array(flat[:, COLUMNS].astype(np.int32)),
    ]
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind.value_type))
    offsets = np.cumsum([0, *(len(each) for each in sets)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=kind)


def export_parquet(
    stores: Sequence[str | Path],
    path: str | Path,
    *,
    hardware: Fingerprint | str | None = None,
    optimizer: str | None = None,
) -> int:
    """Write the sets of stores or other files, all of one kind of hardware, into a file; return its number of rows.

    A set that several stores hold is taken from the first one.

    Args:
        stores: folders, or files.
        path: the file to write.
        hardware: as for `read_samples`; it must be the same in all stores.
        optimizer: as for `read_samples`.

    Raises:
        InvalidInput: a store has no matching set, or the sets are of several kinds of hardware.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables, known, chosen = [], np.zeros(0, np.int64), hardware
    for store in stores:
        table = read_samples(store, hardware=chosen, optimizer=optimizer)
        there = list(enumerate(fingerprints(store)))
        chosen = there[chosen_hardware(store, there, chosen, allow_other=False)[0]][1]
        numbers = table["sample"].to_numpy()
        tables.append(table.filter(~np.isin(numbers, known)))
        known = np.union1d(known, numbers)
    table = _packed(pa.concat_tables(tables).combine_chunks())
    document = json.dumps({"format": _FORMAT, "hardware": chosen}).encode()
    buffer = BytesIO()
    pq.write_table(
        table.replace_schema_metadata({_METADATA_KEY: document}),
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=["kind", "label", "optimizer", "device_kind", "shards.list.element.dtype"],
        column_encoding={f"shards.list.element.{name}": "BYTE_STREAM_SPLIT" for name in _SPLIT},
        write_page_checksum=True,
    )
    write_atomically(path, buffer.getvalue())
    return int(table.num_rows)


def read_parquet(path: str | Path) -> tuple[Fingerprint, pa.Table]:
    """Read the hardware and the sets, with `columns()`, of a file that `export_parquet` wrote.

    A footer that claims more than the file can hold is rejected before anything is allocated for it.

    Raises:
        InvalidInput: the file is truncated, changed, no file of samples, of another format, or has a missing value.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = input_size(path, "file of samples")
    try:
        with pq.ParquetFile(
            path,
            page_checksum_verification=True,
            thrift_string_size_limit=_LARGEST_STRING,
            thrift_container_size_limit=_LARGEST_STRING,
        ) as file:
            about = json.loads((file.schema_arrow.metadata or {})[_METADATA_KEY])
            if about["format"] not in (2, _FORMAT):
                raise ValueError(f"format version {about['format']}, this release reads version {_FORMAT}")
            hardware = fingerprint_of(json.dumps(about["hardware"]))
            if not file.schema_arrow.remove_metadata().equals(_packed_columns(about["format"])):
                raise ValueError("its columns are not those of measured sets")
            _check_claims(file.metadata, size)
            table = file.read(use_threads=False).combine_chunks()
            table.validate(full=True)
        for name in table.column_names:
            _check_filled(name, table[name].combine_chunks())
        return hardware, _unpacked(table.replace_schema_metadata(None))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{path}: the file of samples is damaged, or is none ({why}); get it again, or make it again from its store"
        ) from error


def _check_claims(metadata: Any, size: int) -> None:
    """Check that the sizes in the footer are possible in a file of `size` bytes."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
    stored = sum(chunk.total_compressed_size for chunk in chunks)
    if metadata.num_rows != sum(group.num_rows for group in groups) or metadata.num_rows > size:
        raise ValueError(f"it claims {metadata.num_rows} samples in {size} bytes")
    least = min([0, *(chunk.total_uncompressed_size for chunk in chunks)])
    if least < 0 or unpacked > _LARGEST_RATIO * size or stored > size:
        raise ValueError(f"it claims to unpack to {unpacked} bytes from a file of {size}")


def _check_filled(name: str, column: Any) -> None:
    """Check that a column and the fields of its lists have no missing values, which would become arbitrary numbers."""
    import pyarrow as pa

    if column.null_count:
        raise ValueError(f"column {name} has no value in {column.null_count} of {len(column)} places")
    if isinstance(column, pa.StructArray):
        for field in column.type:
            _check_filled(f"{name}.{field.name}", column.field(field.name))
    elif isinstance(column, (pa.ListArray, pa.FixedSizeListArray)):
        _check_filled(f"{name}.element", column.flatten())


def _packed(table: pa.Table) -> pa.Table:
    """The table as a file stores it: times and lookups rounded, reuse bins as steps."""
    import pyarrow as pa

    lists = table["shards"].combine_chunks()
    flat = lists.flatten()
    rows, lookups = (_bins(flat.field(name)) for name in ("reuse_rows", "reuse_lookups"))
    each = np.where(rows > 0, lookups / np.where(rows > 0, rows, 1), 0)
    new = {"lookups": pa.array(_rounded(flat.field("lookups").to_numpy())), "reuse_rows": _codes(rows)}
    return _with_shards(table, new | {"reuse_lookups": _codes(each)}, _packed_columns(), _rounded)


def _unpacked(table: pa.Table) -> pa.Table:
    """The inverse of `_packed`, up to rounding."""
    import pyarrow as pa

    flat = table["shards"].combine_chunks().flatten()
    rows, each = (
        np.where(codes > 0, np.exp2((codes - 1.0) / _STEPS - _OCTAVES), 0.0)
        for codes in (_bins(flat.field(name)) for name in ("reuse_rows", "reuse_lookups"))
    )
    arrays = [pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), BINS) for part in (rows, rows * each)]
    new: dict[str, Any] = dict(zip(("reuse_rows", "reuse_lookups"), arrays, strict=True))
    if flat.type.get_field_index("features") < 0:
        new["features"] = pa.array(np.ones(len(flat), np.int32))
    return _with_shards(table, new, columns(), None)


def _with_shards(table: pa.Table, new: dict[str, Any], schema: pa.Schema, rounding: Any) -> pa.Table:
    """The table with the fields `new` of its shards replaced, in another schema, and with its times rounded if `rounding` is given."""
    import pyarrow as pa

    lists = table["shards"].combine_chunks()
    flat, kind = lists.flatten(), schema.field("shards").type
    fields = [new[field.name] if field.name in new else flat.field(field.name) for field in kind.value_type]
    structs = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
    offsets = np.asarray(lists.offsets)
    arrays = {name: table[name] for name in table.column_names}
    arrays["shards"] = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), structs, type=kind)
    for name in ("forward_ms", "backward_ms", "sentinel") if rounding else ():
        arrays[name] = pa.array(rounding(arrays[name].to_numpy()), schema.field(name).type)
    return pa.table([arrays[name] for name in schema.names], schema=schema)


def _bins(column: Any) -> Floats:
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, BINS)


def _codes(values: Floats) -> Any:
    """Numbers as steps of a logarithmic scale; 0 for numbers below its range."""
    import pyarrow as pa

    steps = np.rint((np.log2(np.maximum(values, 2.0**-_OCTAVES)) + _OCTAVES) * _STEPS) + 1
    codes = np.where(values < 2.0**-_OCTAVES, 0, steps).astype(np.uint16)
    return pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), BINS)


def _rounded(values: Floats) -> Floats:
    """Numbers rounded to four digits."""
    return np.array([float(f"{value:.4g}") if math.isfinite(value) else value for value in values.tolist()])


@telling_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.measure.samples", description="Make one small Parquet file of sample stores."
    )
    parser.add_argument("stores", nargs="+", metavar="STORE", help="sample stores, or Parquet files")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the Parquet file")
    parser.add_argument("--optimizer", help="only the samples of this optimizer")
    parser.add_argument(
        "--hardware", metavar="NAME", help="only the samples of the processor or backend with this in its name"
    )
    options = parser.parse_args(arguments)
    rows = export_parquet(options.stores, options.output, hardware=options.hardware, optimizer=options.optimizer)
    kinds = Counter(read_parquet(options.output)[1]["kind"].to_pylist())
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    size = options.output.stat().st_size
    print(f"{rows} measurements ({what}) in {printable(str(options.output))}: {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
