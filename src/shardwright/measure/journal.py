"""A journal of the sample store: measured samples that are not in a part yet, one JSON document a line.

A line before the samples says what they were measured on, and another one wherever that changes: several machines may add to a store where
that is allowed, and another one may go on with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from shardwright.files import is_missing, read_bytes
from shardwright.measure.parts import schema

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[int, int]
Group: TypeAlias = tuple[dict[str, Any], list[Row]]
"""An identity, and the samples that have it."""

JOURNAL = "journal.jsonl"
MAX_BYTES = 1 << 30
"""Most bytes of a journal that is read; collecting makes a part of it every few hundred samples."""


def key_of(row: Mapping[str, Any]) -> Key:
    """The sample, and which of its measurements."""
    return row["sample"], row["repeat"]


class Journal:
    """The journal open for writing. Each line is handed to the operating system at once, so that it outlives this process.

    Args:
        folder: the store.
        identity: what the samples to come are measured on and for.
        name: of the file.

    Attributes:
        groups: the samples, those of each identity together.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], name: str = JOURNAL) -> None:
        self._identity = dict(identity)
        self._file = (folder / name).open("a", encoding="utf-8")
        self._written: dict[str, Any] | None = None
        self.groups: list[Group] = []
        self.clear()

    def append(self, row: Row, identity: Mapping[str, Any] | None = None) -> None:
        """Add a measured sample, by default with the journal's own identity."""
        now = self._identity if identity is None else dict(identity)
        if now != self._written:
            self._write({"identity": now})
            self._written = now
        self._write(row)
        _rows_of(self.groups, now).append(row)

    def clear(self) -> None:
        """Empty the journal, once its samples are in a part."""
        self._file.truncate(0)
        self._written = None
        self.groups = []

    def close(self) -> None:
        """Close the file; its samples stay."""
        self._file.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()


def read_journal(folder: Path, name: str = JOURNAL, columns: Collection[str] | None = None) -> list[Group]:
    """The samples in a journal, those of each identity together.

    Only a last line can have been cut short; it is left out, as is whatever else is no sample.

    Args:
        folder: the store.
        name: of the journal.
        columns: names of a sample's columns; by default those of kernel samples.

    Raises:
        InvalidInput: the journal is no file, or too large to be one.
    """
    path, wanted = folder / name, set(columns or schema().names)
    found: list[Group] = []
    identity: dict[str, Any] | None = None
    for line in () if is_missing(path) else read_bytes(path, "journal", MAX_BYTES).split(b"\n"):
        document = _parse(line)
        if "identity" in document:
            identity = document["identity"]
        elif identity is not None and document.keys() == wanted:
            _rows_of(found, identity).append(document)
    return found


def _rows_of(groups: list[Group], identity: dict[str, Any]) -> list[Row]:
    """The samples of an identity; a new group where there is none."""
    for known, rows in groups:
        if known == identity:
            return rows
    groups.append((identity, []))
    return groups[-1][1]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
