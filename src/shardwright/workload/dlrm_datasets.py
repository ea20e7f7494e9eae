"""Read the files of facebookresearch/dlrm_datasets: one batch of lookups into hundreds of tables, `.pt` or `.pt.gz`.

A file is a tuple (indices, offsets, lengths) written by `torch.save`: `(n,)` row ids of all tables, one table after another;
`(tables × samples + 1,)` starts of the bags; `(tables, samples)` sizes of the bags. The file is mapped into memory instead of read, and
returned table by table. It is not trusted.

`torch.load(weights_only=True)` runs no code from a file, but a few bytes of a file can make it allocate gigabytes. So the zip directory
and the pickle's opcodes are checked before torch sees the file: only plain, uncompressed tensors pass.
"""

from __future__ import annotations

import gzip
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput, MissingDependency
from shardwright.files import input_size
from shardwright.task import AccessProfile, Table
from shardwright.task.quantities import format_bytes
from shardwright.workload.batches import Batch
from shardwright.workload.generators import POOL_DIM

MOST_EXPANSION, LEAST_LIMIT = 20, 64_000_000
"""Default bound on the unpacked size of a gzip file: this multiple of its own size, and at least this many bytes. (Lists of ids
expand 2 to 5 times; a file made to fill the disk expands 1000 times.)"""

MOST_PICKLE_BYTES = 1_000_000
CHUNK = 1 << 22

_GLOBALS = {"torch._utils _rebuild_tensor_v2", "torch IntStorage", "torch LongStorage", "collections OrderedDict"}
"""The only globals in a pickle of integer tensors."""

_CALLING_OPCODES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4"}
"""Further opcodes that find or call objects; tensors need none of them."""


@contextmanager
def unpacked(path: Path, max_bytes: int | None = None) -> Iterator[Path]:
    """Yield the path of the plain file: `path` itself, or a temporary unpacked copy of a gzip file.

    Raises:
        InvalidInput: the file cannot be read, is damaged, or unpacks to more than `max_bytes`.
    """
    size = input_size(path, "data set")
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); give the path of a .pt or .pt.gz file"
        ) from None
    if not is_gzip:
        yield path
        return
    limit = max(LEAST_LIMIT, MOST_EXPANSION * size) if max_bytes is None else max_bytes
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        plain = Path(folder) / "plain.pt"
        _gunzip(path, plain, limit)
        yield plain


def _gunzip(path: Path, target: Path, limit: int) -> None:
    written = 0
    try:
        with gzip.open(path) as source, target.open("wb") as sink:
            while chunk := source.read(CHUNK):
                written += len(chunk)
                if written > limit:
                    raise InvalidInput(
                        f"{path.name}: unpacks to more than {format_bytes(limit)}; if the file is sound, raise max_bytes"
                    )
                sink.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{path.name}: damaged or cut short ({error}); fetch it again") from None
    except OSError as error:
        raise InvalidInput(
            f"{path.name}: cannot be unpacked into {target.parent} ({error.strerror}); "
            "set TMPDIR to a folder with enough space"
        ) from None


def load_tensors(path: Path, name: str, count: int) -> tuple[Any, ...]:
    """Return the tuple of integer tensors in a file, mapped into memory.

    Args:
        path: the plain file.
        name: its name in errors.
        count: number of tensors the file must hold.

    Raises:
        InvalidInput: the file holds anything else, or is damaged.
        MissingDependency: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingDependency(
            "reading .pt files needs torch; install it with: pip install 'shardwright[learn]'"
        ) from None
    _check_archive(path, name)
    with _damage_is_invalid(f"{name}: torch cannot load it"):
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    is_tuple = isinstance(loaded, (tuple, list)) and len(loaded) == count
    if not is_tuple or not all(torch.is_tensor(item) for item in loaded):
        raise InvalidInput(f"{name}: must hold a tuple of {count} tensors")
    for item in loaded:
        # With a stride of 0 a tensor may show one stored number as a million.
        if item.dtype not in (torch.int32, torch.int64) or not item.is_contiguous():
            raise InvalidInput(
                f"{name}: a tensor of {item.dtype} and strides {item.stride()}; must be contiguous int32 or int64"
            )
    return tuple(loaded)


def _check_archive(path: Path, name: str) -> None:
    """Check that the file is a zip archive of stored entries, and that its pickle holds tensors only."""
    size = path.stat().st_size
    with (
        _damage_is_invalid(f"{name}: not a complete torch.save archive of torch 1.6 or later"),
        zipfile.ZipFile(path) as archive,
    ):
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size:
                raise InvalidInput(
                    f"{name}: entry {entry.filename!r} is compressed or larger than the file; "
                    "save the tensors anew with torch.save, which writes plain entries"
                )
        pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MOST_PICKLE_BYTES:
            raise InvalidInput(f"{name}: must hold one data.pkl of at most {MOST_PICKLE_BYTES} bytes")
        content = archive.read(pickles[0])
    with _damage_is_invalid(f"{name}: its pickle is damaged"):
        _check_pickle(content, name)


def _check_pickle(content: bytes, name: str) -> None:
    """Check the opcodes of a pickle, without running them."""
    import pickletools

    for opcode, argument, _ in pickletools.genops(content):
        is_global = opcode.name == "GLOBAL"
        if (is_global and argument not in _GLOBALS) or opcode.name in _CALLING_OPCODES:
            raise InvalidInput(
                f"{name}: its pickle calls {argument if is_global else opcode.name!r}, which may run code; "
                "only plain integer tensors are read"
            )


@contextmanager
def _damage_is_invalid(message: str) -> Iterator[None]:
    """Turn any error about the bytes of a file into InvalidInput: the parsers raise too many types to list."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidInput(f"{message} ({reason}); fetch the file again, or load and save it anew") from None


def iter_tables(path: str | Path, *, max_bytes: int | None = None) -> Iterator[tuple[str, Batch]]:
    """Yield the tables of a file one after another, each as a name (`t000`, `t001`, …) and a batch.

    The arrays of a batch may be views of the mapped file; memory use is that of one table.

    Args:
        path: a `.pt` file, or a `.pt.gz` file, which is unpacked into the directory for temporary files (`TMPDIR`) and
            removed at the end.
        max_bytes: most bytes a `.pt.gz` file may unpack to; by default 20 times its size, and at least 64 MB.

    Raises:
        InvalidInput: the file cannot be read, is not such a data set, or contradicts itself.
    """
    path = Path(path)
    with unpacked(path, max_bytes) as plain:
        indices, offsets, lengths = load_tensors(plain, path.name, count=3)
        _check_shapes(path.name, indices, offsets, lengths)
        tables, samples = lengths.shape
        for number in range(tables):
            bounds = offsets[number * samples : (number + 1) * samples + 1].numpy().astype(np.int64, copy=False)
            yield (
                f"t{number:03d}",
                _table_batch(f"{path.name}: table {number}", indices, bounds, lengths[number].numpy()),
            )


def read_tables(
    path: str | Path,
    *,
    rows: Sequence[int] | None = None,
    dim: int = POOL_DIM,
    unseen: Literal["never", "good_turing"] = "never",
    max_bytes: int | None = None,
) -> list[Table]:
    """Return the tables of a file with their pooling factors and access profiles, without tables that the batch never looks up.

    Args:
        path: as in `iter_tables`.
        rows: `(tables,)` rows of each table; by default the largest id plus 1, as in the papers.
        dim: dim of all tables; the files have none.
        unseen: how often rows outside the batch are looked up. "never", or "good_turing": together as often as the rows that
            occur once in the batch (Good 1953), unless that would make one of them hotter than a seen row.
        max_bytes: as in `iter_tables`.

    Raises:
        InvalidInput: as in `iter_tables`, or `rows` does not match the file.
    """
    if unseen not in ("never", "good_turing"):
        raise InvalidInput(f"unseen is {unseen!r}, must be 'never' or 'good_turing'")
    result = []
    number = -1
    for number, (name, batch) in enumerate(iter_tables(path, max_bytes=max_bytes)):
        if rows is not None and number >= len(rows):
            raise InvalidInput(f"rows lists {len(rows)} tables, {Path(path).name} has more; give one number a table")
        if batch.indices.size:
            result.append(_table(name, batch, None if rows is None else rows[number], dim, unseen))
    if rows is not None and len(rows) != number + 1:
        raise InvalidInput(
            f"rows lists {len(rows)} tables, {Path(path).name} has {number + 1}; give one number a table"
        )
    return result


def _check_shapes(file: str, indices: Any, offsets: Any, lengths: Any) -> None:
    """Check that the three tensors fit each other, without reading their content."""
    shapes = [tuple(tensor.shape) for tensor in (indices, offsets, lengths)]
    if [len(shape) for shape in shapes] != [1, 1, 2] or 0 in shapes[2]:
        raise InvalidInput(
            f"{file}: indices, offsets and lengths have the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; "
            "must be (n,), (tables × samples + 1,) and (tables, samples)"
        )
    tables, samples = shapes[2]
    if offsets.numel() != tables * samples + 1:
        raise InvalidInput(
            f"{file}: {offsets.numel()} offsets do not go with lengths of {tables} tables × {samples} samples; "
            f"must be {tables * samples + 1}"
        )
    first, last = int(offsets[0]), int(offsets[-1])
    if (first, last) != (0, indices.numel()):
        raise InvalidInput(
            f"{file}: offsets run from {first} to {last}, must run from 0 to the number of indices, {indices.numel()}"
        )


def _table_batch(where: str, indices: Any, bounds: Ints, lengths: Any) -> Batch:
    """Return the checked lookups of one table; `bounds` are `(samples + 1,)` positions in `indices`."""
    sizes = np.diff(bounds)
    if (sizes < 0).any() or bounds[0] < 0 or bounds[-1] > indices.numel():
        raise InvalidInput(f"{where}: offsets must rise from 0 to the number of indices; one falls or lies outside")
    if (sizes != lengths).any():
        sample = int(np.flatnonzero(sizes != lengths)[0])
        raise InvalidInput(
            f"{where}: sample {sample} has {sizes[sample]} indices by the offsets but {lengths[sample]} by the lengths; must agree"
        )
    ids = indices[int(bounds[0]) : int(bounds[-1])].numpy().astype(np.int64, copy=False)
    if ids.size and ids.min() < 0:
        raise InvalidInput(f"{where}: index {ids.min()} is negative; row ids count from 0")
    return Batch(ids, bounds - bounds[0])


def _table(name: str, batch: Batch, rows: int | None, dim: int, unseen: str) -> Table:
    """Return the table with the statistics of a batch that has at least one lookup."""
    largest = int(batch.indices.max())
    if rows is None:
        rows = largest + 1
    elif rows <= largest:
        raise InvalidInput(
            f"rows of table {name} is {rows}, but the batch looks up row {largest}; must be at least {largest + 1}"
        )
    counts = _counts(batch.indices, largest + 1)
    access = AccessProfile.from_counts(counts, rows)
    if unseen == "good_turing":
        access = _with_unseen(AccessProfile.from_counts(counts), rows, int((counts == 1).sum()) / batch.indices.size)
    return Table(name, rows, dim, batch.indices.size / (batch.offsets.size - 1), access=access)


def _counts(indices: Ints, rows: int) -> Ints:
    """Count the accesses of each row that occurs. An array is faster, unless a few large ids would make it huge."""
    if rows <= 8 * indices.size + 1_000_000:
        counts = np.bincount(indices)
        return counts[counts > 0]
    return np.unique(indices, return_counts=True)[1]


def _with_unseen(seen: AccessProfile, rows: int, mass: float) -> AccessProfile:
    """Return the profile of the seen rows, with `mass` of the accesses spread evenly over the rest of `rows` rows."""
    others = rows - seen.total_rows
    if others == 0 or mass == 0:
        return seen
    coldest = (seen.share[-1] - seen.share[-2]) / (seen.rows[-1] - seen.rows[-2])
    mass = min(mass, others * coldest / (1 + others * coldest))
    return AccessProfile(np.append(seen.rows, float(rows)), np.append(seen.share * (1 - mass), 1.0))
