"""Files that a document names: task files name files of tables, files of training tasks name both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardwright.errors import InvalidInput
from shardwright.files import parse_document

_DOCUMENTS = (".json", ".yaml", ".yml")
_MOST = 1000  # documents read: what names itself ends too


def files_named_in(path: Path) -> list[Path]:
    """The files that a document names, and that those name: every `{file: …}` in it, relative to the document's folder.

    Args:
        path: any file. One that is no YAML or JSON by its name, or cannot be read, names none: whoever reads it in earnest says why.
    """
    found, waiting = dict[Path, None](), [path]
    while waiting and len(found) < _MOST:
        document = waiting.pop()
        new = [document.parent / name for name in _names(_content(document))]
        waiting += [file for file in new if file not in found]
        found |= dict.fromkeys(new)
    return list(found)


def _content(path: Path) -> object:
    if path.suffix.lower() not in _DOCUMENTS or not path.is_file():
        return None
    try:
        return parse_document(path)
    except InvalidInput:
        return None


def _names(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _names(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "file" and isinstance(value, str):
                yield value
            else:
                yield from _names(value)
