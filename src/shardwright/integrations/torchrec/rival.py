"""`torchrec`: TorchRec's planner, for comparisons; and `tzrec`: the same as TorchEasyRec sets it up, with dynamic programming.

It runs in a separate process, so that planning here loads no torch and the planner can be ended: TorchRec looks at its timeout only
between two proposals, and one proposal can take minutes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

PROGRAM = "shardwright.integrations.torchrec.strategy"
_START_S = 30.0  # to import torch and TorchRec on a busy machine
_INSTALL = "install it as described in the README ('Installing': TorchRec without its own dependencies)"

SHARDING_TYPES = {
    "data_parallel": "data_parallel",
    "table_wise": "table_wise",
    "column_wise": "column_wise",
    "row_wise": "row_wise",
    "table_row_wise": "table_row_wise",
    "grid": "grid_shard",
}
"""TorchRec's names for our sharding types."""

Proposer: TypeAlias = Literal["default", "dynamic_programming"]

_ON_CPU = {
    "pooled": ("data_parallel", "table_wise", "column_wise"),
    "sequence": ("table_wise", "column_wise", "row_wise"),
}
_ON_GPU = {"pooled": tuple(SHARDING_TYPES), "sequence": ("data_parallel", "table_wise", "column_wise", "row_wise")}
"""The sharding types that TorchRec's sharders offer its planner; sequence tables on CPUs lack data_parallel, since FBGEMM would sum their
rows."""


@dataclass(frozen=True)
class TorchRec:
    """TorchRec's `EmbeddingShardingPlanner` with its default proposers; it gets pooling factors, memory and bandwidths.

    Attributes:
        statistics: whether the planner gets the pooling factors; without them it assumes 1 for each, as most users run it.
        proposer: the proposer of sharding types for all tables: TorchRec's defaults, or dynamic programming as in TorchEasyRec.
        time_limit_s: seconds after which the planner ends if the search has no deadline, with its best plan so far. With 200 tables on 16
            devices or more, it takes minutes.
        name: name of the strategy.
    """

    statistics: bool = True
    proposer: Proposer = "default"
    time_limit_s: float = 60.0
    name: str = "torchrec"

    def supports(self, task: Task) -> str | None:
        """Tasks whose constraints TorchRec's planner can express, if TorchRec is installed."""
        missing = [name for name in ("torch", "fbgemm_gpu", "torchrec") if find_spec(name) is None]
        if missing:
            return f"{' and '.join(missing)} is not installed; {_INSTALL}"
        return why_not_expressible(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Ask TorchRec's planner, which uses neither the cost model nor the seed.

        Raises:
            InfeasibleTask: the planner finds no plan, or none in time, or fails.
        """
        from shardwright.task.files import task_to_dict

        left = self.time_limit_s if deadline is None else deadline - time.monotonic()
        request = {
            "task": task_to_dict(task),
            "statistics": self.statistics,
            "proposer": self.proposer,
            "timeout_s": max(1, math.floor(left)),
            "seed": seed,
        }
        reply = self._ask(request, max(left, 1.0) + _START_S)
        if "error" in reply:
            raise InfeasibleTask(reply["error"])
        return Plan(task, [_shard(fields) for fields in reply["shards"]], self.name, seed)

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        from shardwright.processes import worker_environment

        with tempfile.TemporaryFile() as log:
            try:
                run = subprocess.run(
                    [sys.executable, "-m", PROGRAM],
                    input=json.dumps(request).encode(),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=worker_environment(),
                    timeout=timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise InfeasibleTask(
                    f"TorchRec's planner had not made its first proposal after {timeout_s:.0f} s and was ended; allow more time with "
                    "a time limit, or leave this strategy out"
                ) from None
            if run.returncode:
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-3:]
                raise InfeasibleTask(
                    f"TorchRec's planner exited with {run.returncode}. Its last lines: {' | '.join(last) or '(none)'}; "
                    "leave this strategy out, or reinstall TorchRec"
                )
        reply: dict[str, Any] = json.loads(run.stdout)
        return reply


@dataclass(frozen=True)
class TorchEasyRec(TorchRec):
    """TorchRec's planner with the proposers of TorchEasyRec."""

    proposer: Proposer = "dynamic_programming"
    name: str = "tzrec"


def why_not_expressible(task: Task) -> str | None:
    """The part of a task that TorchRec's planner cannot express; None if it can express all."""
    if task.constraints.colocate or task.constraints.apart:
        return "TorchRec's planner has no constraints to colocate tables or keep them apart; drop the constraint, or use strategy certified"
    for table in task.tables:
        limits = task.constraints.of(table.name)
        if "." in table.name:
            return f"table '{table.name}' has a dot in its name, which no module of torch can have; rename it"
        if table.dtype == "int8":
            return f"table '{table.name}' has int8 weights, and TorchRec's planner counts those of a training module as fp16"
        if limits.devices is not None:
            return (
                f"table '{table.name}' is pinned, and TorchRec's planner has no constraint on the devices of a table; "
                "drop the constraint, or use strategy certified"
            )
        if not expressible_types(table, limits, task.topology):
            allowed = ", ".join(limits.sharding_types or ("any type",))
            shards = f" in at most {limits.max_shards} shards" if limits.max_shards is not None else ""
            kind, device = "pooled" if table.pooled else "sequence", task.topology.compute_device
            return f"table '{table.name}' allows {allowed}{shards}; TorchRec's planner offers none of these for a {kind} table on {device}"
    return None


def expressible_types(table: Table, limits: TableConstraint, topology: Topology) -> list[str]:
    """The allowed sharding types that TorchRec's planner offers, without those that make too many shards."""
    offered = (_ON_CPU if topology.compute_device == "cpu" else _ON_GPU)["pooled" if table.pooled else "sequence"]
    shards = {"data_parallel": 1, "table_wise": 1, "column_wise": 1, "row_wise": topology.devices}
    most = limits.max_shards or topology.devices
    return [kind for kind in offered if limits.allows(kind) and shards.get(kind, topology.devices_per_host) <= most]


def _shard(fields: dict[str, Any]) -> Shard:
    rows, columns, devices = (tuple(fields[key]) for key in ("rows", "columns", "devices"))
    return Shard(fields["table"], rows, columns, devices)
