"""Joining a group of torch.distributed: gloo on CPUs, NCCL on GPUs.

How ranks that torchrun started find each other, also when it has started them before.

torchrun keeps one store of keys for all its restarts, and gloo leaves the addresses of ended processes in it: ranks of a second start would
connect to those. How often a process was started is no remedy, since torchrun counts it on each host by itself. So the ranks agree on a
name that is new, under which they then meet.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.timing import Member
from shardwright.measure.hardware import NO_CUDA, import_torch

_LOOK_S = 0.02


def fresh_store(rank: int, world: int, timeout_s: float) -> Any:
    """A store of torch.distributed, at MASTER_ADDR and MASTER_PORT, that holds nothing of earlier starts.

    Args:
        rank: number of this process.
        world: ranks.
        timeout_s: longest time to wait for the others.

    Raises:
        MeasurementFailed: not all ranks came.
    """
    import torch.distributed as dist

    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=timedelta(seconds=timeout_s)))  # type: ignore[attr-defined]
    return dist.PrefixStore(new_name(store, rank, world, timeout_s), store)  # type: ignore[attr-defined]


def new_name(store: Any, rank: int, world: int, timeout_s: float) -> str:
    """A name that rank 0 chose, on all ranks that live now.

    Every other rank asks under a key of its own choice, which only a living rank 0 can answer; rank 0 answers until all have said that
    they know.

    Args:
        store: where keys of earlier starts may be.
        rank: number of this process.
        world: ranks.
        timeout_s: longest time to wait for the others.

    Raises:
        MeasurementFailed: not all ranks came.
    """
    own, stop = secrets.token_hex(8), monotonic() + timeout_s
    waiting = set(range(1, world)) if rank == 0 else {0}
    if rank:
        store.set(f"shardwright/asks/{rank}", own)
    while waiting:
        if rank == 0:
            waiting = {other for other in waiting if not _answered(store, other, own)}
        elif store.check([f"shardwright/answers/{own}"]):
            name: str = store.get(f"shardwright/answers/{own}").decode()
            store.set(f"shardwright/knows/{name}/{rank}", "yes")
            return name
        if waiting and monotonic() > stop:
            raise MeasurementFailed(
                f"rank {rank} waited {timeout_s:g} s for rank {min(waiting)} of {world}; start all ranks, or use a longer timeout"
            )
        sleep(_LOOK_S)
    return own


def _answered(store: Any, other: int, name: str) -> bool:
    """Answer what a rank asks, if it does; whether it knows the name already."""
    if store.check([f"shardwright/knows/{name}/{other}"]):
        return True
    if store.check([f"shardwright/asks/{other}"]):
        asked = store.get(f"shardwright/asks/{other}").decode()
        store.set(f"shardwright/answers/{asked}", name)
    return False


def group_backend(device_kind: str) -> str:
    """The backend of torch.distributed for "cpu" or "cuda".

    Raises:
        InvalidInput: there is no such device.
    """
    backends = {"cpu": "gloo", "cuda": "nccl"}
    if device_kind not in backends:
        raise InvalidInput(f"device is {device_kind!r}, must be 'cpu' or 'cuda'")
    return backends[device_kind]


@contextmanager
def joined_group(
    device_kind: str,
    rank: int,
    world: int,
    *,
    local_rank: int,
    local_world: int,
    timeout_s: float,
    meeting_file: Path | None = None,
) -> Iterator[Member]:
    """This process as a rank of a group; it leaves the group at the end.

    Args:
        device_kind: "cpu" or "cuda", where rank i of a machine takes its GPU i.
        rank: number of this process in the group.
        world: ranks.
        local_rank: number of this process on this machine.
        local_world: ranks on this machine.
        timeout_s: a collective that takes longer fails.
        meeting_file: not yet existing file through which ranks of one machine find each other; None for MASTER_ADDR and MASTER_PORT.

    Raises:
        MeasurementFailed: the device is missing.
    """
    torch = import_torch()
    import torch.distributed as dist

    if device_kind == "cuda":
        if not torch.cuda.is_available():
            raise MeasurementFailed(NO_CUDA)
        if local_world > torch.cuda.device_count():
            raise MeasurementFailed(
                f"{local_world} ranks on this machine need a GPU each, it has {torch.cuda.device_count()}; use fewer ranks"
            )
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
    else:
        torch.set_num_threads(1)
        _settle_on_core(local_rank)
        device = torch.device("cpu")
    dist.init_process_group(
        group_backend(device_kind),
        init_method=meeting_file.as_uri() if meeting_file else None,
        store=None if meeting_file else fresh_store(rank, world, timeout_s),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        yield Member(rank, world, device, local_world)
    finally:
        dist.destroy_process_group()


def _settle_on_core(local_rank: int) -> None:
    """Keep this process and the threads it will start on one core, before other programs where that is allowed.

    Ranks that wander from core to core differ by twice as much from one measurement of the same sample to the next.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
