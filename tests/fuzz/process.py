"""A command in a process of its own: forked from this one, which has everything imported, so that a case takes milliseconds."""

from __future__ import annotations

import atexit
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_PRINTED = 64 * 2**20
_PACKAGE = f"{os.sep}shardwright{os.sep}"


@dataclass(frozen=True)
class Limits:
    """Limits of a case.

    Attributes:
        seconds: time after which it counts as hanging.
        memory: bytes beyond those of the process that it was forked from.
        signals: signals to send, each after some seconds; none by default.
        stdout: "pipe", or a stream that takes no output: "closed" or "full".
    """

    seconds: float = 30.0
    memory: int = 1 << 30
    signals: tuple[int, float] | None = None
    stdout: str = "pipe"


@dataclass(frozen=True)
class Ran:
    """The end of a run: `code` is the exit code, or minus the signal that ended it; `memory` counts bytes above those at its start."""

    code: int
    seconds: float
    memory: int
    out: bytes
    err: bytes
    hung: bool = False
    left: bool = False


def fresh(argv: list[str]) -> Callable[[], int]:
    """The command in an interpreter of its own, as a user starts it."""
    return lambda: os.execv(sys.executable, [sys.executable, "-m", "shardwright", *argv])


def forked(argv: list[str]) -> Callable[[], int]:
    """The command in a copy of this process."""

    def run() -> int:
        from shardwright.__main__ import main

        sys.argv = ["shardwright", *argv]
        return main()

    return run


def run(function: Callable[[], int], folder: Path, limits: Limits) -> Ran:
    """Run a function in a child whose working folder is `folder`, until it ends or breaks a limit."""
    ours, theirs = zip(os.pipe(), os.pipe(), strict=True)
    begin, told = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child is in the command
    pid = os.fork()
    if not pid:
        os.read(begin, 1)
        _child(function, folder, theirs, limits)
    before = _resident(pid)  # less than this process holds: a fork has no pages of files yet
    os.write(told, b"x")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for end in (*theirs, begin, told):
        os.close(end)
    try:
        return _watched(pid, ours, before, limits)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        for end in ours:
            os.close(end)


def _watched(pid: int, ends: tuple[int, ...], before: int, limits: Limits) -> Ran:
    start, printed, due, hung = time.monotonic(), {end: bytearray() for end in ends}, limits.signals, False
    open_ends, most = set(ends), 0
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        _drain(open_ends, printed, 0.0 if done else 0.005)
        elapsed = time.monotonic() - start
        if done:
            break
        if due is not None and elapsed >= due[1]:
            with suppress(ProcessLookupError):
                os.killpg(pid, due[0])
            due = None
        most = max(most, _resident(pid) - before)  # the kernel's own peak may lag behind
        if not hung and (elapsed > limits.seconds or most > limits.memory):
            hung = elapsed > limits.seconds
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    out, err = (bytes(printed[end]) for end in ends)
    return Ran(code, elapsed, max(usage.ru_maxrss * 1024 - before, most), out, err, hung, _others(pid))


def _drain(open_ends: set[int], printed: dict[int, bytearray], wait: float) -> None:
    """Read the available output; wait a moment if there is none."""
    if not open_ends:
        time.sleep(wait)
    while open_ends:
        ready, _, _ = select.select(list(open_ends), [], [], wait)
        for end in ready:
            data = os.read(end, 1 << 20)
            if not data:
                open_ends.discard(end)
            elif len(printed[end]) < MOST_PRINTED:
                printed[end] += data
        if not ready:
            return
        wait = 0.0


def _others(pid: int) -> bool:
    """Whether processes that the child started outlive it; they get a moment to end."""
    for _ in range(20):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds now."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _child(function: Callable[[], int], folder: Path, ends: tuple[int, ...], limits: Limits) -> None:
    """Never returns."""
    code = 1
    atexit._clear()  # exit handlers of the parent process are not ours
    try:
        _settle(folder, ends, limits)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = function()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt as error:
        code = 130  # before the command began, or after it ended, it is no fault of its own
        places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if any(_PACKAGE in place and "__main__" not in place for place in places):
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _settle(folder: Path, ends: tuple[int, ...], limits: Limits) -> None:
    os.setpgid(0, 0)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open("/dev/full", os.O_WRONLY) if limits.stdout == "full" else ends[0], 1)
    if limits.stdout == "closed":
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
        os.close(writer)
    os.dup2(ends[1], 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 – of the process
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 30, 2 << 30))


def _leave(code: int) -> None:
    """End as an interpreter does, but without returning to the process that this one was forked from."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 120
    os._exit(code)
