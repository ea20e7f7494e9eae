"""Progress of measuring: what is told, and how it is shown where only the measuring packages are installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the measurements made and those wanted, in all, and a few words on what else there is to say."""


class Printer:
    """Prints progress on standard error, once a second."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._printed, self._width = 0.0, 0

    def __call__(self, done: int, wanted: int, detail: str = "") -> None:
        """Say how many of the wanted measurements are made."""
        now = monotonic()
        if self._first is None:
            self._first = (done, now)
        if done == wanted or now - self._printed >= 1:
            rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
            line = f"{done}/{wanted} measured, {rate:.1f} a second{detail and f'; {detail}'}"
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._printed, self._width = now, len(line)
