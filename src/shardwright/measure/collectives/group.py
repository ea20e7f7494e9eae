"""The ranks of a group, which serve requests of rank 0 or of their parent process.

They are processes of this machine, or ranks that torchrun started.

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host0:29500 -m shardwright calibrate --links --device cuda

Under torchrun, every process is a rank. All ranks get every request of rank 0, as a tensor with JSON text. A rank that hangs ends itself
after the timeout; torchrun then ends the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.hardware import MACHINE, fingerprint
from shardwright.measure.collectives.rank import (
    Answer,
    Member,
    PlaceInGroup,
    RunPolicy,
    answer,
    group_backend,
    joined_group,
)
from shardwright.processes import Child, parsed
from shardwright.task.quantities import parse_count

_LOOK_S = 0.2  # interval of checks of the ranks during a wait
_LAST_WORDS_S = 5.0  # time for rank 0 to end after its last reply; its end shows the reason
_LEAVE_S = 1.0  # after the group or one rank ended: time for the other ranks to end by themselves

RANK_PROGRAM = ("-m", "shardwright.measure.collectives.rank")


class GroupFailed(MeasurementFailed):
    """A rank of the group ended or hung, so that the group must be started again. The message has the reason."""


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
        known = {number: code for number, rank in enumerate(self._ranks) if (code := rank.process.poll()) is not None}
        if not known:
            return GroupFailed("rank 0 closed its output")
        rank = min(known, key=lambda number: (known[number] >= 0, number))
        return GroupFailed(f"rank {rank} {self._ranks[rank].how_ended()}. {self._ranks[rank].last_words()}")


@contextmanager
def telling_what_is_kept() -> Iterator[None]:
    """Add a remedy, continuing from the measurements kept, to the error of a failed group."""
    try:
        yield
    except GroupFailed as error:
        raise MeasurementFailed(
            f"{error}; finished measurements are kept: run the same command again to go on"
        ) from error


_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_of_this_process() -> PlaceInGroup | None:
    """The place that torchrun's environment variables give to this process; None if torchrun did not start it.

    Raises:
        InvalidInput: the hosts have different numbers of ranks.
    """
    if not all(os.environ.get(name) for name in _VARIABLES):
        return None
    rank, world, local_rank, local_world = (parse_count(os.environ[name], name) for name in _VARIABLES[:4])
    if world % local_world or rank % local_world != local_rank:
        raise InvalidInput(
            f"WORLD_SIZE is {world}, LOCAL_WORLD_SIZE {local_world}, RANK {rank}, LOCAL_RANK {local_rank}: every host must have as many "
            "ranks, numbered host by host; use the same --nproc-per-node"
        )
    return PlaceInGroup(rank, world, local_rank, local_world)


@dataclass(frozen=True)
class LedGroup:
    """The group as rank 0 sees it.

    Attributes:
        member: this process.
        policy: how often a collective is run.
        timeout_s: longest time of a request; a rank that takes longer ends itself.
        program: serves a request on every rank.
    """

    member: Member
    policy: RunPolicy
    timeout_s: float
    program: Answer = answer

    def ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Have all ranks serve a request, and return the reply of rank 0.

        Raises:
            MeasurementFailed: a rank ended.
        """
        with _telling_of_ranks(what):
            self._share(request)
            return self._serve(request)

    def follow(self) -> None:
        """On every other rank: serve requests until rank 0 ends the group."""
        with _telling_of_ranks("by rank 0"):
            while (request := self._share({})).get("end") is None:
                self._serve(request)

    def end(self) -> None:
        """On rank 0: let the other ranks go."""
        self._share({"end": True})

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        faulthandler.dump_traceback_later(self.timeout_s, exit=True)
        try:
            return self.program(self.member, request, self.policy)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _share(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of rank 0, on every rank."""
        shared: dict[str, Any] = json.loads(self.member.texts(json.dumps(document).encode())[0])
        return shared


@contextmanager
def led_group(
    device: str,
    place: PlaceInGroup,
    timeout_s: float,
    options: Mapping[str, Any],
    policy: RunPolicy,
    program: Answer = answer,
) -> Iterator[LedGroup | None]:
    """Join the group for a block: on rank 0 with the group, on the others, which serve it meanwhile, with None.

    Args:
        device: "cpu" or "cuda".
        place: this process's place.
        timeout_s: longest time of a request.
        options: options of the ranks' start; must be the same on all ranks.
        policy: how often a collective is run.
        program: serves a request on every rank, by default for times of collectives.

    Raises:
        MeasurementFailed: the ranks were started with different options or on different hardware, or one ended.
    """
    with joined_group(device, place, timeout_s) as member:
        group = LedGroup(member, policy, timeout_s, program)
        _check_agreement(member, device, place, options)
        if place.rank:
            group.follow()
            yield None
            return
        try:
            yield group
        except InvalidInput:
            group.end()
            raise
        group.end()


@contextmanager
def _telling_of_ranks(what: str) -> Iterator[None]:
    """Turn the error of torch.distributed for a lost rank into one line."""
    try:
        yield
    except RuntimeError as error:
        raise MeasurementFailed(
            f"a rank ended or hung, asked {what} ({str(error).splitlines()[0]}); finished measurements are kept: start all hosts again"
        ) from error


def _check_agreement(member: Member, device: str, place: PlaceInGroup, options: Mapping[str, Any]) -> None:
    """Check that all ranks have the same options on the same kind of machine, and all hosts as many ranks."""
    hardware = fingerprint(device, group_backend(device))
    mine = [options, place.local_world, [hardware[key] for key in MACHINE]]
    texts = member.texts(json.dumps(mine, sort_keys=True).encode())
    others = [rank for rank, text in enumerate(texts) if text != texts[0]]
    if others:
        raise MeasurementFailed(
            f"rank {others[0]} was started with other options than rank 0, or with another number of ranks on its host, or runs on other "
            "hardware or another torch; start all hosts with the same command, on machines that are alike"
        )
