"""A CPU core to measure on, that no other measuring process of this machine uses."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO


class ReservedCore:
    """One core for one measuring process, reserved by a lock that the kernel releases when the process ends.

    Cores are tried last first: the first one usually serves the interrupts. When all are taken, the last one is shared.

    Attributes:
        number: the core.
    """

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        self.number = cores[0]
        self._lock: IO[bytes] | None = None
        for core in cores:
            lock = _try_lock(Path(tempfile.gettempdir()) / f"shardwright-{os.getuid()}-core-{core}.lock")
            if lock is not None:
                self.number, self._lock = core, lock
                break

    def pin(self) -> None:
        """Run this process on the core alone, before other programs where that is allowed."""
        os.sched_setaffinity(0, {self.number})
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def _try_lock(path: Path) -> IO[bytes] | None:
    """The open, locked file; None where another process has it or it cannot be made."""
    try:
        handle = os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb")
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle
