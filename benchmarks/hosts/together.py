"""Start ranks at the same instant: all hosts of a test bed share this machine's clock."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, sleep

import torch
import torch.distributed as dist

from shardwright.runtime.process_groups import Members
from shardwright.runtime.wire import Arrival

_MARGIN_S = 4e-3  # time for the agreement to reach every rank


def common_start() -> float:
    """Wait for the common start of all ranks, and return it in seconds of `perf_counter`.

    On a busy machine ranks leave a barrier one after the other, so exchanges between pairs would not share the link.
    """
    latest = torch.tensor([perf_counter()], dtype=torch.float64)
    dist.all_reduce(latest, dist.ReduceOp.MAX)
    instant = float(latest) + _MARGIN_S
    sleep(max(0.0, instant - perf_counter()))
    return instant


def everyone() -> Members:
    """All ranks as members of the default group, with a second group for the way back; a collective."""
    ranks, me = tuple(range(dist.get_world_size())), dist.get_rank()
    return Members(dist.group.WORLD, ranks, me, tuple(int(rank != me) for rank in ranks), dist.new_group())


def all_to_all(
    output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int], members: Members
) -> None:
    """Exchange rows as `shardwright.runtime` does, all receives first."""
    Arrival(output, received, members, 0).send(source, sent)
