"""Child processes that serve requests: JSON documents, one per line, on standard input and output.

A process ends when its standard input closes, so it does not outlive its user. Everything else that it or its libraries print goes to a
log, whose last lines usually show why it ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import site
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self, cast

from shardwright.errors import MeasurementFailed

# malloc asks for transparent huge pages; without them, address translation adds noise.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_END_S = 5.0  # a process that has not ended by then hangs in its driver, and is left behind


class Child:
    """A Python process that serves this process; a context manager that ends it.

    Args:
        arguments: arguments of Python.
        environment: variables that differ from those of this process.

    Attributes:
        process: the process.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._log, self._unread, self._given_up = tempfile.TemporaryFile(), b"", False  # noqa: SIM115  (closed in close)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=worker_environment() | (environment or {}),
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs and was not given up."""
        return not self._given_up and self.process.poll() is None

    def send(self, request: dict[str, Any]) -> None:
        """Send a request.

        Raises:
            BrokenPipeError: the process has ended.
        """
        stdin = cast(IO[bytes], self.process.stdin)
        stdin.write((json.dumps(request) + "\n").encode())
        stdin.flush()

    def line(self, until: float) -> bytes | None:
        """The next line of the process, or its last incomplete line if it ended; None if neither comes before `until` (monotonic time)."""
        descriptor = cast(IO[bytes], self.process.stdout).fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, until - monotonic())):
                    return None
                piece = os.read(descriptor, 2**16)
                if not piece:
                    break
                self._unread += piece
        line, end, self._unread = self._unread.partition(b"\n")
        return line + end

    def how_ended(self) -> str:
        """Wait for the process to end; return how it ended, as in "exited with 1"."""
        code = self.process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def last_words(self) -> str:
        """The last lines of the process's standard error."""
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        return f"Its last lines: {' | '.join(last) or '(none)'}"

    def kill(self) -> None:
        """Kill the process. If it hangs in a driver and survives, do not wait for it."""
        self._given_up = True
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_END_S)

    def hang_up(self) -> None:
        """Close the pipes, so that the process ends by itself."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # closing flushes the data that a dead process did not read
                    pipe.close()

    def close(self, wait_s: float = _END_S) -> None:
        """End the process, by force if it has not ended by itself after `wait_s` seconds."""
        self.hang_up()
        try:
            self.process.wait(timeout=max(0.0, wait_s))
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parsed(line: bytes) -> dict[str, Any]:
    """Parse a line of reply.

    Raises:
        MeasurementFailed: the reply says that the request cannot be served.
    """
    reply = cast(dict[str, Any], json.loads(line))
    if "error" in reply:
        raise MeasurementFailed(reply["error"])
    return reply


def worker_environment() -> dict[str, str]:
    """This process's environment, with huge pages for malloc and this package importable."""
    package_root = str(Path(__file__).parents[1])
    # An installed package is found anyway, and its folder must not come before the standard library.
    paths = ["" if package_root in site.getsitepackages() else package_root, os.environ.get("PYTHONPATH", "")]
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), _HUGE_PAGES]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "GLIBC_TUNABLES": ":".join(filter(None, tunables)),
    }


def take_over_stdout() -> IO[str]:
    """In a child process: return its standard output, for replies only, and redirect the output of libraries to standard error.

    Ctrl-C is ignored here, since the parent process handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def reply(replies: IO[str], document: dict[str, Any]) -> None:
    """Write a reply, a JSON document on one line."""
    replies.write(json.dumps(document) + "\n")
    replies.flush()
