"""Where results go: checked before the work that makes them, which may take hours."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from shardwright.cli.named_files import files_named_in
from shardwright.errors import InvalidInput
from shardwright.files import is_stream, status

_OF_STORES = (".sqlite", ".json")


def check_target(path: Path | None, *, inputs: Iterable[Path | None] = (), outputs: Iterable[Path | None] = ()) -> None:
    """Check that a file can be saved, and that nothing is lost by it.

    Args:
        path: where it is to be saved; None if it is not.
        inputs: files that the command reads, and sample stores; an option that was not given is None.
        outputs: the other files that the command writes.

    Raises:
        InvalidInput: it would lie in a folder that does not exist, is a folder itself, leads nowhere, or would take the place of an
            input, of a file that an input names, of a file of a sample store, or of another output.
    """
    if path is None:
        return
    if _is_folder(path, "cannot be written"):
        raise InvalidInput(f"{path}: is a folder; name a file in it with -o")
    if is_stream(path):
        if status(path) is None:
            raise InvalidInput(f"{path}: is no open descriptor; name a file with -o")
        return
    if not path.resolve().parent.is_dir():
        raise InvalidInput(f"{path}: its folder does not exist; make it first, or name a file elsewhere with -o")
    for other in inputs:
        if other is None or not _is_there(other):  # whoever reads it in earnest says why not
            continue
        if _same_file(path, other):
            raise InvalidInput(f"{path}: is an input too, which saving would overwrite; name another file to save to")
        if path.is_file() and any(_same_file(path, named) for named in files_named_in(other) if _is_there(named)):
            raise InvalidInput(
                f"{path}: is named in {other}, and saving would overwrite it; name another file to save to"
            )
        if other.is_dir() and _of_store(path, other):
            raise InvalidInput(
                f"{path}: files in {other} whose names end in {', '.join(_OF_STORES)} are the samples'; name a file elsewhere with -o"
            )
    for other in outputs:
        if other is not None and _same_file(path, other):
            raise InvalidInput(f"{path}: two results would be saved there, one over the other; name a file for each")


def _is_folder(path: Path, else_says: str) -> bool:
    """Whether a folder is there.

    Raises:
        InvalidInput: nothing can ever be: a name is too long, or a link leads to itself.
    """
    try:
        found = status(path)
    except OSError as error:
        raise InvalidInput(f"{path}: {else_says} ({error.strerror}); name another with -o") from None
    return found is not None and stat.S_ISDIR(found.st_mode)


def _is_there(path: Path) -> bool:
    try:
        return status(path) is not None
    except OSError:
        return False


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through links too; pipes and devices, a terminal for one, lose nothing by that."""
    if _is_there(one) and _is_there(other):
        return one.is_file() and one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _of_store(path: Path, folder: Path) -> bool:
    return path.suffix in _OF_STORES and path.resolve().parent.samefile(folder)


def check_folder(path: Path) -> None:
    """Check that a folder exists or can be made.

    Raises:
        InvalidInput: it is a file, lies in one, leads nowhere, or may not be written to.
    """
    nearest = path.absolute()
    while not _is_folder(nearest, "cannot be made"):
        if status(nearest) is not None:
            raise InvalidInput(f"{path}: {nearest} is no folder; name a folder elsewhere with -o")
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInput(f"{path}: {nearest} may not be written to; name a folder elsewhere with -o")


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
