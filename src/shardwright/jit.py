"""How hot loops are compiled: by numba, with as little machine code beside the loops themselves as can be.

numba gives each function that it compiles a wrapper for calls from Python and one for calls from C. For arguments like the state of a
search, tuples of fifty arrays, such wrappers take as long to compile as the function, and nobody calls most of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from numba import njit
from numba.core.event import Event, Listener, install_listener
from numba.extending import register_jitable

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ENTRY: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: _Function) -> _Function:
    """A function that Python calls: compiled at the first call, kept in the cache, and run without the interpreter's lock.

    Where no cache folder is writable, neither the package's own nor the user's, each process compiles for itself.
    """
    try:
        made: _Function = njit(**_ENTRY)(function)
    except RuntimeError:  # numba's only words for that
        _say_uncached()
        made = njit(**(_ENTRY | {"cache": False}))(function)
    return made


@cache
def _say_uncached() -> None:
    warnings.warn(
        "compiled code cannot be kept, for neither shardwright's own folder nor the user's cache folder is writable: every process "
        "compiles anew, which takes about a minute; set NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
        stacklevel=3,
    )


def inner(function: _Function) -> _Function:
    """A function that compiled functions call. Python may call it too, and runs it as the Python that it is."""
    return inner_with()(function)


def inner_with(**options: object) -> Callable[[_Function], _Function]:
    """As `inner`, with options of numba's, such as `fastmath`."""

    def made(function: _Function) -> _Function:
        found: _Function = register_jitable(**_INNER, **options)(function)
        return found

    return made


class _Told(Listener):
    """Tells when compiling begins and ends, of functions that need others once."""

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell, self._depth = tell, 0

    def on_start(self, event: Event) -> None:
        self._depth += 1
        if self._depth == 1:
            self._tell(True)

    def on_end(self, event: Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._tell(False)


@contextmanager
def compilation_told(tell: Callable[[bool], None]) -> Iterator[None]:
    """While this is open, `tell` hears True when numba begins to compile, and False at its end; nothing where the code is in the cache."""
    with install_listener("numba:compile", _Told(tell)):
        yield
