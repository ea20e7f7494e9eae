"""Starting and talking to the measuring process (`shardwright.measure.worker`)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, ClassVar, cast

from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit, encode_work
from shardwright.measure.timing import TimingPolicy

# malloc asks for transparent huge pages; without them, address translation adds noise.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_END_S = 5.0  # a process that has not ended by then hangs in its driver; it is left behind


@dataclass(frozen=True)
class WorkerOptions:
    """How a measuring process is set up.

    Attributes:
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or one's own as "package.module:ClassName", which the process imports.
        arena_bytes: room for the weights and optimizer state of one device.
        policy: how often to repeat; None for the device's own.
    """

    device: str
    backend: str
    arena_bytes: int
    policy: TimingPolicy | None = None


class Worker:
    """A measuring process; a context manager that ends it.

    Args:
        options: how it is set up.

    Attributes:
        answer_limit_s: by kind of device, how long an answer may take. A kernel of a GPU that hangs never ends, nor does the process
            that waits for it; kernels of a CPU end, but one run of a large device may take minutes.
        start_limit_s: how long loading libraries and filling the arena may take.

    Raises:
        MeasurementFailed: it cannot start: no such device, backend or room for the arena.
    """

    answer_limit_s: ClassVar[Mapping[str, float]] = {"cpu": 1200.0, "cuda": 120.0}
    start_limit_s: ClassVar[float] = 900.0

    def __init__(self, options: WorkerOptions) -> None:
        self._options, self._unread, self._given_up = options, b"", False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        command = [sys.executable, "-m", "shardwright.measure.worker", json.dumps(asdict(options))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=worker_environment()
        )
        try:
            self._read(self.start_limit_s, "start")
        except BaseException:
            self.close()
            raise

    def visit(self, work: DeviceWork) -> Visit:
        """Time the fused calls of one device's shards, once; the same work always gets the same batches.

        Raises:
            MeasurementFailed: the kernel cannot run, or the process ended, or it gave no answer for so long that it was ended.
        """
        request = {
            "works": [encode_work(one) for one in work.works],
            "seeds": list(work.seeds),
            "optimizer": work.optimizer,
        }
        try:
            stdin = cast(IO[bytes], self._process.stdin)
            stdin.write((json.dumps(request) + "\n").encode())
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return Visit(**self._read(self.answer_limit_s[self._options.device], "answer"))

    @property
    def alive(self) -> bool:
        """Whether the process runs, and is still waited for."""
        return not self._given_up and self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what a dead process did not read is still to be flushed
                    pipe.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, limit_s: float, what: str) -> dict[str, Any]:
        """The next reply; a process that gives none in time is ended."""
        line = self._line(monotonic() + limit_s)
        if line is None:
            self._kill()
            raise MeasurementFailed(
                f"the measuring process gave no sign of its {what} within {limit_s:g} s and was ended: a kernel or the driver may hang; "
                f"leave this set out, or look at the device. {self._last_words()}"
            )
        if not line.endswith(b"\n"):
            raise self._ended()
        reply = cast(dict[str, Any], json.loads(line))
        if "error" in reply:
            raise MeasurementFailed(reply["error"])
        return reply

    def _line(self, until: float) -> bytes | None:
        """A line that the process wrote, or all that it wrote before it ended; None where `monotonic` reaches `until` before."""
        descriptor = cast(IO[bytes], self._process.stdout).fileno()
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

    def _kill(self) -> None:
        """End the process without asking it. One that a driver holds on to may outlive that, and is not waited for."""
        self._given_up = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)

    def _ended(self) -> MeasurementFailed:
        """What to raise when the process is gone: why, and the last lines it wrote."""
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        hint = (
            "; the machine may be out of memory: use smaller tables or a smaller arena"
            if code == -signal.SIGKILL
            else ""
        )
        return MeasurementFailed(f"the measuring process {how}{hint}. {self._last_words()}")

    def _last_words(self) -> str:
        """The last lines that the process wrote."""
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        return f"Its last lines: {' | '.join(last) or '(none)'}"


def worker_environment() -> dict[str, str]:
    """This process's environment, with huge pages for malloc and this package importable."""
    package_root = str(Path(__file__).parents[2])
    installed = (
        package_root in site.getsitepackages()
    )  # then it is found anyway, and must not come before the standard library
    paths = ["" if installed else package_root, os.environ.get("PYTHONPATH", "")]
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), _HUGE_PAGES]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "GLIBC_TUNABLES": ":".join(filter(None, tunables)),
    }
