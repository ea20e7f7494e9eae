"""Find the table whose constraints leave no way to shard it, however much memory there is, and the sharding types that would.

A search that finds no plan asks this, since a lack of memory has other remedies than a constraint that can never be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.engine.session import Start, prepare, start
from shardwright.task.constraints import SHARDING_TYPES, Constraints, TableConstraint
from shardwright.task.task import Task

_BOUNDLESS = 1 << 50  # bytes of memory: no table needs as many
_FEW = 3  # sharding types: a runtime leaves a table more of them, a person hardly


def no_way(task: Task, cost_model: CostModel) -> str | None:
    """Why the constraint of some table leaves the search no way with any memory; None if all tables, each by itself, have one.

    Colocated tables are left out: the search's own message is about them.

    Args:
        task: the task.
        cost_model: prices its shards.
    """
    together = {name for group in task.constraints.colocated_groups() for name in group}
    for name, limits in task.constraints.tables.items():
        if name in together or not _narrow(limits) or _possible(task, cost_model, name, limits):
            continue
        kinds = [kind for kind in SHARDING_TYPES if kind != "tiered"]
        other = [kind for kind in kinds if _possible(task, cost_model, name, replace(limits, sharding_types=(kind,)))]
        remedy = f"allow {_either(other)}, which its other limits leave" if other else "relax these limits"
        return f"no way is known to shard table '{name}' on these devices, with any memory, under {_stated(limits)}: {remedy}"
    return None


def _narrow(limits: TableConstraint) -> bool:
    """Whether a runtime alone would not set these limits."""
    few = limits.sharding_types is not None and len(limits.sharding_types) <= _FEW
    return few or any(value is not None for value in (limits.devices, limits.max_shards, limits.min_columns))


def _possible(task: Task, cost_model: CostModel, name: str, limits: TableConstraint) -> bool:
    try:
        alone = replace(
            task,
            tables=[task.table_by_name[name]],
            constraints=Constraints({name: limits}),
            topology=replace(task.topology, memory=_BOUNDLESS),
        )
        return start(prepare(alone, cost_model), Start(limit=np.inf))[1] < 0
    except (InfeasibleTask, InvalidInput):  # no way at all, or limits that contradict each other
        return False


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _stated(limits: TableConstraint) -> str:
    """The limits that are set, but not those of a runtime."""
    of_runtime = ("equal_rows", "equal_columns", "max_columns") if limits.as_torchrec else ()
    values = {field.name: getattr(limits, field.name) for field in fields(limits) if field.name not in of_runtime}
    return ", ".join(
        f"{name} {list(value) if isinstance(value, tuple) else value}"
        for name, value in values.items()
        if value not in (None, False)
    )
