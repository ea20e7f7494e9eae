"""The measuring process and its client: a `Worker` starts the process and requests visits.

Measuring has its own process for two reasons: it runs on one pinned core with huge pages and one thread, independently of its user; and a
kernel that crashes harms no other process.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, time
from typing import IO, TYPE_CHECKING, Any, ClassVar

from shardwright.errors import MeasurementFailed, ShardwrightError
from shardwright.hardware import import_torch, require_cuda
from shardwright.measure.backend import Arena
from shardwright.measure.backends import load_backend
from shardwright.measure.device_work import DeviceWork, Visit, decode_work, encode_work
from shardwright.measure.fused import DeviceCalls, wait_for
from shardwright.measure.timing import SENTINEL_BYTES, Elasticity, Sentinel, TimingPolicy, clock_of, time_parts
from shardwright.processes import Child, parsed, reply, take_over_stdout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a measuring process.

    Attributes:
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or your own as "package.module:ClassName", which the process imports.
        arena_bytes: room for the weights and optimizer state of one device.
        policy: how often batches are run; None for the policy of the device.
    """

    device: str
    backend: str
    arena_bytes: int
    policy: TimingPolicy | None = None


class Worker(Child):
    """A measuring process; a context manager that ends it.

    Attributes:
        answer_limit_s: longest time of an answer by kind of device. A kernel that hangs on a GPU never ends, nor does the process that
            waits for it. Kernels on a CPU end, but one run of a large device may take minutes.
        start_limit_s: longest time to load libraries and fill the arena.

    Raises:
        MeasurementFailed: the process cannot start: there is no such device or backend, or no room for the arena.
    """

    answer_limit_s: ClassVar[Mapping[str, float]] = {"cpu": 1200.0, "cuda": 120.0}
    start_limit_s: ClassVar[float] = 900.0

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        super().__init__("-m", "shardwright.measure.worker", json.dumps(asdict(options)))
        try:
            self._read(self.start_limit_s, "start")
        except BaseException:
            self.close()
            raise

    def visit(self, work: DeviceWork) -> Visit:
        """Time the fused calls of one device's shards once; the same work always gets the same batches.

        Raises:
            MeasurementFailed: the kernel cannot run, or the process ended or did not answer in time.
        """
        request = {"works": list(map(encode_work, work.works)), "seeds": work.seeds, "optimizer": work.optimizer}
        try:
            self.send(request)
        except BrokenPipeError:
            raise self._ended() from None
        answer = self._read(self.answer_limit_s[self._options.device], "answer")
        return Visit(**answer | {"elasticity": tuple(answer["elasticity"])})

    def _read(self, limit_s: float, what: str) -> dict[str, Any]:
        """Read the next reply; kill the process if it does not reply in time."""
        line = self.line(monotonic() + limit_s)
        if line is None:
            self.kill()
            raise MeasurementFailed(
                f"the measuring process sent no {what} within {limit_s:g} s and was ended: a kernel or the driver may hang; "
                f"leave this set out, or look at the device. {self.last_words()}"
            )
        if not line.endswith(b"\n"):
            raise self._ended()
        return parsed(line)

    def _ended(self) -> MeasurementFailed:
        """The error to raise when the process has ended: why it ended, and its last lines."""
        how = self.how_ended()
        if how.endswith("SIGKILL"):
            how += "; the machine may be out of memory: use smaller tables or a smaller arena"
        return MeasurementFailed(f"the measuring process {how}. {self.last_words()}")


class ReservedCore:
    """One core for one measuring process, reserved by a lock that the kernel releases when the process ends.

    The last core is tried first, since the first core usually serves the interrupts. If all are taken, the last core is shared.
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
        """Run this process only on the core, with the highest priority if that is allowed."""
        os.sched_setaffinity(0, {self.number})
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


class Session:
    """One device, ready to measure: arena, backend, clock and sentinel."""

    def __init__(self, options: WorkerOptions) -> None:
        import torch

        if options.device.startswith("cuda"):
            require_cuda()
        where = torch.device(options.device)
        self._backend = load_backend(options.backend)
        self._clock = clock_of(where)
        self._arena = Arena(options.arena_bytes, where)
        self._sentinel = Sentinel(Arena(SENTINEL_BYTES, where), self._clock)
        self._policy = options.policy or TimingPolicy.of(where.type)
        self._elasticity = Elasticity()

    def visit(self, work: DeviceWork) -> Visit:
        """Build the tables, draw the batches, warm up, and time the calls. The caller repeats a disturbed visit.

        Raises:
            MeasurementFailed: the arena or the memory outside it is too small, or the backend cannot run this.
        """
        with _refusals_said(self._arena.device):
            self._arena.reset()
            calls = DeviceCalls(work.works, work.seeds, work.optimizer, self._backend, self._arena)
            parts = [calls.forward, calls.backward]
            timing = time_parts(parts, self._clock, self._policy, self._sentinel, calls.batches, self._elasticity)
        forward, backward = timing.parts_ms
        spent = calls.spent | {"warm-up": timing.warm_up_s, "runs": timing.runs_s}
        state = timing.state_ms / timing.usual_ms
        follows = self._elasticity.of_parts.tolist()
        return Visit(forward, backward, calls.batches, state, timing.usual_ms, time(), spent, follows)


def main() -> None:
    """Serve requests until standard input ends. The one argument is a JSON document: see `WorkerOptions`."""
    given = json.loads(sys.argv[1])
    policy = TimingPolicy(**given["policy"]) if given["policy"] else None
    options = WorkerOptions(given["device"], given["backend"], given["arena_bytes"], policy)
    replies = take_over_stdout()
    core = ReservedCore() if options.device == "cpu" else None  # this variable keeps the core reserved
    try:
        torch = import_torch()
        if core is not None:
            core.pin()
            torch.set_num_threads(1)
        session = Session(options)
    except ShardwrightError as error:
        reply(replies, {"error": str(error)})
        return
    reply(replies, {"ready": True})
    for line in sys.stdin:
        reply(replies, _answer(session, json.loads(line)))


def _answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    try:
        works = tuple(decode_work(work) for work in request["works"])
        return asdict(session.visit(DeviceWork(works, tuple(request["seeds"]), request["optimizer"])))
    except ShardwrightError as error:
        return {"error": str(error)}


@contextmanager
def _refusals_said(device: torch.device) -> Iterator[None]:
    """Turn the errors of a set that does not fit or that the kernels refuse into `MeasurementFailed`, since the next set may run."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MeasurementFailed(
            f"the batch does not fit next to the arena ({_first_line(error)}); use a smaller arena, or smaller batches"
        ) from error
    except RuntimeError as error:
        wait_for(device)  # raises if the device is lost, which ends the process
        raise MeasurementFailed(
            f"the kernels cannot run this set ({_first_line(error)}); leave it out, or use another backend"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _try_lock(path: Path) -> IO[bytes] | None:
    """Open and lock a file; None if another process has locked it or it cannot be made."""
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
