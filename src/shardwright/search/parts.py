"""Grids of any row blocks: tables that keep several devices busy, cut into equal column blocks that are planned as tables of their own.

The engine gives a table either column blocks or row blocks. As a table of its own, each column block takes its own rows on its own devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.ways import free_grid_counts
from shardwright.task.constraints import ANY, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

_DEVICES = 2  # to which each column block of a grid may have its rows dealt, at least
_CUTS = ((2.0, None), (1.0, 4))
"""Devices that a column block keeps busy, and the most column blocks, of each cut: few tables in many blocks, or many in few."""

_KINDS = ("table_wise", "column_wise", "row_wise", "table_row_wise")


@dataclass(frozen=True)
class InParts:
    """A task some of whose tables are cut into equal column blocks, which are tables there.

    Attributes:
        task: the task with its tables.
        parts: number of column blocks by table; only those of tables that are cut.
    """

    task: Task
    parts: Mapping[str, int]

    @classmethod
    def of_busy_tables(cls, task: Task, devices: Floats) -> list[InParts]:
        """Cut the tables whose column blocks keep devices busy; several cuts, each another one, that a search can try.

        Args:
            task: the task.
            devices: `(tables,)` devices that each table keeps busy.
        """
        cuts = [cls(task, _blocks(task, devices, busy, most)) for busy, most in _CUTS]
        return [cut for place, cut in enumerate(cuts) if cut.parts and cut not in cuts[:place]]

    def cut(self, task: Task) -> Task:
        """The task with column blocks as tables; the same task if none is cut."""
        if not self.parts:
            return task
        limits = dict(task.constraints.tables)
        tables: list[Table] = []
        for table in task.tables:
            count = self.parts.get(table.name, 1)
            if count == 1:
                tables.append(table)
                continue
            blocks = [replace(table, name=_name(table.name, block), dim=table.dim // count) for block in range(count)]
            tables += blocks
            limits |= dict.fromkeys((block.name for block in blocks), _limits(limits.pop(table.name, ANY), count))
        return replace(task, tables=tables, constraints=replace(task.constraints, tables=limits))

    def joined(self, plan: Plan) -> Sequence[Shard]:
        """The shards of a plan of the column blocks as shards of their tables."""
        place = {
            _name(name, block): (name, block * (self.task.table_by_name[name].dim // count))
            for name, count in self.parts.items()
            for block in range(count)
        }
        shards = []
        for shard in plan.shards:
            name, first = place.get(shard.table, (shard.table, 0))
            start, stop = shard.columns
            shards.append(replace(shard, table=name, columns=(first + start, first + stop)))
        return shards


def _name(table: str, block: int) -> str:
    return f"{table}, columns {block}"


def _blocks(task: Task, devices: Floats, busy: float, most: int | None) -> dict[str, int]:
    """Column blocks by table: as many as keep `busy` devices busy each, and at most `most`."""
    tied = {name for group in (*task.constraints.colocate, *task.constraints.apart) for name in group}
    blocks = {}
    for table, of_table in zip(task.tables, devices.tolist(), strict=True):
        limits = task.constraints.of(table.name)
        if table.name in tied or not all(map(limits.allows, _KINDS)) or _name(table.name, 0) in task.table_by_name:
            continue
        fits = min(of_table / busy, most or np.inf, (limits.max_shards or np.inf) / _DEVICES)
        if counts := [count for count in free_grid_counts(table, limits) if count <= fits]:
            blocks[table.name] = counts[-1]
    return blocks


def _limits(limits: TableConstraint, count: int) -> TableConstraint:
    """The limits of a column block of a table in `count` blocks."""
    return replace(limits, sharding_types=_KINDS, max_shards=limits.max_shards and limits.max_shards // count)
