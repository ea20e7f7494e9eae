"""The manifest of a checkpoint: which tables, and which rows are in which part."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from shardwright.errors import InvalidInput
from shardwright.files import MAX_BYTES, MAX_VALUES, parse_document
from shardwright.schema import Place, check_format, convert

FORMAT = 1
NAME = "manifest.json"
_PART = re.compile(r"rank-\d+-part-\d+-[0-9a-f]{16}\.safetensors")


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of one table in a part: how many, and their smallest and largest id."""

    table: str
    rows: int
    first: int
    last: int


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A file of some rows."""

    file: str
    bytes: int
    crc32: int
    entries: list[Entry]


class SavedTable(msgspec.Struct, forbid_unknown_fields=True):
    """A table whose rows are in the checkpoint."""

    name: str
    rows: int
    dim: int
    dtype: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """A whole checkpoint."""

    format: int
    optimizer: str
    step: int
    tables: list[SavedTable]
    parts: list[Part]


def measure(text: bytes) -> tuple[int, int]:
    """How large a manifest, or a piece of one, is for `read_manifest`: bytes, and values as `parse_json` counts them."""
    return len(text), sum(text.count(sign) for sign in (b",", b"[", b"{"))


def check_readable(size: int, values: int) -> None:
    """Check that a manifest could be read.

    Args:
        size: its bytes.
        values: its values.

    Raises:
        InvalidInput: it is too large.
    """
    if size > MAX_BYTES or values > MAX_VALUES:
        raise InvalidInput(
            f"the checkpoint's manifest may take {size} bytes and {values} values, of which at most {MAX_BYTES} and {MAX_VALUES} are read; "
            "spread the tables over several modules (tables=[...]) and give each a folder of its own"
        )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        InvalidInput: there is none, or it is not what this version writes.
    """
    path = folder / NAME
    document = parse_document(path, "checkpoint's manifest")
    place = Place(str(path))
    check_format(document, place, "checkpoint", FORMAT)
    manifest = convert(document, Manifest, place)
    alien = next((part.file for part in manifest.parts if not _PART.fullmatch(part.file)), None)
    if alien is not None:
        raise InvalidInput(f"{path}: {alien!r} is not the name of a part; save the checkpoint anew")
    return manifest


def check_fits(manifest: Manifest, tables: list[SavedTable], optimizer: str, folder: Path) -> None:
    """Check that a checkpoint has what a module needs.

    Raises:
        InvalidInput: it is of another optimizer, or a table is missing or of another shape.
    """
    if manifest.optimizer != optimizer:
        raise InvalidInput(
            f"{folder}: is of optimizer {manifest.optimizer}, the module's is {optimizer}; plan with the same one"
        )
    saved = {table.name: table for table in manifest.tables}
    for table in tables:
        found = saved.get(table.name)
        if found != table:
            has = "has no such table" if found is None else f"has {found.rows} rows × {found.dim} {found.dtype}"
            raise InvalidInput(
                f"table '{table.name}' has {table.rows} rows × {table.dim} {table.dtype}, the checkpoint {folder} {has}; "
                "load a checkpoint of the same tables"
            )
