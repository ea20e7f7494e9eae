"""Programs on gloo processes of this machine, as TorchRec's planners and modules need them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def answers_of(
    program: Callable[..., Any], *args: Any, folder: Path, ranks: int, per_host: int | None = None
) -> list[Any]:
    """The results of `program(rank, *args)` on every rank of a process group, as JSON carries them.

    Args:
        program: a function of a module.
        args: its further arguments.
        folder: an empty folder.
        ranks: number of processes.
        per_host: number of processes that count as one host's; by default all.
    """
    host = per_host or ranks
    mp.start_processes(_rank, (program, args, str(folder), ranks, host), nprocs=ranks, start_method="spawn")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def each(rank: int, functions: Sequence[Callable[[int], Any]]) -> dict[str, Any]:
    """A program of several: the results of `function(rank)` by the functions' names. Processes take long to start."""
    return {function.__name__: function(rank) for function in functions}


def _rank(rank: int, program: Callable[..., Any], args: Sequence[Any], folder: str, ranks: int, per_host: int) -> None:
    os.environ |= {"LOCAL_WORLD_SIZE": str(per_host), "LOCAL_RANK": str(rank % per_host)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        answer = program(rank, *args)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(answer))
    os._exit(0)  # threads of the libraries that still run when an interpreter ends abort it now and then
