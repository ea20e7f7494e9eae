"""Rank program of `runtime_steps.py`: trains steps on plans, by TorchRec and by `shardwright.runtime`, in turns.

    python -m benchmarks.runtime_rank '{"plans": ["plan.json"], "rounds": {…}}'    {"reports": […], "link_bytes": […]}

The plan's exchange decides what trains it. The bytes of a plan are those of a step on the links of all hosts, by their counters.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.hosts.inside import link_bytes
from benchmarks.steps_rank import main, steps
from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps.rank import prepared, trained_by
from shardwright.measure.collectives.rank import Member
from shardwright.sharding import Plan

_STEPS = 5


def measure(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure steps, their phases, and then their bytes."""
    reply = steps(member, request)
    return {**reply, "link_bytes": [bytes_of_step(Plan.load(Path(file)), member) for file in request["plans"]]}


def bytes_of_step(plan: Plan, member: Member) -> float:
    """Bytes that all hosts send in a step, with those by which ranks of this measurement wait for each other."""
    model, batches = trained_by(plan, prepared(plan, "cpu"), member), Batches(plan.task, 0)
    member.gather([0.0])
    before = _sent()
    for step in range(_STEPS):
        outputs = model.outputs(batches.draw(step, member.rank))
        model.update(outputs, [torch.ones_like(output) for output in outputs])
    member.gather([0.0])
    of_ranks = member.gather([float(_sent() - before)])
    del model
    gc.collect()  # a model refers to itself
    return float(sum(sent for (sent,) in of_ranks)) / _STEPS


def _sent() -> int:
    """Bytes that this rank's host has sent, for its first rank; 0 for others."""
    return link_bytes().sent if os.environ.get("LOCAL_RANK", "0") == "0" else 0


if __name__ == "__main__":
    main(measure)
