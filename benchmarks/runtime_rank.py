"""Rank program of `runtime_steps.py`: trains steps on plans, by TorchRec and by `shardwright.runtime`, in turns.

    python -m benchmarks.runtime_rank '{"entries": [{"plan": "plan.json", "by": "shardwright"}], "rounds": {…}}'

Prints {"entries": [[{"forward_ms": […], "backward_ms": […], "link_bytes": …}, …], …]} by entry and round: times of the slowest rank in each
step, and the bytes that all hosts sent in a step, by the counters of their links.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import torch

from benchmarks.steps_rank import main
from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps.phases import settle, start_together
from shardwright.integrations.torchrec.steps.rank import quiet
from shardwright.integrations.torchrec.steps.sharded import ShardedModel, planned
from shardwright.integrations.torchrec.steps.shared import RuntimeModel
from shardwright.measure.collectives.rank import Member
from shardwright.sharding import Plan

Model: TypeAlias = ShardedModel | RuntimeModel


def measure(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure all entries, round by round."""
    quiet()
    rounds, entries = request["rounds"], request["entries"]
    plans = [Plan.load(Path(entry["plan"])) for entry in entries]
    measured: list[list[dict[str, Any]]] = [[] for _ in entries]
    for round_ in range(rounds["rounds"]):
        for number, (entry, plan) in enumerate(zip(entries, plans, strict=True)):
            model = model_of(plan, entry["by"], member)
            measured[number].append(steps(model, Batches(plan.task, round_), rounds, member))
            del model
            gc.collect()  # a model refers to itself
    return {"entries": measured}


def model_of(plan: Plan, by: str, member: Member) -> Model:
    """The tables of a plan in DistributedModelParallel ("torchrec") or in ShardedEmbeddings."""
    return (
        ShardedModel.of(plan.task, planned(plan, "cpu"), member) if by == "torchrec" else RuntimeModel.of(plan, member)
    )


def steps(model: Model, batches: Batches, rounds: dict[str, int], member: Member) -> dict[str, Any]:
    """Time steps that all ranks start together: fresh batches, forward, and backward with the optimizer."""
    times, before = [], 0
    for step in range(rounds["warm_up"] + rounds["steps"]):
        batch = batches.draw(step, member.rank)
        settle(member)
        if step == rounds["warm_up"]:
            before = sent_bytes()
        start_together(member)
        started = perf_counter()
        outputs = model.outputs(batch)
        middle = perf_counter()
        model.update(outputs, [torch.ones_like(output) for output in outputs])
        settle(member)
        times.append([(middle - started) * 1e3, (perf_counter() - middle) * 1e3])
    sent = sent_bytes() - before
    slowest = (
        torch.tensor(member.gather([ms for step in times[rounds["warm_up"] :] for ms in step])).amax(0).view(-1, 2)
    )
    hosts = torch.tensor(member.gather([float(sent)])).flatten()
    return {
        "forward_ms": slowest[:, 0].tolist(),
        "backward_ms": slowest[:, 1].tolist(),
        "link_bytes": float(hosts.sum()) / rounds["steps"],
    }


def sent_bytes() -> int:
    """Bytes that this rank's host has sent, for its first rank; 0 for others."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return 0
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    return 0


if __name__ == "__main__":
    main(measure)
