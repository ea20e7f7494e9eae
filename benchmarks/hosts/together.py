"""Start ranks at the same instant: all hosts of a test bed share this machine's clock."""

from __future__ import annotations

from time import perf_counter, sleep

import torch
import torch.distributed as dist

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
