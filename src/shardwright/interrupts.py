"""Ctrl-C: ends the process at once while nothing is lost by that, and later is a `KeyboardInterrupt`, but never in the middle of an import.

Raised there, a `KeyboardInterrupt` leaves half a module behind, or comes out as another exception: extension modules turn what
happens while they start into an ImportError.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

CODE = 130
"""Exit code of a command that Ctrl-C ended, as shells have it: 128 and the number of the signal."""

_JSON = b'{\n "error": {\n  "type": "KeyboardInterrupt",\n  "message": "interrupted"\n }\n}\n'
_IMPORTS = "<frozen importlib._bootstrap>"
_POLL_S = 0.01
_waiting: list[bool] = []  # one item while a Ctrl-C waits for the end of an import


def end_at_once() -> None:
    """From here on, Ctrl-C ends the process with one line."""
    _on_interrupt(_end)


def raise_outside_imports() -> None:
    """From here on, Ctrl-C raises `KeyboardInterrupt`, after the import under way if there is one; a second one does not wait."""
    _on_interrupt(_raise)


def _on_interrupt(handler: Callable[[int, FrameType | None], object]) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as of what a shell starts in the background
        signal.signal(signal.SIGINT, handler)


def _end(*_: object) -> None:
    """Without the interpreter's help, which may be half-way through an import."""
    if "--json" in sys.argv:
        os.write(1, _JSON)
    os.write(2, b"error: interrupted\n")
    os._exit(CODE)


def _raise(_: int, frame: FrameType | None) -> None:
    if not _is_importing(frame):
        raise KeyboardInterrupt
    if _waiting:
        _end()
    _waiting.append(True)
    _thread.start_new_thread(_raise_later, (_thread.get_ident(),))


def _raise_later(main: int) -> None:
    """Wait until the main thread imports nothing, then interrupt it."""
    while _is_importing(sys._current_frames().get(main)):
        time.sleep(_POLL_S)
    _waiting.clear()
    signal.pthread_kill(main, signal.SIGINT)  # which also wakes it, if it waits for something


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None
