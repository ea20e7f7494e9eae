"""Rank maps on disk: one safetensors file for all tables. Each table uses the smallest unsigned type that holds its ids.

The same maps always make the same bytes, so a plan can identify its file by SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.schema import Place, check_format, convert
from shardwright.sharding.rank_map import RankMap
from shardwright.tensor_files import reading

FORMAT = 1
LARGEST = 4 << 30
"""Largest file to read, in bytes: enough for a thousand million ids of tables below 2**32 rows."""

_HEADER = "rank_maps"
_TYPES: dict[str, type[np.unsignedinteger[Any]]] = {
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
}
_REMEDY = "name a file made by shardwright profile --rank-maps, or make it anew"


class _TableEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rows: int


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    tables: list[_TableEntry]


def save_rank_maps(maps: Mapping[str, RankMap], path: str | Path) -> None:
    """Write rank maps by table name; atomic.

    Raises:
        InvalidInput: the path cannot be written to.
    """
    write_atomically(path, rank_map_bytes(maps))


def rank_map_bytes(maps: Mapping[str, RankMap]) -> bytes:
    """Return the content of a file with these maps."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {
        str(number): rank_map.hottest.astype(np.min_scalar_type(max(rank_map.rows - 1, 0)))
        for number, rank_map in enumerate(maps.values())
    }
    tables = [{"name": name, "rows": rank_map.rows} for name, rank_map in maps.items()]
    # One metadata entry, since safetensors writes several in any order. Arrays are named by number, since a table may have any name.
    return save(arrays, metadata={_HEADER: json.dumps({"format": FORMAT, "tables": tables})})


def load_rank_maps(path: str | Path, sha256: str | None = None) -> dict[str, RankMap]:
    """Read rank maps.

    Args:
        path: the file.
        sha256: the SHA-256 that its content must have, as 64 hexadecimal digits; None for any.

    Raises:
        InvalidInput: the file cannot be read, is too large or damaged, has another SHA-256, or breaks a rule.
    """
    from safetensors import safe_open

    file, place = Path(path), Place(str(path))
    with reading(file, "file of rank maps", LARGEST, _REMEDY):
        if sha256 is not None and (digest := _digest(file)) != sha256:
            raise InvalidInput(
                f"{path}: its SHA-256 is {digest}, the plan was saved with {sha256}; put back the file that was saved with the plan, "
                "or plan again"
            )
        with safe_open(str(file), framework="np") as content:
            return _maps(content, place)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _maps(content: Any, place: Place) -> dict[str, RankMap]:
    header = _header((content.metadata() or {}).get(_HEADER), place)
    names = [entry.name for entry in header.tables]
    if len(set(names)) < len(names) or set(content.keys()) != {str(number) for number in range(len(names))}:
        raise InvalidInput(
            f"{place}: {len(list(content.keys()))} arrays for {len(set(names))} tables; every table has one; {_REMEDY}"
        )
    maps = {}
    for number, entry in enumerate(header.tables):
        with Place(place.file, f"table '{entry.name}'").naming():
            _check_slice(content.get_slice(str(number)), entry.rows)
            maps[entry.name] = _rank_map(content.get_tensor(str(number)), entry.rows)
    return maps


def _header(text: str | None, place: Place) -> _Header:
    """Return the checked header."""
    if text is None:
        raise InvalidInput(f"{place}: is no file of rank maps (its header has no '{_HEADER}'); {_REMEDY}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{place}: its header '{_HEADER}' is no JSON; {_REMEDY}") from None
    check_format(document, place, "file of rank map", FORMAT)
    return convert(document, _Header, place.at(_HEADER))


def _check_slice(part: Any, rows: int) -> None:
    """Check an array's type and shape before it is read."""
    if part.get_dtype() not in _TYPES or len(part.get_shape()) != 1 or not 0 <= part.get_shape()[0] <= rows:
        raise InvalidInput(
            f"an array of type {part.get_dtype()} and shape {part.get_shape()} for a table of {rows} rows; a rank map is a list of at "
            f"most all rows, of type {', '.join(_TYPES)}; {_REMEDY}"
        )


def _rank_map(hottest: npt.NDArray[Any], rows: int) -> RankMap:
    if hottest.size and int(hottest.max()) >= rows:  # check before the cast to int64 could make ids negative
        raise InvalidInput(f"rank map: id {hottest.max()} for a table of {rows} rows; ids must be below the rows")
    return RankMap(rows, hottest.astype(np.int64))
