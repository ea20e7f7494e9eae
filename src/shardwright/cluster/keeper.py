"""What a worker of a pool runs: it keeps one state and lets jobs use it, one after another."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any


class Keeper:
    """A worker's state, made by its first job, so that an error of the factory reaches the caller as that job's error.

    Args:
        factory: makes the state.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._state: list[Any] = []

    def ready(self) -> str:
        """The name of the machine; that it answers says that the worker runs."""
        return socket.gethostname()

    def call(self, method: Callable[[Any, Any], Any], job: Any) -> Any:
        """Do a job."""
        if not self._state:
            self._state.append(self._factory())
        return method(self._state[0], job)
