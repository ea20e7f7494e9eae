"""Copies of the training tasks with other pooling factors and rows, so that a few hundred tables teach what any table costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.task.table import Table
from shardwright.task.task import Task

SPREAD = 0.6
"""Standard deviation of the logarithms of the factors."""


def with_variations(tasks: Sequence[PlacementArrays], copies: int, rng: np.random.Generator) -> list[PlacementArrays]:
    """The tasks, and `copies` varied ones of each; a copy that cannot be placed is left out."""
    found = list(tasks)
    for _ in range(copies):
        for task in tasks:
            try:
                found.append(PlacementArrays.of(varied(task.task, rng)))
            except InfeasibleTask:  # more lookups need larger buffers
                continue
    return found


def varied(task: Task, rng: np.random.Generator) -> Task:
    """The task with the pooling factor of every table multiplied at random, and its rows made fewer."""
    return replace(task, tables=tuple(_varied_table(table, rng) for table in task.tables))


def _varied_table(table: Table, rng: np.random.Generator) -> Table:
    more_lookups, fewer_rows = np.exp(SPREAD * rng.standard_normal()), np.exp(-SPREAD * abs(rng.standard_normal()))
    return replace(table.scaled_rows(float(fewer_rows)), pooling=float(table.pooling * more_lookups))
