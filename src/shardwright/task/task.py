"""A placement problem: tables, a topology, a batch size, constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from shardwright.errors import InvalidInput, counted
from shardwright.task.constraints import Constraints
from shardwright.task.quantities import checked_name, checked_whole
from shardwright.task.sharding_groups import ShardingGroups
from shardwright.task.table import MAX_ELEMENTS, Table
from shardwright.task.topology import Exchange, Topology

Optimizer: TypeAlias = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
_ALSO = {"row_wise_adagrad": "rowwise_adagrad", "exact_rowwise_adagrad": "rowwise_adagrad", "exact_adagrad": "adagrad"}
_ALSO |= {"exact_sgd": "sgd"}  # as FBGEMM names them


@dataclass(frozen=True)
class Task:
    """A placement problem: what to place, and where.

    Attributes:
        tables: the embedding tables, names unique.
        topology: the cluster.
        batch_size: samples per step over all devices together.
        optimizer: optimizer of the embedding weights; decides the optimizer state in memory.
        constraints: limits on the plans.
        exchange: how devices exchange the rows of sequence tables.
        groups: the cluster's sharding groups if the topology is one of them; None if it is the whole cluster.
    """

    tables: Sequence[Table]
    topology: Topology
    batch_size: int
    optimizer: Optimizer = "rowwise_adagrad"
    constraints: Constraints = field(default_factory=Constraints)
    exchange: Exchange = field(default_factory=Exchange)
    groups: ShardingGroups | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        if not self.tables:
            raise InvalidInput("tables: a task needs at least one table")
        size = checked_whole(self.batch_size, "batch_size", MAX_ELEMENTS)
        object.__setattr__(self, "batch_size", size)
        object.__setattr__(self, "optimizer", checked_name(self.optimizer, "optimizer", OPTIMIZERS, _ALSO))
        seen: set[str] = set()
        for table in self.tables:
            if table.name in seen:
                raise InvalidInput(f"tables: the name {table.name!r} occurs twice; table names must be unique")
            seen.add(table.name)
            most = max(table.pooling, len(table.poolings))
            if size * most * table.dim > MAX_ELEMENTS:
                raise InvalidInput(
                    f"table '{table.name}': batch_size {size} × pooling {most:g} × dim {table.dim} looks up more than 2**50 "
                    "elements a step; lower one of them"
                )
        self.constraints.check(seen, self.topology.devices)
        if self.groups is not None and self.groups.size != self.topology.devices:
            raise InvalidInput(
                f"sharding_groups: size is {self.groups.size}, but the topology has {self.topology.devices} devices; give the topology "
                f"of one group ({self.groups.size} devices)"
            )

    def __repr__(self) -> str:
        of_group = f", one of {self.groups.count} sharding groups" if self.groups else ""
        return f"<Task: {counted(len(self.tables), 'table')}, batch_size {self.batch_size}, {self.optimizer}, {self.topology!r}{of_group}>"

    @cached_property
    def table_by_name(self) -> dict[str, Table]:
        """The tables by name."""
        return {table.name: table for table in self.tables}

    @cached_property
    def weighted(self) -> tuple[bool, bool]:
        """Whether a pooled table, and whether a sequence table, has weighted lookups."""
        pooled, sequences = (
            any(table.weighted and table.pooled is kind for table in self.tables) for kind in (True, False)
        )
        return pooled, sequences

    @cached_property
    def table_number(self) -> dict[str, int]:
        """The place of each table in `tables`, by name."""
        return {table.name: index for index, table in enumerate(self.tables)}

    @classmethod
    def load(cls, path: str | Path) -> Task:
        """Read a task from a YAML or JSON file.

        Raises:
            InvalidInput: the file cannot be read or breaks a rule; the message names file and field.
        """
        from shardwright.task.files import load_task

        return load_task(Path(path))

    def save(self, path: str | Path) -> None:
        """Write the task as YAML, or as JSON if the name ends in .json; atomic."""
        from shardwright.task.files import save_task

        save_task(self, Path(path))
