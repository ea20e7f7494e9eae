"""The ranks of a job: everyone, a host, a rail; and what they tell each other outside of the exchanges of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.task.topology import Topology

Result = TypeVar("Result")

_LONGEST_TEXT = 4096


@dataclass(frozen=True, eq=False)
class Members:
    """A process group as one of its ranks sees it.

    Attributes:
        group: the process group; None where the rank is alone in it.
        ranks: `(members,)` ranks of the job.
        me: position of this rank.
        links: `(members,)` link to each of them: 0 itself, 1 inside the host, 2 between hosts.
    """

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    me: int
    links: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


@dataclass(frozen=True, eq=False)
class Ranks:
    """All groups of one rank.

    Attributes:
        rank: of this process.
        world: everyone.
        host: the devices of this host, by local rank.
        rail: the devices of this local rank, by host.
        device: where tensors that are exchanged must lie.
    """

    rank: int
    world: Members
    host: Members
    rail: Members
    device: torch.device

    @classmethod
    def of(cls, topology: Topology, group: dist.ProcessGroup | None, device: torch.device, timeout: timedelta) -> Ranks:
        """Make the groups; all ranks of the process group must call this.

        Raises:
            InvalidInput: the process group has another number of ranks than the topology has devices.
        """
        started = dist.is_available() and dist.is_initialized()
        size = dist.get_world_size(group) if started else 1
        if size != topology.devices:
            raise InvalidInput(
                f"the process group has {size} ranks, the plan's topology {topology.hosts} hosts × {topology.devices_per_host} = "
                f"{topology.devices} devices; start one process a device, or plan for {size} devices"
            )
        rank = dist.get_rank(group) if started else 0
        near = topology.devices_per_host
        everyone = list(range(size))
        names = dist.get_process_group_ranks(group) if started else [0]
        makers = _Maker(rank, near, names, group, timeout)
        world = makers.make([everyone])
        host = makers.make([everyone[first : first + near] for first in range(0, size, near)])
        rail = makers.make([everyone[local::near] for local in range(near)])
        return cls(rank, world, host, rail, device)

    def texts(self, text: str) -> list[str]:
        """What every rank has to say, by rank; all ranks must call this."""
        content = text.encode("utf-8")[:_LONGEST_TEXT]
        mine = torch.zeros(_LONGEST_TEXT + 8, dtype=torch.uint8)
        mine[:8] = torch.frombuffer(bytearray(len(content).to_bytes(8, "little")), dtype=torch.uint8)
        mine[8 : 8 + len(content)] = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
        found = self.gathered(mine)
        sizes = [int.from_bytes(row[:8].numpy().tobytes(), "little") for row in found]
        return [
            row[8 : 8 + size].numpy().tobytes().decode("utf-8", "replace")
            for row, size in zip(found, sizes, strict=True)
        ]

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        """`(ranks, n)` the `(n,)` values of all ranks, in main memory."""
        if self.world.group is None:
            return values[None].cpu()
        found = [torch.empty_like(values, device=self.device) for _ in self.world.ranks]
        with explained("what the ranks tell each other"):
            dist.all_gather(found, values.to(self.device), group=self.world.group)
        return torch.stack(found).cpu()

    def agree(self, error: str | None) -> None:
        """End on all ranks if one of them has an error.

        Raises:
            InvalidInput: a rank has an error; the message is the same everywhere.
        """
        texts = self.texts(error or "")
        if any(texts):
            raise InvalidInput("; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text))

    def together(self, action: Callable[[], Result]) -> Result:
        """Do something on all ranks, and end on all of them if it fails on one.

        Raises:
            InvalidInput: it failed on a rank.
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
        """End on all ranks if they do not have the same.

        Raises:
            InvalidInput: the contents differ.
        """
        digest = hashlib.sha256()
        for part in content:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        found = self.gathered(torch.from_numpy(np.frombuffer(digest.digest(), dtype=np.int64).copy()))
        other = (found != found[0]).any(1).nonzero().flatten().tolist()
        if other:
            raise InvalidInput(f"ranks {other[:8]} have {what} other than rank 0; {remedy}")


@dataclass
class _Maker:
    rank: int
    near: int
    names: list[int]
    parent: dist.ProcessGroup | None
    timeout: timedelta

    def make(self, partition: Sequence[Sequence[int]]) -> Members:
        """The group of this rank in a partition of the ranks.

        Ranks of the job that are not in the parent group do not call this, so its members must make theirs without them; torch
        then names groups by how many a rank has made, which must be the same for all members.
        """
        mine = next(some for some in partition if self.rank in some)
        made = None
        for some in [mine] if self.parent is not None else partition:
            if len(some) > 1:
                group = dist.new_group(
                    [self.names[rank] for rank in some],
                    timeout=self.timeout,
                    backend=dist.get_backend(self.parent),
                    use_local_synchronization=self.parent is not None,
                    sort_ranks=False,
                )
                made = group if some is mine else made
        links = tuple(
            0 if rank == self.rank else 1 if rank // self.near == self.rank // self.near else 2 for rank in mine
        )
        return Members(made, tuple(mine), list(mine).index(self.rank), links)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say what failed where a collective ends with an error: a rank died, is stuck or has left."""
    try:
        yield
    except RuntimeError as error:
        raise ShardwrightError(
            f"exchanging {what} failed: a rank died, did not arrive within the timeout, or works on something else ({error}); "
            "look at the first error of all ranks, and start the job anew from a checkpoint"
        ) from error
