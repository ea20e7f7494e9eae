"""Processes of this machine, as /proc lists them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def descendants(root: int) -> list[int]:
    """The processes below a process, zombies left out."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    pids = [root]
    for pid in pids:
        pids += children.get(pid, [])
    return pids[1:]


def named(root: int, text: str) -> list[int]:
    """The processes below a process whose command line holds a text."""
    return [pid for pid in descendants(root) if _holds(Path(f"/proc/{pid}/cmdline"), text)]


def mentioning(text: str) -> list[int]:
    """All processes whose command line holds a text."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _holds(path, text)]


def _holds(path: Path, text: str) -> bool:
    with suppress(OSError):
        return text.encode() in path.read_bytes()
    return False


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], message: str, seconds: float = 300.0) -> None:
    """Wait for a condition, which must come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)
