"""Rank program of `steps_measured.py`: trains steps on plans, by TorchRec or by `shardwright.runtime`.

    python -m benchmarks.steps_rank '{"plans": ["plan.json"], "rounds": {…}}'    {"reports": […]}

Ranks of all hosts run on this machine: they start together by this machine's clock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from shardwright.measure.collectives.rank import Member, PlaceInGroup, RunPolicy, joined_group

TIMEOUT_S = 240.0


def steps(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure steps on plans."""
    from shardwright.integrations.torchrec.steps.rank import answer, quiet

    quiet()
    return answer(member, request, RunPolicy())


def main(program: Callable[[Member, dict[str, Any]], dict[str, Any]] = steps) -> None:
    """Run a program as a rank with the request of the command line; rank 0 prints the reply."""
    request = json.loads(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with joined_group("cpu", PlaceInGroup(rank, world, rank, world), TIMEOUT_S) as member:
        reply = program(member, request)
    if rank == 0:
        print(json.dumps(reply), flush=True)
    os._exit(0)  # torch's profiler now and then aborts a process that unloads it, after the reply


if __name__ == "__main__":
    main()
