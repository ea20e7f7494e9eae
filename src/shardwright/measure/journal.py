"""A journal of the sample store: measured samples that are not in a part yet, one JSON document a line.

Its first line says what the samples were measured on; that is kept when another machine goes on with the store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from shardwright.measure.parts import schema

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[int, int]

JOURNAL = "journal.jsonl"


def key_of(row: Mapping[str, Any]) -> Key:
    """The sample, and which of its measurements."""
    return row["sample"], row["repeat"]


class Journal:
    """The journal open for writing. Each line is handed to the operating system at once, so that it outlives this process.

    Args:
        folder: the store.
        identity: what the samples to come are measured on and for.
        name: of the file.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], name: str = JOURNAL) -> None:
        self._identity = identity
        self._file = (folder / name).open("a", encoding="utf-8")
        self.clear()

    def append(self, row: Row) -> None:
        """Add a measured sample."""
        if not self.rows:
            self._write({"identity": self._identity})
        self._write(row)
        self.rows.append(row)

    def clear(self) -> None:
        """Empty the journal, once its samples are in a part."""
        self._file.truncate(0)
        self.rows: list[Row] = []

    def close(self) -> None:
        """Close the file; its samples stay."""
        self._file.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()


def read_journal(
    folder: Path, name: str = JOURNAL, columns: Collection[str] | None = None
) -> tuple[dict[str, Any] | None, list[Row]]:
    """The identity and the samples in a journal; no identity without samples.

    Only a last line can have been cut short; it is left out, as is whatever else is no sample.

    Args:
        folder: the store.
        name: of the journal.
        columns: names of a sample's columns; by default those of kernel samples.
    """
    path, wanted = folder / name, set(columns or schema().names)
    documents = [_parse(line) for line in path.read_bytes().split(b"\n")] if path.exists() else []
    identities = [document["identity"] for document in documents if "identity" in document]
    rows = [document for document in documents if document.keys() == wanted]
    return (identities[0], rows) if identities and rows else (None, [])


def _parse(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
