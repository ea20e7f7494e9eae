"""More tables to learn from: tasks whose tables have the properties of the training tasks' tables, newly combined.

A cost network that has seen a few hundred tables is precise on these and several per cent off on others. Tables in between teach it how
costs depend on the features, rather than which table costs what; the world prices them like any others. Variants hold fewer tables than
their tasks, down to one a device, because a policy asks what devices cost while they fill up, and in which order to place tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.task.constraints import Constraints
from shardwright.task.table import Table
from shardwright.task.task import Task

_RANGE = 1.0  # rows and pooling factors change by a factor of up to e, either way
_BORROWED = 0.5  # of the tables take the access profile, and as many the pooling factor, of another one


def variants_of(tasks: Sequence[Task], variants: int, seed: int) -> list[PlacementArrays]:
    """So many variants of each task; those with a table that would fit no device are left out."""
    rng = np.random.default_rng(seed)
    result = []
    known = [table for task in tasks for table in task.tables]
    for task in tasks:
        for _ in range(variants):
            try:
                result.append(PlacementArrays.of(_variant(task, known, rng)))
            except InfeasibleTask:
                continue
    return result


def _variant(task: Task, known: Sequence[Table], rng: np.random.Generator) -> Task:
    """Some of a task's tables, changed."""
    few, all_ = min(len(task.tables), task.topology.devices), len(task.tables)
    count = round(few * (all_ / few) ** rng.uniform())
    chosen = [task.tables[index] for index in np.sort(rng.choice(all_, count, replace=False))]
    return replace(
        task,
        tables=tuple(_changed(table, known, rng) for table in chosen),
        constraints=_of_tables(task.constraints, {table.name for table in chosen}),
    )


def _changed(table: Table, known: Sequence[Table], rng: np.random.Generator) -> Table:
    rows, pooling = np.exp(rng.uniform(-_RANGE, _RANGE, 2))
    hot, busy = (known[int(rng.integers(len(known)))] if rng.random() < _BORROWED else table for _ in range(2))
    scaled = hot.scaled_rows(float(rows) * table.rows / hot.rows)
    return replace(table, rows=scaled.rows, access=scaled.access, pooling=busy.pooling * float(pooling))


def _of_tables(constraints: Constraints, names: set[str]) -> Constraints:
    """The constraints on some of the tables."""
    together, apart = (
        tuple(kept for group in groups if len(kept := tuple(name for name in group if name in names)) > 1)
        for groups in (constraints.colocate, constraints.apart)
    )
    return Constraints({name: of for name, of in constraints.tables.items() if name in names}, together, apart)
