"""Rank program of the calibration: all-to-alls of several patterns and sizes, timed.

`python -m benchmarks.hosts.collectives '{"bytes": […], "runs": 7}'`
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist

from benchmarks.hosts.together import all_to_all, common_start, everyone
from shardwright.runtime.process_groups import Members

PATTERNS: dict[str, Callable[[int, int, int], bool]] = {
    "all": lambda here, there, local: here != there,
    "between hosts": lambda here, there, local: here // local != there // local,
    "rails": lambda here, there, local: here // local != there // local and here % local == there % local,
    "inside hosts": lambda here, there, local: here // local == there // local and here != there,
}
"""By pattern, a function of two ranks and the ranks per host: whether the first rank sends to the second."""


def main() -> None:
    settings = json.loads(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings.get("timeout_s", 60)))
    results, members = [], everyone()
    for pattern in settings.get("patterns", PATTERNS):
        for size in settings["bytes"]:
            times = measured(pattern, size, settings["runs"], None if settings.get("own", False) else members)
            results.append({"pattern": pattern, "bytes": size, "ms": times})
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


def measured(pattern: str, size: int, runs: int, members: Members | None) -> list[float]:
    """Return `(runs,)` ms until the last rank has received everything.

    Args:
        pattern: key of `PATTERNS`.
        size: bytes a rank sends to all others together.
        runs: counted runs, after one that is not counted.
        members: all ranks; None for gloo's own all-to-all.
    """
    rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    to = [PATTERNS[pattern](rank, other, local) for other in range(world)]
    if not any(to):
        return []
    splits = [size // 4 // sum(to) if sends else 0 for sends in to]
    leaving, arriving = torch.ones(sum(splits)), torch.empty(sum(splits))
    exchange = dist.all_to_all_single if members is None else partial(all_to_all, members=members)
    times = []
    for _ in range(runs + 1):
        started = common_start()
        exchange(arriving, leaving, splits, splits)
        took = torch.tensor([perf_counter() - started], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(1e3 * float(took))
    return times[1:]


if __name__ == "__main__":
    main()
