"""Handling of Ctrl-C: while nothing can be lost it ends the process at once; later it raises `KeyboardInterrupt`, never during an import.

During an import, a `KeyboardInterrupt` would leave half a module behind or turn into another exception: extension modules turn any
exception during their start into an ImportError. Where Python drops an exception, as in a callback of C code or while an object is torn
down, a `KeyboardInterrupt` is raised again.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

CODE = 130
"""Exit code of a command that Ctrl-C ended: 128 plus the number of the signal, as in shells."""

_JSON = b'{\n "error": {\n  "type": "KeyboardInterrupt",\n  "message": "interrupted"\n }\n}\n'
_IMPORTS = "<frozen importlib._bootstrap>"
_POLL_S = 0.01
_waiting: list[bool] = []  # one item while a Ctrl-C waits for the end of an import


def end_at_once() -> None:
    """From here on, Ctrl-C ends the process with one line."""
    _on_interrupt(_end)


def raise_outside_imports() -> None:
    """From here on, Ctrl-C raises `KeyboardInterrupt`. During an import it waits for the import's end; a second Ctrl-C ends at once."""
    _on_interrupt(_raise)
    if not _is_ours(sys.unraisablehook):
        sys.unraisablehook = partial(_raise_again, sys.unraisablehook)


def _on_interrupt(handler: Callable[[int, FrameType | None], object]) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores SIGINT for background jobs
        signal.signal(signal.SIGINT, handler)


def _end(*_: object) -> None:
    """End the process without the interpreter's help, because it may be half-way through an import."""
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


def _is_ours(hook: object) -> bool:
    return isinstance(hook, partial) and hook.func is _raise_again


def _raise_again(otherwise: Callable[[sys.UnraisableHookArgs], object], dropped: sys.UnraisableHookArgs) -> None:
    if dropped.exc_type is KeyboardInterrupt:
        with suppress(RuntimeError):  # no thread begins while Python shuts down
            _thread.start_new_thread(_raise_later, (_thread.get_ident(),))
    else:
        otherwise(dropped)


def _raise_later(main: int) -> None:
    """Wait until the main thread imports nothing, then interrupt it."""
    while _is_importing(sys._current_frames().get(main)):
        time.sleep(_POLL_S)
    _waiting.clear()
    signal.pthread_kill(main, signal.SIGINT)  # the signal also wakes a waiting thread


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None
