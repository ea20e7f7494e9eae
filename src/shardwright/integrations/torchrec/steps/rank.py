"""The work of a rank: train some steps on each plan, round after round, together with the other ranks of its group.

A round builds a plan's model, runs steps that are not counted, whole steps, and steps phase by phase, and drops the model. So plans take
turns in the machine's better and worse times, and only one model needs memory. Every step has a fresh batch. The program of a rank on this
machine is `serve`, see `shardwright.measure.collectives.rank`.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import msgspec
import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.types import ShardingPlan

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps.memory import allocated_bytes
from shardwright.integrations.torchrec.steps.phases import profiled_phases, settle, start_together
from shardwright.integrations.torchrec.steps.sharded import ShardedModel, planned
from shardwright.integrations.torchrec.steps.shared import RuntimeModel
from shardwright.measure.collectives.rank import Member, RunPolicy, main
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import training_runtime


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of rounds and steps to measure.

    Attributes:
        rounds: rounds; each measures every plan once.
        steps: whole steps of a round that are timed.
        warm_up: steps of a round before them.
        profiled: steps of a round after them, phase by phase.
        seed: seed of the batches.
    """

    rounds: int = 5
    steps: int = 10
    warm_up: int = 3
    profiled: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "steps", "warm_up", "profiled"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, must be at least 1")


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank in one round of one plan.

    Attributes:
        step_ms: ms of each timed step: forward, backward, optimizer.
        cpu_ms: ms that the rank's thread computed in each of these steps; it does not compute while it waits for other ranks.
        phases: ms of each profiled step by phase; see `phases.PHASES`.
        weights_bytes: bytes that the rank allocated for weights.
        optimizer_bytes: bytes that the rank allocated for optimizer state.
    """

    step_ms: list[float]
    cpu_ms: list[float] = []
    phases: dict[str, list[float]]
    weights_bytes: int
    optimizer_bytes: int


def run_rounds(plans: Sequence[Plan], wanted: Rounds, member: Member) -> list[list[list[RankReport]]]:
    """Measure plans by what trains them; every rank must call this with the same plans, and all get the same reports.

    Returns:
        Reports of each plan by round and rank.

    Raises:
        InvalidPlan: see `prepared`.
    """
    sharding_plans = [prepared(plan, member.device.type) for plan in plans]
    of_plans: list[list[RankReport]] = [[] for _ in plans]
    for round_ in range(wanted.rounds):
        for plan, its, reports in zip(plans, sharding_plans, of_plans, strict=True):
            sharded = trained_by(plan, its, member)
            reports.append(_report(sharded, Batches(plan.task, wanted.seed + round_), wanted, member))
            del sharded
            gc.collect()  # a model has reference cycles
    texts = member.texts(msgspec.json.encode(of_plans))
    by_rank = [msgspec.json.decode(text, type=list[list[RankReport]]) for text in texts]
    return [[list(ranks) for ranks in zip(*rounds, strict=True)] for rounds in zip(*by_rank, strict=True)]


def trained_by(plan: Plan, sharding_plan: ShardingPlan | None, member: Member) -> ShardedModel | RuntimeModel:
    """The plan's tables in what trains it, by the answer of `prepared`; every rank must call this."""
    if sharding_plan is None:
        return RuntimeModel.of(plan, member)
    return ShardedModel.of(plan.task, sharding_plan, member)


def prepared(plan: Plan, kind: str) -> ShardingPlan | None:
    """The plan as TorchRec's sharding plan; None if `shardwright.runtime` trains it.

    Raises:
        InvalidPlan: neither can run the plan in the exchange of its task, or rows lie by hotness, and drawn ids have no ranks.
    """
    if tiered := [shard.table for shard in plan.shards if shard.row_order == "hotness"]:
        raise InvalidPlan(
            f"table '{tiered[0]}' lies in order of hotness, and whole steps draw ids without ranks: verify the plan without --steps"
        )
    return None if training_runtime(plan) == "shardwright" else planned(plan, kind)


def _report(sharded: ShardedModel | RuntimeModel, batches: Batches, wanted: Rounds, member: Member) -> RankReport:
    def batch(step: int) -> KeyedJaggedTensor:
        return batches.draw(step, member.rank).to(member.device)

    whole = wanted.warm_up + wanted.steps
    times = [_timed(sharded, batch(step), member) for step in range(whole)][wanted.warm_up :]
    later = [batch(whole + step) for step in range(wanted.profiled)]
    phases = (
        profiled_phases(sharded, later, member) if isinstance(sharded, ShardedModel) else sharded.phases(later, member)
    )
    weights_bytes, optimizer_bytes = allocated_bytes(sharded)
    return RankReport(
        step_ms=[step_ms for step_ms, _ in times],
        cpu_ms=[cpu_ms for _, cpu_ms in times],
        phases=phases,
        weights_bytes=weights_bytes,
        optimizer_bytes=optimizer_bytes,
    )


def _timed(sharded: ShardedModel | RuntimeModel, batch: KeyedJaggedTensor, member: Member) -> tuple[float, float]:
    """The ms of a step that all ranks start together, and of this thread's computing in it."""
    settle(member)
    start_together(member)
    started, computed = perf_counter(), thread_time()
    outputs = sharded.outputs(batch)
    sharded.update(outputs, [torch.ones_like(output) for output in outputs])
    settle(member)
    return (perf_counter() - started) * 1e3, (thread_time() - computed) * 1e3


def answer(member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
    """Measure the plans in these files; rank 0 replies with the reports of all ranks."""
    plans = [Plan.load(Path(file)) for file in request["plans"]]
    reports = run_rounds(plans, msgspec.convert(request["rounds"], Rounds), member)
    built: dict[str, Any] = {"reports": msgspec.to_builtins(reports)}
    return built


def serve() -> None:
    """Serve requests until standard input ends."""
    quiet()
    main(answer)


def quiet() -> None:
    """Silence TorchRec's warnings about topologies and plans that it did not make."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    serve()
