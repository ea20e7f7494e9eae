"""Reading tensors from `torch.save` files that may be damaged or hostile.

`torch.load(weights_only=True)` runs no code from a file, but a few bytes in one can still make it allocate gigabytes. So, before torch
sees a file, its zip directory and the opcodes of its pickle are checked: only plain, uncompressed tensors pass.
"""

from __future__ import annotations

import gzip
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.files import input_size
from shardwright.task.units import format_bytes

MOST_EXPANSION, LEAST_LIMIT = 20, 64_000_000
"""Default bound on the size a gzip file unpacks to: so many times its own, at least so many bytes. (Lists of ids expand 2 to 5
times, a file made to fill the disk 1000 times.)"""

MOST_PICKLE_BYTES = 1_000_000
CHUNK = 1 << 22

_GLOBALS = {"torch._utils _rebuild_tensor_v2", "torch IntStorage", "torch LongStorage", "collections OrderedDict"}
"""All that a pickle of integer tensors names."""

_CALLING_OPCODES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4"}
"""Further opcodes that find or call objects; tensors need none of them."""


@contextmanager
def unpacked(path: Path, max_bytes: int | None = None) -> Iterator[Path]:
    """A path to the plain file: `path` itself, or for a gzip file a temporary unpacked copy.

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
    """The tuple of integer tensors in a file, mapped into memory.

    Args:
        path: the plain file.
        name: what errors call it.
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
        # A tensor may show one stored number as a million by a stride of 0.
        if item.dtype not in (torch.int32, torch.int64) or not item.is_contiguous():
            raise InvalidInput(
                f"{name}: a tensor of {item.dtype} and strides {item.stride()}; must be contiguous int32 or int64"
            )
    return tuple(loaded)


def _check_archive(path: Path, name: str) -> None:
    """Check that the file is a zip archive of stored entries whose pickle holds nothing but tensors."""
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
    """Turn any error over the bytes of a file into InvalidInput: the parsers raise too many types to list."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidInput(f"{message} ({reason}); fetch the file again, or load and save it anew") from None
