"""More tables to learn from: tasks whose tables differ a little from those of the training tasks.

A cost network that has seen a few hundred tables is precise on these and several per cent off on others. Tables in between teach it how
costs depend on the features, rather than which table costs what; the world prices them like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.task.table import Table
from shardwright.task.task import Task

_RANGE = 1.0  # rows and pooling factors change by a factor of up to e, either way


def with_variants(tasks: Sequence[Task], variants: int, seed: int) -> list[PlacementArrays]:
    """The tasks, and so many variants of each; a variant of which a table would fit no device is left out.

    Raises:
        InfeasibleTask: a table of a task itself fits no device.
    """
    rng = np.random.default_rng(seed)
    result = [PlacementArrays.of(task) for task in tasks]
    for task in tasks:
        for _ in range(variants):
            changed = replace(task, tables=tuple(_variant(table, rng) for table in task.tables))
            try:
                result.append(PlacementArrays.of(changed))
            except InfeasibleTask:
                continue
    return result


def _variant(table: Table, rng: np.random.Generator) -> Table:
    rows, pooling = np.exp(rng.uniform(-_RANGE, _RANGE, 2))
    return replace(table.scaled_rows(float(rows)), pooling=table.pooling * float(pooling))
