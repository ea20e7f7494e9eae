"""The program of one rank: run plans with the other ranks, as `run.run_plan` asks; see `shardwright.measure.collectives.rank`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shardwright.integrations.torchrec.models import Batches
from shardwright.measure.collectives.rank import Member, RunPolicy, main
from shardwright.sharding.plan import Plan

from .memory import allocated_bytes
from .phases import profiled_phases
from .records import RankReport, ReportFolder, RunRequest
from .sharded import ShardedModel, planned


def answer(member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
    """Run a plan and write this rank's report; rank 0 replies when all ranks have written theirs."""
    wanted = msgspec.convert(request, RunRequest)
    plan = Plan.load(wanted.plan)
    report = run_rank(plan, wanted, member)
    ReportFolder(Path(wanted.folder)).write(report)
    dist.barrier()
    return {"done": True}


def run_rank(plan: Plan, wanted: RunRequest, member: Member) -> RankReport:
    """Run this rank's part of a plan; every rank must call this."""
    saved = None if wanted.sharding_plan is None else Path(wanted.sharding_plan)
    sharded = ShardedModel.of(plan.task, planned(plan, member.device.type, saved), member)
    batches = Batches(plan.task, wanted.seed)
    total = wanted.warm_up + wanted.steps
    times = [_timed(_step_of(sharded, batches, step, member), member.device) for step in range(total)]
    profiled = [batches.draw(total + step, member.rank).to(member.device) for step in range(wanted.profiled)]
    phases = profiled_phases(sharded, profiled, member.device)
    allocated = allocated_bytes(sharded)
    return RankReport(
        rank=member.rank,
        step_ms=times[wanted.warm_up :],
        phases=phases,
        weights_bytes=allocated.weights,
        optimizer_bytes=allocated.optimizer,
    )


def _step_of(sharded: ShardedModel, batches: Batches, step: int, member: Member) -> Callable[[], None]:
    """Draw a batch and return a function that runs a step on it."""
    batch = batches.draw(step, member.rank).to(member.device)

    def run() -> None:
        outputs = sharded.forward(batch).tensors()
        sharded.update(outputs, [torch.ones_like(output) for output in outputs])

    return run


def _timed(step: Callable[[], None], device: torch.device) -> float:
    """Return the ms of a step that all ranks start together."""
    dist.barrier()
    started = perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (perf_counter() - started) * 1e3


def serve() -> None:
    """Serve requests until standard input ends."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    main(answer)
