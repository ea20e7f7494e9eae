"""The measuring process: reads requests from standard input and answers on standard output, one JSON document a line.

It is a process of its own so that measuring runs on one pinned core with huge pages and one thread, whatever its user does, and so that a
kernel that crashes takes nothing else with it. It ends when its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import IO, TYPE_CHECKING, Any

from shardwright.errors import MeasurementFailed, ShardwrightError
from shardwright.measure.arena import Arena
from shardwright.measure.backends import load_backend
from shardwright.measure.device_work import Visit, decode_work
from shardwright.measure.fused import DeviceCalls, wait_for
from shardwright.measure.hardware import NO_CUDA, import_torch
from shardwright.measure.timing import SENTINEL_BYTES, Sentinel, TimingPolicy, clock_of, time_parts
from shardwright.sharding.work import ShardWork

if TYPE_CHECKING:
    import torch


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


class Session:
    """One device, ready to measure: arena, backend, clock and sentinel.

    Args:
        device: "cpu" or "cuda".
        backend: name of the backend.
        arena_bytes: room for weights and optimizer state.
        policy: how often to repeat; by default the device's own.
    """

    def __init__(self, device: str, backend: str, arena_bytes: int, policy: TimingPolicy | None = None) -> None:
        import torch

        if device.startswith("cuda") and not torch.cuda.is_available():
            raise MeasurementFailed(NO_CUDA)
        where = torch.device(device)
        self._backend = load_backend(backend)
        self._clock = clock_of(where)
        self._arena = Arena(arena_bytes, where)
        self._sentinel = Sentinel(Arena(SENTINEL_BYTES, where), self._clock)
        self._policy = policy or TimingPolicy.of(where.type)

    def visit(self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str) -> Visit:
        """Build the tables, draw the batches, warm up, and time them; a disturbed visit is for the caller to repeat.

        Args:
            works: the shards of one device.
            seeds: one per shard, for its batches.
            optimizer: optimizer inside backward.

        Raises:
            MeasurementFailed: the arena or the memory beside it is too small, or the backend cannot run this.
        """
        with _refusals_said(self._arena.device):
            self._arena.reset()
            calls = DeviceCalls(works, seeds, optimizer, self._backend, self._arena)
            parts = [calls.forward, calls.backward]
            timing = time_parts(parts, self._clock, self._policy, self._sentinel, calls.batches)
        forward, backward = timing.parts_ms
        spent = calls.spent | {"warm-up": timing.warm_up_s, "runs": timing.runs_s}
        state = self._sentinel.beyond_usual(timing.state_ms)
        return Visit(forward, backward, calls.batches, state, self._sentinel.usual_ms, time(), spent)


def main() -> None:
    """Serve requests until standard input ends. The one argument is a JSON document: see `worker_client.WorkerOptions`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    options = json.loads(sys.argv[1])
    replies = _take_over_stdout()
    core = ReservedCore() if options["device"] == "cpu" else None  # kept, and so reserved, as long as the process lives
    try:
        session = _start(options, core)
    except ShardwrightError as error:
        _reply(replies, {"error": str(error)})
        return
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        _reply(replies, _answer(session, json.loads(line)))


def _start(options: dict[str, Any], core: ReservedCore | None) -> Session:
    torch = import_torch()
    if core is not None:
        core.pin()
        torch.set_num_threads(1)
    policy = TimingPolicy(**options["policy"]) if options["policy"] else None
    return Session(options["device"], options["backend"], options["arena_bytes"], policy)


def _answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    try:
        works = [decode_work(work) for work in request["works"]]
        return asdict(session.visit(works, request["seeds"], request["optimizer"]))
    except ShardwrightError as error:
        return {"error": str(error)}


def _take_over_stdout() -> IO[str]:
    """The original standard output, for replies only; whatever libraries print goes to standard error instead."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _reply(replies: IO[str], document: dict[str, Any]) -> None:
    replies.write(json.dumps(document) + "\n")
    replies.flush()


@contextmanager
def _refusals_said(device: torch.device) -> Iterator[None]:
    """A set that does not fit, or that the kernels refuse, is this set's failure, not the process's: the next one may run."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MeasurementFailed(
            f"the batch does not fit beside the arena ({_first_line(error)}); use a smaller arena, or smaller batches"
        ) from error
    except RuntimeError as error:
        wait_for(device)  # raises, and so ends the process, where the device is lost
        raise MeasurementFailed(
            f"the kernels cannot run this set ({_first_line(error)}); leave it out, or use another backend"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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


if __name__ == "__main__":
    main()
