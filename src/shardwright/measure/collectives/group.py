"""The ranks of a group as processes of this machine: they are started, asked, watched, ended, and started anew after a failure.

A rank that hangs or dies costs a restart or at worst a sample, never the collection.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any, cast

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.rank import DeviceTimes, RunPolicy
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.worker import worker_environment

_LOOK_S = 0.2  # how often the ranks are looked at while one waits
_LAST_WORDS_S = 5.0  # after rank 0 fell silent, time for it to end and so to say why
_LEAVE_S = 1.0  # when the group is over or one rank ended, time for the others to end by themselves

RANK_PROGRAM = ("-m", "shardwright.measure.collectives.rank")


class GroupFailed(Exception):
    """The group did not measure a sample; it must be started anew. The message says why."""


class GroupHung(GroupFailed):
    """The group did not answer within the timeout."""


@dataclass(frozen=True)
class GroupOptions:
    """Options of a group.

    Attributes:
        world: ranks.
        device: "cpu" or "cuda" (one GPU a rank).
        policy: how often a collective is run.
        timeout_s: longest time of a sample.
        start_timeout_s: longest time from the start of the processes to the group's readiness.
        program: arguments of Python that run a rank.
    """

    world: int
    device: str = "cpu"
    policy: RunPolicy = field(default_factory=RunPolicy)
    timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    program: tuple[str, ...] = RANK_PROGRAM


class RankGroup:
    """Processes that form a group over the loopback interface; a context manager that ends them.

    Args:
        options: options of the group.

    Raises:
        GroupFailed: the group did not get ready.
        MeasurementFailed: torch or a GPU is missing.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="shardwright-")
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for rank in range(options.world):
                self._processes.append(self._start(rank))
            self._read(options.start_timeout_s, "to get ready")
        except BaseException:
            self.close()
            raise

    def measure(self, sample: CollectiveSample) -> DeviceTimes:
        """Measure a sample.

        Raises:
            GroupHung: it took too long.
            GroupFailed: a rank ended.
            MeasurementFailed: the sample cannot be measured here.
        """
        reply = self.ask(asdict(sample), "for a sample")
        return DeviceTimes(tuple(reply["forward_ms"]), tuple(reply["backward_ms"]))

    def ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Send a request to every rank, and wait for the reply of rank 0.

        Args:
            request: a request that the ranks' program understands.
            what: purpose of the request, for the error message.

        Raises:
            GroupHung: it took too long.
            GroupFailed: a rank ended.
            MeasurementFailed: the request cannot be served here.
        """
        line = json.dumps(request) + "\n"
        for process in self._processes:
            stdin = cast(IO[str], process.stdin)
            with suppress(BrokenPipeError):  # a dead rank is found when the answer is awaited
                stdin.write(line)
                stdin.flush()
        return self._read(self._options.timeout_s, what)

    def close(self) -> None:
        """End all ranks: waiting ones end by themselves, others by force."""
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        stop = monotonic() + _LEAVE_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, stop - monotonic()))
        for process in self._processes:
            process.kill()  # does nothing to one that has ended
            process.wait()
        self._folder.cleanup()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, rank: int) -> subprocess.Popen[str]:
        options, folder = self._options, Path(self._folder.name)
        settings = {
            "rank": rank,
            "world": options.world,
            "device": options.device,
            "policy": asdict(options.policy),
            "timeout_s": options.timeout_s,
            "meeting_file": str(folder / "meeting"),
        }
        # All ranks are on this machine: nothing of this needs another network interface.
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with self._log(rank).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *options.program, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**worker_environment(), **loopback},
            )

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.log"

    def _read(self, timeout_s: float, what: str) -> dict[str, Any]:
        """The next line of rank 0; all ranks are watched meanwhile."""
        stop = monotonic() + timeout_s
        answers = cast(IO[str], self._processes[0].stdout)
        while not select.select([answers], [], [], min(_LOOK_S, max(0.0, stop - monotonic())))[0]:
            if any(process.poll() is not None for process in self._processes):
                break
            if monotonic() >= stop:
                raise GroupHung(f"the group of {self._options.world} ranks took longer than {timeout_s:g} s {what}")
        line = answers.readline() if select.select([answers], [], [], 0)[0] else ""
        if not line.endswith("\n"):
            raise self._ended()
        reply = cast(dict[str, Any], json.loads(line))
        if "error" in reply:
            raise MeasurementFailed(reply["error"])
        return reply

    def _ended(self) -> GroupFailed:
        """The rank that is the cause, how it ended, and its last lines.

        A rank that a signal ended counts as the cause before one that failed, which it may have taken along.
        """
        now = monotonic()
        stop, settled = now + _LAST_WORDS_S, now + _LEAVE_S
        while monotonic() < stop:
            codes = [process.poll() for process in self._processes]
            ended = [code for code in codes if code is not None]
            if len(ended) == len(codes) or any(code < 0 for code in ended) or (ended and monotonic() > settled):
                break
            sleep(_LOOK_S / 10)
        polled = {rank: process.poll() for rank, process in enumerate(self._processes)}
        known = {rank: code for rank, code in polled.items() if code is not None}
        if not known:
            return GroupFailed("rank 0 closed its output")
        rank, code = min(known.items(), key=lambda item: (item[1] >= 0, item[0]))
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        last = self._log(rank).read_text(errors="replace").strip().splitlines()[-3:]
        return GroupFailed(f"rank {rank} {how}. Its last lines: {' | '.join(last) or '(none)'}")


MOST_FAILURES = 5
"""Failures in a row from which on the machine is to blame, not a sample."""

_TRIES = 2  # of a sample during which a rank ends; one that hangs is not tried again, since that costs another timeout


class Runner:
    """Measures samples in a group that is started anew when it fails; a context manager that ends it.

    Args:
        options: options of the group.
        start: starts a group.
    """

    def __init__(self, options: GroupOptions, start: Callable[[GroupOptions], RankGroup] = RankGroup) -> None:
        self._options, self._start = options, start
        self._group: RankGroup | None = None
        self._failures = 0

    def measure(self, sample: CollectiveSample) -> DeviceTimes | None:
        """The times of a sample; None if it hung, or if a rank ended each time.

        Raises:
            MeasurementFailed: the group failed too often in a row, or cannot measure here.
        """
        for _ in range(_TRIES):
            group = self._running_group()
            try:
                times = group.measure(sample)
            except GroupFailed as error:
                self._failed(error)
                if isinstance(error, GroupHung):
                    break
            else:
                self._failures = 0
                return times
        return None

    def close(self) -> None:
        """End the group."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_group(self) -> RankGroup:
        while self._group is None:
            try:
                self._group = self._start(self._options)
            except GroupFailed as error:
                self._failed(error)
        return self._group

    def _failed(self, error: GroupFailed) -> None:
        self.close()
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise MeasurementFailed(
                f"collectives between {self._options.world} processes failed {self._failures} times in a row, at last because {error}; "
                "what was measured before is kept. Use fewer ranks, a longer timeout or smaller batches"
            ) from error
