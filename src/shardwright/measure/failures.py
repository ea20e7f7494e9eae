"""Samples that could not be measured: a file beside the store's, so that they are neither tried for ever nor forgotten."""

from __future__ import annotations

import json
from pathlib import Path

from shardwright.files import is_missing, read_text
from shardwright.measure.journal import Key

FAILURES = "failures.jsonl"

MOST_IN_A_ROW = 20
"""So many failures one after another are the machine's fault, not a sample's."""


class Failures:
    """The failures of a store; a line is added at once, so that it outlives this process.

    Args:
        folder: the store.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FAILURES
        self._known = set(read_failures(folder))
        self._row = 0

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: Key, error: Exception) -> bool:
        """Note a failure; returns whether there were too many one after another."""
        with self._path.open("a", encoding="utf-8") as file:
            # Begins a line of its own, also where the one before was cut short.
            file.write("\n" + json.dumps({"sample": key[0], "repeat": key[1], "error": str(error)}))
        self._known.add(key)
        self._row += 1
        return self._row >= MOST_IN_A_ROW

    def succeeded(self) -> None:
        """Note that a sample was measured: what follows is a new row."""
        self._row = 0


def read_failures(folder: Path) -> dict[Key, str]:
    """Why samples of a store could not be measured; a line that was cut short is left out."""
    path = folder / FAILURES
    found: dict[Key, str] = {}
    for line in () if is_missing(path) else read_text(path, "list of failures").splitlines():
        try:
            content = json.loads(line)
            found[int(content["sample"]), int(content["repeat"])] = str(content["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
