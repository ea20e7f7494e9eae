"""The ranks of a group as processes of this machine: start, ask, watch and end them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.rank import RunPolicy
from shardwright.measure.processes import Child, parsed

_LOOK_S = 0.2  # interval of checks of the ranks during a wait
_LAST_WORDS_S = 5.0  # after rank 0 fell silent: time for it to end, which shows why
_LEAVE_S = 1.0  # after the group or one rank ended: time for the other ranks to end by themselves

RANK_PROGRAM = ("-m", "shardwright.measure.collectives.rank")


class GroupFailed(MeasurementFailed):
    """A rank of the group ended or hung, so that the group must be started again. The message says why."""


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

    def ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Send a request to every rank, and wait for the reply of rank 0.

        Args:
            request: a request that the ranks' program understands.
            what: purpose of the request, for the error message.

        Raises:
            GroupFailed: a rank ended, or the request took too long.
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
                raise GroupFailed(f"the group of {self._options.world} ranks took longer than {timeout_s:g} s {what}")
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


@contextmanager
def telling_what_is_kept() -> Iterator[None]:
    """Say, where a group fails, how to go on."""
    try:
        yield
    except GroupFailed as error:
        raise MeasurementFailed(f"{error}; what was measured is kept: run the same command again to go on") from error
