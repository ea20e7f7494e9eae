"""Where results go: checked before the work that makes them, which may take hours."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.errors import InvalidInput


def check_target(path: Path | None) -> None:
    """Check that a file can be saved.

    Raises:
        InvalidInput: it would lie in a folder that does not exist, or is a folder itself.
    """
    if path is None:
        return
    if path.is_dir():
        raise InvalidInput(f"{path}: is a folder; name a file in it with -o")
    if not path.resolve().parent.is_dir():
        raise InvalidInput(f"{path}: its folder does not exist; make it first, or name a file elsewhere with -o")


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
