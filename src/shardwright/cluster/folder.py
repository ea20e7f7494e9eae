"""Where a cluster of this machine keeps its sockets and logs: a folder that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from shardwright.errors import ClusterFailed

_LONGEST_SOCKET = 107  # bytes of the path of a Unix socket
_BELOW = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_PREFIX = "shardwright-ray-"
_RANDOM = 8  # characters that `tempfile.mkdtemp` adds


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder whose path leaves room for Ray's sockets in it: in the usual temporary folder, or in /tmp where that is too deep.

    Raises:
        ClusterFailed: neither can be used.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
    try:
        yield folder
    finally:
        for _ in range(20):  # what Ray started may still be writing its last lines
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            sleep(0.1)


def _base() -> Path:
    """The first folder that is short enough and can be written."""
    bases = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")]  # noqa: S108  (mkdtemp makes a private folder)
    room = _LONGEST_SOCKET - _BELOW - len(f"/{_PREFIX}") - _RANDOM
    for base in bases:
        if len(os.fsencode(base)) <= room and os.access(base, os.W_OK | os.X_OK):
            return base
    raise ClusterFailed(
        f"--ray local: the path of a temporary folder may have {room} bytes, {bases[0]} has {len(os.fsencode(bases[0]))}; "
        "set TMPDIR to a folder with a shorter path"
    )
