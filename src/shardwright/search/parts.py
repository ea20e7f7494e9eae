"""Grids of any row blocks: tables that keep several devices busy, cut into equal column blocks that are planned as tables of their own.

The engine gives a table either column blocks or row blocks. As a table of its own, each column block takes its own rows on its own devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.arrays import Floats
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.ways import free_grid_counts
from shardwright.task.constraints import ANY, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task

_DEVICES = 2.0  # that a column block of a grid keeps busy; busier tables have more column blocks
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
    def of_busy_tables(cls, task: Task, devices: Floats) -> InParts:
        """Cut the tables whose column blocks keep at least two devices busy.

        Args:
            task: the task.
            devices: `(tables,)` devices that each table keeps busy.
        """
        tied = {name for group in (*task.constraints.colocate, *task.constraints.apart) for name in group}
        parts = {}
        for table, busy in zip(task.tables, devices.tolist(), strict=True):
            limits = task.constraints.of(table.name)
            if table.name not in tied and all(map(limits.allows, _KINDS)):
                most = min(busy, limits.max_shards or busy) / _DEVICES
                counts = [count for count in free_grid_counts(table, limits) if count <= most]
                if counts and _name(table.name, 0) not in task.table_by_name:
                    parts[table.name] = counts[-1]
        return cls(task, parts)

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


def _limits(limits: TableConstraint, count: int) -> TableConstraint:
    """The limits of a column block of a table in `count` blocks."""
    return replace(limits, sharding_types=_KINDS, max_shards=limits.max_shards and limits.max_shards // count)
