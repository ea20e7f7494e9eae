"""Progress of a collection as text, for machines where only the measuring packages are installed."""

from __future__ import annotations

import sys
from time import monotonic


class Printer:
    """Prints progress on standard error, once a second."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._printed = 0.0

    def __call__(self, done: int, wanted: int) -> None:
        """Say how many of the wanted measurements are settled."""
        now = monotonic()
        if self._first is None:
            self._first = (done, now)
        if done == wanted or now - self._printed >= 1:
            rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
            print(f"\r{done}/{wanted} measured, {rate:.1f} a second", end="", file=sys.stderr, flush=True)
            self._printed = now
