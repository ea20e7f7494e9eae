"""Where results go: checked before the work that makes them, which may take hours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from shardwright.cli.named_files import files_named_in
from shardwright.errors import InvalidInput

_OF_STORES = (".parquet", ".json", ".jsonl")


def check_target(path: Path | None, *, inputs: Iterable[Path | None] = (), outputs: Iterable[Path | None] = ()) -> None:
    """Check that a file can be saved, and that nothing is lost by it.

    Args:
        path: where it is to be saved; None if it is not.
        inputs: files that the command reads, and sample stores; an option that was not given is None.
        outputs: the other files that the command writes.

    Raises:
        InvalidInput: it would lie in a folder that does not exist, is a folder itself, or would take the place of an input, of a file
            that an input names, of a file of a sample store, or of another output.
    """
    if path is None:
        return
    if path.is_dir():
        raise InvalidInput(f"{path}: is a folder; name a file in it with -o")
    if not path.resolve().parent.is_dir():
        raise InvalidInput(f"{path}: its folder does not exist; make it first, or name a file elsewhere with -o")
    for other in inputs:
        if other is not None and _same_file(path, other):
            raise InvalidInput(f"{path}: is an input too, which saving would overwrite; name another file to save to")
        if other is not None and path.is_file() and any(_same_file(path, named) for named in files_named_in(other)):
            raise InvalidInput(
                f"{path}: is named in {other}, and saving would overwrite it; name another file to save to"
            )
        if other is not None and other.is_dir() and _of_store(path, other):
            raise InvalidInput(
                f"{path}: files in {other} whose names end in {', '.join(_OF_STORES)} are the samples'; name a file elsewhere with -o"
            )
    for other in outputs:
        if other is not None and _same_file(path, other):
            raise InvalidInput(f"{path}: two results would be saved there, one over the other; name a file for each")


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through links too; pipes and devices, a terminal for one, lose nothing by that."""
    if one.exists() and other.exists():
        return one.is_file() and one.samefile(other)
    return one.resolve() == other.resolve()


def _of_store(path: Path, folder: Path) -> bool:
    return path.suffix in _OF_STORES and path.resolve().parent.samefile(folder)


def check_folder(path: Path) -> None:
    """Check that a folder exists or can be made.

    Raises:
        InvalidInput: it is a file, lies in one, or may not be written to.
    """
    nearest = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "may not be written to" if nearest.is_dir() else "is no folder"
        raise InvalidInput(f"{path}: {nearest} {reason}; name a folder elsewhere with -o")


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there.

    Raises:
        InvalidInput: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path}: the folder cannot be made ({error.strerror}); name one where you may write"
        ) from error
