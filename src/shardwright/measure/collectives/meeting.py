"""How ranks that torchrun started find each other, also when it has started them before.

torchrun keeps one store of keys for all its restarts, and gloo leaves the addresses of ended processes in it: ranks of a second start would
connect to those. How often a process was started is no remedy, since torchrun counts it on each host by itself. So the ranks agree on a
name that is new, under which they then meet.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from shardwright.errors import MeasurementFailed

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
