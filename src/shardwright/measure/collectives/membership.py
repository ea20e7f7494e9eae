"""Joining a group of torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.meeting import fresh_store
from shardwright.measure.collectives.timing import Member
from shardwright.measure.torch_package import NO_CUDA, import_torch


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
