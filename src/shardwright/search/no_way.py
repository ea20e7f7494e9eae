"""Find the table whose constraints leave a runtime no way to shard it, however much memory there is, and the sharding types that would.

A search that finds no plan asks this, since a lack of memory has other remedies than a constraint that can never be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.engine.session import Start, prepare, start
from shardwright.sharding.runtimes import Runtime, task_for
from shardwright.task.constraints import SHARDING_TYPES, Constraints, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

_BOUNDLESS = 1 << 50  # bytes of memory: no table needs as many
_MOST = 100  # tables that are tried; each takes some 10 ms


def no_way(task: Task, runtime: Runtime | None, cost_model: CostModel) -> str | None:
    """Why the constraint of some table leaves the search no way for a runtime, with any memory; None if every table by itself has one.

    Colocated tables are left out, since the search's own message is about them, and those that may be tiered.

    Args:
        task: the task, without the limits of the runtime.
        runtime: the runtime; None for any blocks.
        cost_model: prices its shards.
    """
    together = {name for group in task.constraints.colocated_groups() for name in group}
    alike: dict[object, Table] = {}
    for name, limits in task.constraints.tables.items():
        if name not in together and "tiered" not in (limits.sharding_types or ()):
            table = task.table_by_name[name]
            alike.setdefault((limits, table.rows, table.dim, table.pooled), table)
    for table in list(alike.values())[:_MOST]:
        if _possible(task, runtime, cost_model, table):
            continue
        others = [
            kind for kind in SHARDING_TYPES if kind != "tiered" and _possible(task, runtime, cost_model, table, kind)
        ]
        remedy = f"allow {_either(others)}, which its other limits leave" if others else "relax these limits"
        by = "" if runtime is None else f" for {'TorchRec' if runtime == 'torchrec' else 'shardwright.runtime'}"
        stated = _stated(task.constraints.of(table.name))
        return f"no way is known to shard table '{table.name}'{by} on these devices, with any memory, under {stated}: {remedy}"
    return None


def _possible(
    task: Task, runtime: Runtime | None, cost_model: CostModel, table: Table, kind: str | None = None
) -> bool:
    """Whether there is a way, under the table's constraint or with another sharding type."""
    limits = task.constraints.of(table.name)
    try:
        alone = replace(
            task,
            tables=[table],
            constraints=Constraints({table.name: replace(limits, sharding_types=(kind,)) if kind else limits}),
            topology=replace(task.topology, memory=_BOUNDLESS),
        )
        return start(prepare(task_for(alone, runtime), cost_model), Start(limit=np.inf))[1] < 0
    except (InfeasibleTask, InvalidInput):  # no way at all, or limits that contradict each other
        return False


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _stated(limits: TableConstraint) -> str:
    values = {field.name: getattr(limits, field.name) for field in fields(limits)}
    return ", ".join(
        f"{name} {list(value) if isinstance(value, tuple) else value}"
        for name, value in values.items()
        if value not in (None, False)
    )
