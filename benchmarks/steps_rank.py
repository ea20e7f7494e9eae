"""Rank program of `steps_measured.py`: times collectives, or trains steps on plans with TorchRec.

    python -m benchmarks.steps_rank '{"sizes": [2048, 65536], "runs": 7}'        {"times": [[collective, links, bytes, ms], …]}
    python -m benchmarks.steps_rank '{"plans": ["plan.json"], "rounds": {…}}'    {"reports": […]}

Ranks of all hosts run on this machine: they are pinned by their numbers in the group, and start together by this machine's clock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.hosts.together import common_start
from shardwright.measure.collectives.rank import Member, RunPolicy, joined_group

TIMEOUT_S = 240.0


def main() -> None:
    request = json.loads(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with joined_group("cpu", rank, world, local_rank=rank, local_world=world, timeout_s=TIMEOUT_S) as member:
        found = links(member, request) if "sizes" in request else steps(member, request)
    if rank == 0:
        print(json.dumps(found))


def steps(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure steps on plans."""
    from shardwright.integrations.torchrec.steps.rank import answer, quiet

    quiet()
    return answer(member, request, RunPolicy())


def links(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Time the collectives that TorchRec uses: among all ranks ("inter"), and, on several hosts, in each host by itself ("intra")."""
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    groups = {"inter" if local < member.world else "intra": dist.group.WORLD}
    if 1 < local < member.world:
        hosts = [dist.new_group(list(range(start, start + local))) for start in range(0, member.world, local)]
        groups["intra"] = hosts[member.rank // local]
    times = []
    for name, group in groups.items():
        for size in request["sizes"]:
            for collective, call in _calls(size, group).items():
                times.append([collective, name, size, _timed(call, request["runs"])])
    return {"times": times}


def _calls(size: int, group: Any) -> dict[str, Callable[[], Any]]:
    """By collective, a function that runs it on a buffer of so many bytes, all parts included."""
    parts = dist.get_world_size(group)
    part = torch.ones(max(1, size // 4 // parts))
    whole, other = torch.ones(len(part) * parts), torch.ones(len(part) * parts)
    return {
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
    }


def _timed(call: Callable[[], Any], runs: int) -> float:
    """Median ms until the last rank is done."""
    times = []
    for _ in range(runs + 2):
        started = common_start()
        call()
        took = torch.tensor([perf_counter() - started], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(1e3 * float(took))
    return median(times[2:])


if __name__ == "__main__":
    main()
