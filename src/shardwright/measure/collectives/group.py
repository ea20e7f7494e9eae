"""The ranks of a group as processes of this machine: start, ask, watch and end them, and restart them after a failure.

A rank that hangs or dies costs a restart, or at worst a sample, but never the collection.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.rank import DeviceTimes, RunPolicy
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.processes import Child, parsed

_LOOK_S = 0.2  # interval of checks of the ranks during a wait
_LAST_WORDS_S = 5.0  # after rank 0 fell silent: time for it to end, which shows why
_LEAVE_S = 1.0  # after the group or one rank ended: time for the other ranks to end by themselves

RANK_PROGRAM = ("-m", "shardwright.measure.collectives.rank")


class GroupFailed(Exception):
    """The group failed to measure a sample and must be restarted. The message says why."""


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
        start_timeout_s: longest time from the start of the processes until the group is ready.
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
        self._ranks: list[Child] = []
        try:
            for rank in range(options.world):
                self._ranks.append(self._start(rank))
            self._read(options.start_timeout_s, "to get ready")
        except BaseException:
            self.close()
            raise

    def measure(self, sample: CollectiveSample) -> DeviceTimes:
        """Measure a sample.

        Raises:
            GroupHung: the sample took too long.
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
            GroupHung: the request took too long.
            GroupFailed: a rank ended.
            MeasurementFailed: the request cannot be served here.
        """
        for rank in self._ranks:
            with suppress(BrokenPipeError):  # a dead rank is found when the answer is awaited
                rank.send(request)
        return self._read(self._options.timeout_s, what)

    def close(self) -> None:
        """End all ranks: ranks that wait end by themselves, others are killed."""
        for rank in self._ranks:
            rank.hang_up()
        stop = monotonic() + _LEAVE_S
        for rank in self._ranks:
            rank.close(stop - monotonic())
        self._folder.cleanup()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, rank: int) -> Child:
        options = self._options
        settings = {
            "rank": rank,
            "world": options.world,
            "device": options.device,
            "policy": asdict(options.policy),
            "timeout_s": options.timeout_s,
            "meeting_file": str(Path(self._folder.name) / "meeting"),
        }
        # All ranks are on this machine, so the loopback interface suffices.
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return Child(*options.program, json.dumps(settings), environment=loopback)

    def _read(self, timeout_s: float, what: str) -> dict[str, Any]:
        """Read the next reply of rank 0, and watch all ranks meanwhile."""
        stop, first = monotonic() + timeout_s, self._ranks[0]
        while (line := first.line(min(stop, monotonic() + _LOOK_S))) is None:
            if any(rank.process.poll() is not None for rank in self._ranks):
                line = first.line(monotonic())  # the last reply may have just arrived
                break
            if monotonic() >= stop:
                raise GroupHung(f"the group of {self._options.world} ranks took longer than {timeout_s:g} s {what}")
        if line is None or not line.endswith(b"\n"):
            raise self._ended()
        return parsed(line)

    def _ended(self) -> GroupFailed:
        """The error to raise: which rank is the cause, how it ended, and its last lines.

        A rank that a signal ended is the likelier cause, since other ranks may have failed because of it.
        """
        now = monotonic()
        stop, settled = now + _LAST_WORDS_S, now + _LEAVE_S
        while monotonic() < stop:
            ended = [code for rank in self._ranks if (code := rank.process.poll()) is not None]
            if len(ended) == len(self._ranks) or any(code < 0 for code in ended) or (ended and monotonic() > settled):
                break
            sleep(_LOOK_S / 10)
        known = {rank: code for rank, one in enumerate(self._ranks) if (code := one.process.poll()) is not None}
        if not known:
            return GroupFailed("rank 0 closed its output")
        rank = min(known, key=lambda number: (known[number] >= 0, number))
        return GroupFailed(f"rank {rank} {self._ranks[rank].how_ended()}. {self._ranks[rank].last_words()}")


MOST_FAILURES = 5
"""This many failures in a row are the machine's fault, not a sample's."""

_TRIES = 2  # tries of a sample during which a rank ends; a sample that hangs is not tried again, since that costs another timeout


class Runner:
    """Measures samples in a group, and restarts the group when it fails; a context manager that ends it.

    Args:
        options: options of the group.
        start: starts a group.
    """

    def __init__(self, options: GroupOptions, start: Callable[[GroupOptions], RankGroup] = RankGroup) -> None:
        self._options, self._start = options, start
        self._group: RankGroup | None = None
        self._failures = 0

    def measure(self, sample: CollectiveSample) -> DeviceTimes | None:
        """Measure a sample; None if it hung, or if a rank ended in every try.

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
