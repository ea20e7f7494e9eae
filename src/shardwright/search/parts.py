"""Grids of any row blocks: tables that keep several devices busy, cut into equal column blocks that are planned as tables of their own.

The engine gives a table either column blocks or row blocks. As a table of its own, each column block takes its own rows on its own devices.

*How many column blocks.* A pooled table that keeps k devices busy lies in c column blocks of k / c row blocks each. All c send for the ids,
and every row block of a column block returns its own sums, whose gradients come back. So c I + k / c · S bytes travel, if one copy of the
ids takes I, and one of the sums and their gradients S. The best c is √(k S / I). If it exceeds k by far, column blocks need no row
blocks. If it is near k, kernels, which prefer wide blocks, may decide for a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from shardwright.arrays import Floats
from shardwright.cost.flows import id_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.ways import free_grid_counts
from shardwright.sharding.work import shard_work
from shardwright.task.constraints import ANY, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES

_BUSY = 4  # fewest devices that a table keeps busy: for others, a search among grids costs more time than it gains
_NEAR = 4 / 3  # see `of_busy_tables`
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
        """Cut the pooled tables for which a grid sends fewer bytes than blocks along one axis.

        A column block has at least 4/3 row blocks, and the best number of column blocks may exceed the devices by as much.

        Args:
            task: the task.
            devices: `(tables,)` devices that each table keeps busy.
        """
        tied = {name for group in (*task.constraints.colocate, *task.constraints.apart) for name in group}
        parts = {}
        for table, busy in zip(task.tables, devices.tolist(), strict=True):
            limits = task.constraints.of(table.name)
            if busy >= _BUSY and table.pooled and table.name not in tied and all(map(limits.allows, _KINDS)):
                most = min(busy / _NEAR, limits.max_shards / 2 if limits.max_shards else busy)
                counts = [count for count in free_grid_counts(table, limits) if count <= most]
                best = _best_count(task, table, busy)
                if counts and best < busy * _NEAR and _name(table.name, 0) not in task.table_by_name:
                    parts[table.name] = min(counts, key=lambda count: max(count / best, best / count))
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


def _best_count(task: Task, table: Table, devices: float) -> float:
    """Column blocks of a grid on so many devices that send the fewest bytes."""
    work = shard_work(task, Shard.whole(table, 0))
    sums_bytes = work.outputs * table.dim * (VALUE_BYTES[task.exchange.values] + VALUE_BYTES[task.exchange.gradients])
    return sqrt(devices * sums_bytes / id_bytes(task, work))


def _name(table: str, block: int) -> str:
    return f"{table}, columns {block}"


def _limits(limits: TableConstraint, count: int) -> TableConstraint:
    """The limits of a column block of a table in `count` blocks."""
    return replace(limits, sharding_types=_KINDS, max_shards=limits.max_shards and limits.max_shards // count)
