"""The ranks of a job: everyone, a host, a rail; and what they tell each other outside of the exchanges of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.runtime.group_making import common_groups, gathered, job_group, partitions
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
        """Make the groups, or take those of an earlier module; all ranks of the process group must call this.

        Raises:
            InvalidInput: the process group has another number of ranks than the topology has devices, or ranks differ in hosts or timeout.
            ShardwrightError: a rank did not come within the timeout.
        """
        parent = job_group(group)
        size, rank = (1, 0) if parent is None else (dist.get_world_size(parent), dist.get_rank(parent))
        groups = common_groups(topology, parent, device, timeout) if parent is not None and size > 0 else [None] * 3
        if size != topology.devices:
            raise InvalidInput(
                f"the process group has {size} ranks, the plan's topology {topology.hosts} hosts × {topology.devices_per_host} = "
                f"{topology.devices} devices; start one process a device, or plan for {size} devices"
            )
        near = topology.devices_per_host
        world, host, rail = (
            _members(rank, near, next(some for some in partition if rank in some), made)
            for partition, made in zip(partitions(size, near), groups, strict=True)
        )
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
        return gathered(values, self.world.group, self.world.size, self.device)

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


def _members(rank: int, near: int, ranks: Sequence[int], group: dist.ProcessGroup | None) -> Members:
    links = tuple(0 if one == rank else 1 if one // near == rank // near else 2 for one in ranks)
    return Members(group, tuple(ranks), ranks.index(rank), links)
