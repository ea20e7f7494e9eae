"""Rank program of `runtime_steps.py`: trains steps on plans, by TorchRec and by `shardwright.runtime`, in turns.

    python -m benchmarks.runtime_rank '{"entries": [{"plan": "plan.json", "by": "shardwright"}], "rounds": {…}}'

Prints {"entries": [[{"forward_ms": […], "backward_ms": […], "link_bytes": …}, …], …]} by entry and round: times of the slowest rank in each
step, and the bytes that all hosts sent in a step, by the counters of their links.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torchrec import KeyedJaggedTensor

from benchmarks.steps_rank import main
from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps.phases import settle, start_together
from shardwright.integrations.torchrec.steps.rank import quiet
from shardwright.integrations.torchrec.steps.sharded import ShardedModel, planned
from shardwright.measure.collectives.rank import Member
from shardwright.runtime import ShardedEmbeddings
from shardwright.sharding import Plan

Forward = Callable[[KeyedJaggedTensor], list[torch.Tensor]]
Update = Callable[[list[torch.Tensor], list[torch.Tensor]], None]


def measure(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure all entries, round by round."""
    quiet()
    rounds, entries = request["rounds"], request["entries"]
    plans = [Plan.load(Path(entry["plan"])) for entry in entries]
    measured: list[list[dict[str, Any]]] = [[] for _ in entries]
    for round_ in range(rounds["rounds"]):
        for number, (entry, plan) in enumerate(zip(entries, plans, strict=True)):
            forward, update = by_torchrec(plan, member) if entry["by"] == "torchrec" else by_shardwright(plan)
            measured[number].append(steps(forward, update, Batches(plan.task, round_), rounds, member))
            del forward, update
            gc.collect()  # a model refers to itself
    return {"entries": measured}


def by_torchrec(plan: Plan, member: Member) -> tuple[Forward, Update]:
    """The tables in DistributedModelParallel."""
    sharded = ShardedModel.of(plan.task, planned(plan, "cpu"), member)
    return lambda batch: sharded.forward(batch).tensors(), sharded.update


def by_shardwright(plan: Plan) -> tuple[Forward, Update]:
    """The tables in ShardedEmbeddings."""
    module = ShardedEmbeddings(plan, timeout=60.0)

    def forward(batch: KeyedJaggedTensor) -> list[torch.Tensor]:
        outputs = module(batch).values()
        return [output if isinstance(output, torch.Tensor) else output.values() for output in outputs]

    return forward, torch.autograd.backward


def steps(forward: Forward, update: Update, batches: Batches, rounds: dict[str, int], member: Member) -> dict[str, Any]:
    """Time steps that all ranks start together: fresh batches, forward, and backward with the optimizer."""
    times, before = [], 0
    for step in range(rounds["warm_up"] + rounds["steps"]):
        batch = batches.draw(step, member.rank)
        settle(member)
        if step == rounds["warm_up"]:
            before = sent_bytes()
        start_together(member)
        started = perf_counter()
        outputs = forward(batch)
        middle = perf_counter()
        update(outputs, [torch.ones_like(output) for output in outputs])
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
