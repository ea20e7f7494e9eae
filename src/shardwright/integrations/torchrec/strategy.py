"""Run TorchRec's own planner on our tasks. As a program, plan the task on standard input: see `shardwright.integrations.torchrec.rival`."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import UniformProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

from shardwright.errors import InfeasibleTask, InvalidPlan, ShardwrightError
from shardwright.integrations.torchrec.conversion import plan_of
from shardwright.integrations.torchrec.models import (
    constraints_for,
    local_batch_size,
    modules_for,
    sharders_for,
    torchrec_topology,
)
from shardwright.integrations.torchrec.problem import problem_of
from shardwright.integrations.torchrec.proposers import DynamicProgramming
from shardwright.integrations.torchrec.rival import Proposer
from shardwright.sharding.plan import Plan
from shardwright.task.files import task_from_dict
from shardwright.task.task import Task

NAME = "torchrec"
_ATTEMPTS = 5
_LEAST_RESERVED = 0.005


def torchrec_plan(
    task: Task,
    *,
    statistics: bool = True,
    proposer: Proposer = "default",
    timeout_seconds: int | None = None,
    seed: int = 0,
) -> Plan:
    """Plan a task with TorchRec's `EmbeddingShardingPlanner`.

    TorchRec counts memory differently from our account. If its plan exceeds our account, it plans again with that much less memory.

    Args:
        task: the task; all its memory is for embeddings, without a reservation.
        statistics: whether TorchRec gets the pooling factors.
        proposer: proposes sharding types, as in `shardwright.integrations.torchrec.rival.TorchRec`.
        timeout_seconds: TorchRec's own timeout, which it checks between two proposals.
        seed: only recorded in the plan; the planner draws no random numbers.

    Raises:
        InfeasibleTask: TorchRec finds no plan, or none that keeps our memory account.
        InvalidInput: the task has constraints or names that TorchRec cannot express.
    """
    module, sharders = modules_for(task), sharders_for(task)
    constraints = constraints_for(task, statistics=statistics)
    places = problem_of(module, sharders, torchrec_topology(task.topology), local_batch_size(task))
    reason, reserved, started = "", 0.0, time.monotonic()
    for _ in range(_ATTEMPTS):
        planner = _planner(task, constraints, proposer, reserved, _left(timeout_seconds, started))
        try:
            converted = plan_of(planner.plan(module, sharders), places)
        except PlannerError as error:
            reason = reason or f"TorchRec's planner: {error}".split("\n")[0]
            break
        plan = Plan(task, converted.shards, NAME, seed)
        try:
            plan.check()
        except InvalidPlan as error:
            reason = f"TorchRec's plan does not keep our account: {error}"
            excess = (plan.memory.total / task.topology.memory_bytes).max() - 1
            reserved += max(float(excess), _LEAST_RESERVED)
            continue
        return plan
    raise InfeasibleTask(f"{reason}; allow more memory, or use another strategy, such as certified")


def _planner(
    task: Task,
    constraints: dict[str, ParameterConstraints],
    proposer: Proposer,
    reserved: float,
    timeout_seconds: int | None,
) -> EmbeddingShardingPlanner:
    """TorchRec's planner with its default parts but for the proposer, which holds back a share of the memory."""
    return EmbeddingShardingPlanner(
        topology=torchrec_topology(task.topology),
        batch_size=local_batch_size(task),
        storage_reservation=FixedPercentageStorageReservation(reserved),
        stats=[],
        constraints=constraints,
        proposer=[DynamicProgramming(), UniformProposer()] if proposer == "dynamic_programming" else None,
        debug=False,
        timeout_seconds=timeout_seconds,
    )


def _left(timeout_seconds: int | None, started: float) -> int | None:
    """Seconds that are left, at least one; None without a timeout."""
    return None if timeout_seconds is None else max(1, int(timeout_seconds - (time.monotonic() - started)))


def main() -> None:
    """Read a request ("task", "statistics", "proposer", "timeout_s", "seed") from standard input, write {"shards"} or {"error"}."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # TorchRec's prints must not mix with the reply
    logging.disable(logging.WARNING)
    request = json.load(sys.stdin)
    try:
        plan = torchrec_plan(
            task_from_dict(request["task"], "task"),
            statistics=request["statistics"],
            proposer=request["proposer"],
            timeout_seconds=request["timeout_s"],
            seed=request["seed"],
        )
        reply: dict[str, Any] = {"shards": [asdict(shard) for shard in plan.shards]}
    except ShardwrightError as error:
        reply = {"error": str(error)}
    json.dump(reply, replies)
    replies.close()


if __name__ == "__main__":
    main()
