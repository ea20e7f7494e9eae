"""Making the process groups of a module: everyone, the hosts and the rails, in the same order on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.runtime.shared_groups import Groups, forget_groups, known_groups, remember_groups
from shardwright.task.topology import Topology


def gathered(values: torch.Tensor, group: dist.ProcessGroup | None, size: int, device: torch.device) -> torch.Tensor:
    """`(size, n)` the `(n,)` values of the members of a group, in main memory; a group of None has one member."""
    if group is None:
        return values[None].cpu()
    found = [torch.empty_like(values, device=device) for _ in range(size)]
    with explained("what the ranks tell each other"):
        dist.all_gather(found, values.to(device), group=group)
    return torch.stack(found).cpu()


def job_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The process group that is meant: the default group unless given, None where torch.distributed was not started."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.group.WORLD if group is None else group


def common_groups(topology: Topology, parent: dist.ProcessGroup, device: torch.device, timeout: timedelta) -> Groups:
    """The groups of a rank: those of an earlier module where all ranks know them, else new ones.

    The ranks ask each other first: one that makes groups would wait for another that takes known ones, or makes those of other hosts.

    Returns:
        The groups; three times None where the topology is not one of so many ranks.

    Raises:
        InvalidInput: ranks differ in hosts or timeout.
    """
    size, near = dist.get_world_size(parent), topology.devices_per_host
    known = known_groups(parent, near, timeout)
    mine = [topology.hosts, near, timeout // timedelta(microseconds=1), int(known is not None)]
    found = gathered(torch.tensor(mine), parent if size > 1 else None, size, device)
    other = (found[:, :3] != found[0, :3]).any(1).nonzero().flatten().tolist()
    if other:
        raise InvalidInput(
            f"ranks {other[:8]} have other hosts or another timeout than rank 0: {_told(found[other[0]])}, rank 0 {_told(found[0])}; "
            "give all ranks the same plan and timeout"
        )
    if known is not None and bool(found[:, 3].all()):
        return known
    if size != topology.devices:
        return [None] * 3
    groups = _made_groups(parent, size, near, timeout)
    remember_groups(parent, near, timeout, groups)
    return groups


def _told(row: torch.Tensor) -> str:
    hosts, near, microseconds = row.tolist()[:3]
    return f"{hosts} hosts × {near} devices and {microseconds / 1e6:g} s"


def partitions(size: int, near: int) -> list[list[list[int]]]:
    """The ranks as one world, by host, and by rail."""
    everyone = list(range(size))
    return [
        [everyone],
        [everyone[first : first + near] for first in range(0, size, near)],
        [everyone[local::near] for local in range(near)],
    ]


def _made_groups(parent: dist.ProcessGroup, size: int, near: int, timeout: timedelta) -> Groups:
    """New groups of a parent's ranks: the one that this rank is in, of each partition.

    They are the modules' own, the world's too: its timeout is not the parent's, and what the parent's user sends must not meet rows.

    Ranks of the job that are not in the parent group do not call this, so its members must make theirs without them; torch then names
    groups by how many a rank is in, which must be the same for all members.
    """
    rank, names = dist.get_rank(parent), dist.get_process_group_ranks(parent)
    alone = parent is not dist.group.WORLD
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    groups: Groups = []
    for partition in partitions(size, near):
        mine = next(tuple(some) for some in partition if rank in some)
        for some in [mine] if alone else map(tuple, partition):
            if len(some) > 1 and some not in made:
                with explained("the addresses of the ranks"):
                    made[some] = dist.new_group(
                        [names[member] for member in some],
                        timeout=timeout,
                        backend=dist.get_backend(parent),
                        use_local_synchronization=alone,
                        sort_ranks=False,
                    )
        groups.append(made.get(mine))
    return groups


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say what failed where a collective ends with an error: a rank died, is stuck or has left."""
    try:
        yield
    except BaseException as error:
        forget_groups()
        if not isinstance(error, RuntimeError):
            raise
        raise ShardwrightError(
            f"exchanging {what} failed: a rank died, did not arrive within the timeout, or works on something else ({error}); "
            "look at the first error of all ranks, and start the job anew from a checkpoint"
        ) from error
