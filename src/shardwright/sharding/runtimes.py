"""What runs a plan: which blocks each runtime can train on.

- `torchrec`: DistributedModelParallel runs all tables. It knows whole tables, replicas on all ranks, column blocks of one width, and equal
  row blocks on all ranks or on those of one host (`sharding.patterns`). It exchanges every looked-up row of a sequence table.
- `shardwright`: `shardwright.runtime` runs the sequence tables, in blocks of whole rows, tiers included; replicas lie on the same local
  ranks of each of their hosts. Pooled tables may lie in any blocks: they go to FBGEMM in a training loop of one's own, or to TorchRec.
  It has no sharding groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.sharding.patterns import patterns_like
from shardwright.task.constraints import SHARDING_TYPES, Constraints, TableConstraint
from shardwright.task.exchange import AS_TORCHREC
from shardwright.task.table import Table
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

Runtime: TypeAlias = Literal["shardwright", "torchrec"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)

_CUT_ROWS = ("column_wise", "grid")
"""Sharding types whose blocks do not hold whole rows."""


def runtimes_of(plan: Plan) -> tuple[str, ...]:
    """The runtimes that can run every table of a plan."""
    return tuple(runtime for runtime in RUNTIMES if why_not_run(plan, runtime) is None)


def why_not_run(plan: Plan, runtime: str) -> str | None:
    """Why a runtime cannot run a plan; None if it can."""
    if runtime == "torchrec":
        return _why_not_torchrec(plan)
    if plan.task.groups is not None:
        return "TorchRec alone keeps sharding groups alike"
    near = plan.task.topology.devices_per_host
    for table in plan.task.tables:
        for shard in plan.by_table[table.name] if not table.pooled else ():
            hosts, local = {rank // near for rank in shard.devices}, {rank % near for rank in shard.devices}
            if shard.dim < table.dim:
                return f"sequence table '{table.name}' is cut by columns"
            if len(shard.devices) != len(hosts) * len(local):
                return f"replicas of sequence table '{table.name}' lie on other local ranks of one host than of another"
    return None


def _why_not_torchrec(plan: Plan) -> str | None:
    if _exchanges_otherwise(plan.task):
        return "its sequence tables are exchanged in another way than TorchRec's"
    for table in plan.task.tables:
        if not patterns_like(plan.by_table[table.name], table, plan.task.topology):
            return f"table '{table.name}' lies in blocks that TorchRec does not know"
    return None


def task_for(task: Task, runtime: str | None) -> Task:
    """The task with the limits of a runtime among its constraints; as it is for None.

    Raises:
        InvalidInput: there is no such runtime.
        InfeasibleTask: the constraints of a table leave nothing that the runtime can run.
    """
    if runtime is None:
        return task
    if runtime not in RUNTIMES:
        raise InvalidInput(f"runs_on is {runtime!r}, must be {' or '.join(RUNTIMES)}")
    if runtime == "shardwright" and task.groups is not None:
        raise InfeasibleTask(
            "sharding groups are kept alike by TorchRec's DMPCollection, not by shardwright.runtime: plan for runs_on 'torchrec'"
        )
    if runtime == "torchrec" and _exchanges_otherwise(task):
        raise InfeasibleTask(
            f"exchange has deduplicate '{task.exchange.deduplicate}' and replica_gradients '{task.exchange.replica_gradients}', and "
            "TorchRec sends every looked-up row and whole gradients: leave exchange out, or plan for runs_on 'shardwright'"
        )
    limits = {table.name: _limited(table, task.constraints.of(table.name), runtime) for table in task.tables}
    changed = {name: limit for name, limit in limits.items() if limit is not None}
    if not changed:
        return task
    given = task.constraints
    return replace(task, constraints=Constraints({**given.tables, **changed}, given.colocate, given.apart))


def _limited(table: Table, limits: TableConstraint, runtime: str) -> TableConstraint | None:
    """A table's constraint with what a runtime adds to it; None where it adds nothing."""
    if table.pooled and runtime == "shardwright":
        return None
    barred = ("tiered",) if runtime == "torchrec" else _CUT_ROWS
    allowed = tuple(kind for kind in limits.sharding_types or SHARDING_TYPES if kind not in barred)
    if not allowed:
        others = ", ".join(other for other in RUNTIMES if other != runtime)
        raise InfeasibleTask(
            f"table '{table.name}' allows only {', '.join(limits.sharding_types or ())}, which {runtime} does not run for it: allow "
            f"another sharding type, or plan for runs_on '{others}'"
        )
    if runtime == "torchrec":
        return replace(limits, sharding_types=allowed, equal_rows=True, equal_columns=True)
    return replace(limits, sharding_types=allowed)


def _exchanges_otherwise(task: Task) -> bool:
    return task.exchange != AS_TORCHREC and not all(table.pooled for table in task.tables)
