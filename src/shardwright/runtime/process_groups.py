"""The process groups of a job (everyone, a host, a rail), and all messages between ranks other than exchanges of rows.

torch keeps a group with its connections and threads until it is destroyed, so modules share groups: one set for each choice of ranks,
devices per host and timeout. This module keeps weak references; torch itself holds the groups while they can be used, so none outlives a
destroyed default group. Nothing else may destroy them, not even the end of the process group that a module was created for: torch would
give a later group the name of the destroyed one, and find the destroyed group's addresses in its store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar, cast
from weakref import ref

import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.task.topology import Topology

Result = TypeVar("Result")

_LONGEST_TEXT = 4096

_Groups: TypeAlias = list[dist.ProcessGroup | None]
"""The groups of everyone, of this rank's host and of its rail, on gloo each twice; None for a group with this rank alone."""

_made: dict[tuple[tuple[int, ...], str, int, timedelta], list[ref[dist.ProcessGroup] | None]] = {}


@dataclass(frozen=True, eq=False)
class Members:
    """A process group as one of its ranks sees it.

    Attributes:
        group: the process group; None if the rank is alone in it.
        ranks: `(members,)` ranks of the job.
        me: position of this rank.
        links: `(members,)` link to each member: 0 itself, 1 inside the host, 2 between hosts.
        back: on gloo, the group again, with connections of its own: for messages to members with smaller numbers.
    """

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    me: int
    links: tuple[int, ...]
    back: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def connection(self, source: int, target: int) -> dist.ProcessGroup:
        """The group that carries messages from one member to another."""
        group = self.group if source < target else self.back
        assert group is not None
        return group

    def __deepcopy__(self, memo: Any) -> Members:
        """Itself: copies of a module share its connections."""
        return self

    def others(self, step: int) -> list[int]:
        """The other members, from the next one on (step 1) or from the one before (step -1), so that no two ranks send to one first."""
        return [(self.me + step * distance) % self.size for distance in range(1, self.size)]


@dataclass(frozen=True, eq=False)
class Ranks:
    """All process groups of one rank.

    Attributes:
        rank: rank of this process.
        world: all ranks.
        host: the devices of this host, by local rank.
        rail: the devices with this local rank, by host.
        device: where exchanged tensors must lie.
    """

    rank: int
    world: Members
    host: Members
    rail: Members
    device: torch.device

    @classmethod
    def of(cls, topology: Topology, group: dist.ProcessGroup | None, device: torch.device, timeout: timedelta) -> Ranks:
        """Create the groups, or reuse those of an earlier module; all ranks of the process group must call this.

        Raises:
            InvalidInput: the number of ranks differs from the topology's devices, or ranks differ in hosts or timeout.
            ShardwrightError: a rank did not arrive within the timeout.
        """
        parent = None
        if dist.is_available() and dist.is_initialized():
            parent = dist.group.WORLD if group is None else group
        size, rank = (1, 0) if parent is None else (dist.get_world_size(parent), dist.get_rank(parent))
        groups = _common_groups(topology, parent, device, timeout) if parent is not None and size > 0 else []
        if size != topology.devices:
            raise InvalidInput(
                f"the process group has {size} ranks, the plan's topology {topology.hosts} hosts × {topology.devices_per_host} = "
                f"{topology.devices} devices; start one process a device, or plan for {size} devices"
            )
        per_host = topology.devices_per_host
        world, host, rail = (
            _members(rank, per_host, _part_of(partition, rank), made, back)
            for partition, made, back in zip_longest(_partitions(size, per_host), groups[:3], groups[3:])
        )
        return cls(rank, world, host, rail, device)

    def __deepcopy__(self, memo: Any) -> Ranks:
        """Itself: copies of a module share its connections."""
        return self

    def texts(self, text: str) -> list[str]:
        """Exchange a text; returns every rank's text, by rank. All ranks must call this."""
        content = text.encode("utf-8")[:_LONGEST_TEXT]
        padded = len(content).to_bytes(8, "little") + content.ljust(_LONGEST_TEXT, b"\0")
        rows = [row.numpy().tobytes() for row in self.gathered(torch.frombuffer(bytearray(padded), dtype=torch.uint8))]
        return [row[8 : 8 + int.from_bytes(row[:8], "little")].decode("utf-8", "replace") for row in rows]

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """Return the `(n,)` values of all ranks as `(ranks, n)`, in main memory."""
        return _gathered(values, self.world.group, self.world.size, self.device)

    def agree(self, error: str | None) -> None:
        """Raise an error on all ranks if one of them has an error.

        Raises:
            InvalidInput: a rank has an error; the message is the same everywhere.
        """
        texts = self.texts(error or "")
        if any(texts):
            raise InvalidInput("; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text))

    def together(self, action: Callable[[], Result]) -> Result:
        """Run an action on all ranks, and raise an error on all of them if it fails on one.

        Raises:
            InvalidInput: the action failed on a rank.
        """
        error, result = "", None
        try:
            result = action()
        except (ShardwrightError, OSError) as problem:
            if self.world.group is None:
                raise
            error = str(problem) or repr(problem)
        self.agree(error)
        return cast("Result", result)

    def must_be_same(self, content: Sequence[bytes], what: str, remedy: str) -> None:
        """Raise an error on all ranks if their content differs.

        Raises:
            InvalidInput: the contents differ.
        """
        digest = hashlib.sha256()
        for part in content:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        other = _other_than_first(self.gathered(torch.frombuffer(bytearray(digest.digest()), dtype=torch.int64)))
        if other:
            raise InvalidInput(f"ranks {other[:8]} have {what} other than rank 0; {remedy}")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Explain a failed collective: name it, and state that a rank died, is stuck or has left.

    Later modules then create their own groups, since remains of the failed exchange may still arrive.
    """
    try:
        yield
    except BaseException as error:
        _made.clear()
        if not isinstance(error, RuntimeError):
            raise
        raise ShardwrightError(
            f"exchanging {what} failed: another rank died, timed out, or called another collective ({error}); "
            "read the first error of all ranks, then restart from a checkpoint"
        ) from error


def _gathered(values: torch.Tensor, group: dist.ProcessGroup | None, size: int, device: torch.device) -> torch.Tensor:
    """Return the `(n,)` values of a group's members as `(size, n)`, in main memory; a group of None has one member."""
    if group is None:
        return values[None].cpu()
    gathered = [torch.empty_like(values, device=device) for _ in range(size)]
    with explained("what the ranks tell each other"):
        dist.all_gather(gathered, values.to(device), group=group)
    return torch.stack(gathered).cpu()


def _other_than_first(rows: torch.Tensor) -> list[int]:
    """Return the rows of a matrix that differ from its first row."""
    different: list[int] = (rows != rows[0]).any(1).nonzero().flatten().tolist()
    return different


def _partitions(size: int, per_host: int) -> list[list[tuple[int, ...]]]:
    """Partition the ranks in three ways: as one world, by host, and by rail."""
    everyone = tuple(range(size))
    return [
        [everyone],
        [everyone[first : first + per_host] for first in range(0, size, per_host)],
        [everyone[local::per_host] for local in range(per_host)],
    ]


def _part_of(partition: Sequence[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    return next(ranks for ranks in partition if rank in ranks)


def _members(
    rank: int, per_host: int, ranks: tuple[int, ...], group: dist.ProcessGroup | None, back: dist.ProcessGroup | None
) -> Members:
    links = tuple(0 if other == rank else 1 if other // per_host == rank // per_host else 2 for other in ranks)
    return Members(group, ranks, ranks.index(rank), links, back)


def _common_groups(topology: Topology, parent: dist.ProcessGroup, device: torch.device, timeout: timedelta) -> _Groups:
    """Return the groups of an earlier module if all ranks know them, else new ones; none for a wrong number of ranks.

    The ranks agree first: a rank that creates groups would otherwise wait for one that reuses them or creates those of other hosts.
    """
    size, per_host = dist.get_world_size(parent), topology.devices_per_host
    key = tuple(dist.get_process_group_ranks(parent)), dist.get_backend(parent), per_host, timeout
    known = _alive(_made.get(key))
    mine = [topology.hosts, per_host, timeout // timedelta(microseconds=1), int(known is not None)]
    told = _gathered(torch.tensor(mine), parent if size > 1 else None, size, device)
    other = _other_than_first(told[:, :3])
    if other:
        raise InvalidInput(
            f"ranks {other[:8]} have other hosts or another timeout than rank 0: {_told(told[other[0]])}, rank 0 {_told(told[0])}; "
            "give all ranks the same plan and timeout"
        )
    if known is not None and bool(told[:, 3].all()):
        return known
    if size != topology.devices:
        return []
    groups = _new_groups(parent, size, per_host, timeout)
    _made[key] = [None if group is None else ref(group) for group in groups]
    return groups


def _told(row: torch.Tensor) -> str:
    hosts, per_host, microseconds = row.tolist()[:3]
    return f"{hosts} hosts × {per_host} devices and {microseconds / 1e6:g} s"


def _alive(made: list[ref[dist.ProcessGroup] | None] | None) -> _Groups | None:
    """Return the groups created before; None if there are none, or one was destroyed."""
    if made is None:
        return None
    groups = [None if reference is None else reference() for reference in made]
    used = [group for group, reference in zip(groups, made, strict=True) if reference is not None]
    try:
        alive = all(group is not None and dist.get_process_group_ranks(group) for group in used)
    except (KeyError, ValueError):
        return None
    return groups if alive else None


def _new_groups(parent: dist.ProcessGroup, size: int, per_host: int, timeout: timedelta) -> _Groups:
    """Create new groups of a parent's ranks; returns the group of this rank from each partition.

    All groups are the modules' own, the world too: its timeout differs from the parent's, and rows must not mix with the parent's messages.

    Ranks outside the parent group do not call this, so its members must create their groups without them. torch then names a group by the
    number of groups that a rank is in, which must be the same for all members.
    """
    rank, names, backend = dist.get_rank(parent), dist.get_process_group_ranks(parent), dist.get_backend(parent)
    alone = parent is not dist.group.WORLD
    groups: _Groups = []
    for _ in range(2 if backend == "gloo" else 1):
        made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for partition in _partitions(size, per_host):
            mine = _part_of(partition, rank)
            for some in [mine] if alone else partition:
                if len(some) > 1 and some not in made:
                    with explained("the addresses of the ranks"):
                        made[some] = dist.new_group(
                            [names[member] for member in some],
                            timeout=timeout,
                            backend=backend,
                            use_local_synchronization=alone,
                            sort_ranks=False,
                        )
            groups.append(made.get(mine))
    return groups
