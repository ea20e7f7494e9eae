"""Starting and talking to the measuring process (`shardwright.measure.worker`)."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from shardwright.errors import MeasurementFailed
from shardwright.measure.session import Measurement
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.wire import encode_work
from shardwright.sharding.work import ShardWork

# malloc asks for transparent huge pages; without them, address translation adds noise.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


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

    Raises:
        MeasurementFailed: it cannot start: no such device, backend or room for the arena.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        command = [sys.executable, "-m", "shardwright.measure.worker", json.dumps(asdict(options))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=worker_environment(),
        )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def measure(self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str) -> Measurement:
        """Time the fused calls of one device's shards.

        Args:
            works: the shards.
            seeds: one per shard; the same work and seed always get the same batch.
            optimizer: optimizer inside backward.

        Raises:
            MeasurementFailed: the kernel cannot run, or the process ended.
        """
        request = {"works": [encode_work(work) for work in works], "seeds": list(seeds), "optimizer": optimizer}
        try:
            stdin = cast(IO[str], self._process.stdin)
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return Measurement(**self._read())

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what a dead process did not read is still to be flushed
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        line = cast(IO[str], self._process.stdout).readline()
        if not line.endswith("\n"):
            raise self._ended()
        reply = cast(dict[str, Any], json.loads(line))
        if "error" in reply:
            raise MeasurementFailed(reply["error"])
        return reply

    def _ended(self) -> MeasurementFailed:
        """What to raise when the process is gone: why, and the last lines it wrote."""
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        hint = (
            "; the machine may be out of memory: use smaller tables or a smaller arena"
            if code == -signal.SIGKILL
            else ""
        )
        return MeasurementFailed(f"the measuring process {how}{hint}. Its last lines: {' | '.join(last) or '(none)'}")


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
