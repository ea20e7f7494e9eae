"""A task as arrays for a policy: units to place one after another, and the papers' 21 table features of each block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.features import WorkArrays
from shardwright.cost.neuroshard.model import TABLE_FEATURES, table_features
from shardwright.errors import InfeasibleTask
from shardwright.search.units import PartialPlan, Units, beside_fixed, rivals_of, take_apart
from shardwright.sharding.memory import memory_account
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.quantities import format_bytes
from shardwright.task.task import Task

__all__ = ["TABLE_FEATURES", "Bools", "Floats", "Ints", "PlacementArrays", "features_of"]


@dataclass(frozen=True, eq=False)
class PlacementArrays:
    """One task as arrays: n units with b blocks to place on d devices, and f settled shards whose devices are fixed.

    A unit is a table that stays whole, or a set of blocks that go to one device together (see `search.units`).

    Attributes:
        task: the task.
        units: the units and the settled shards, in the order of the arrays.
        features: `(b, 21)` table features of the units' blocks, not standardised.
        unit_of: `(b,)` unit of each block, ascending.
        bytes: `(n,)` memory that a unit takes.
        allowed: `(n, d)` whether the pinning of its tables and the settled shards let a unit go on a device.
        rivals: `(n, n)` whether two units must be kept apart.
        fixed_features: `(f, 21)` table features of the settled shards.
        fixed_on: `(f, d)` whether a settled shard lies on a device.
        used: `(d,)` memory that settled shards take.
        memory: `(d,)` memory of each device.
    """

    task: Task
    units: Units = field(repr=False)
    features: Floats
    unit_of: Ints
    bytes: Ints
    allowed: Bools
    rivals: Bools
    fixed_features: Floats
    fixed_on: Bools
    used: Ints
    memory: Ints

    @classmethod
    def of(cls, task: Task, *, features: bool = True) -> PlacementArrays:
        """Split a task into units and settled shards.

        Args:
            task: the task.
            features: whether to compute the table features; policies that read prices need none, and save a third of the time.

        Raises:
            InfeasibleTask: a table fits no device with any sharding that it allows, or the settled shards alone break a rule.
        """
        units = take_apart(task)
        PartialPlan(task, units)
        devices = task.topology.devices
        blocks = [block for unit in units.free for block in unit.blocks]
        sizes = [len(unit.blocks) for unit in units.free]
        rivals = rivals_of(task, [unit.tables for unit in units.free])
        fixed_on = np.zeros((len(units.fixed), devices), dtype=bool)
        for row, shard in zip(fixed_on, units.fixed, strict=True):
            row[list(shard.devices)] = True
        arrays = cls(
            task=task,
            units=units,
            features=_features(task, blocks if features else ()),
            unit_of=np.repeat(np.arange(len(sizes)), sizes),
            bytes=np.array([unit.bytes for unit in units.free], dtype=np.int64),
            allowed=beside_fixed(task, units),
            rivals=rivals if rivals.size else np.zeros((len(sizes),) * 2, dtype=bool),
            fixed_features=_features(task, units.fixed if features else ()),
            fixed_on=fixed_on,
            used=np.asarray(memory_account(task, units.fixed).total, dtype=np.int64),
            memory=np.array(task.topology.memory_bytes, dtype=np.int64),
        )
        arrays.check_room()
        return arrays

    @classmethod
    def of_placeable(cls, tasks: Iterable[Task]) -> list[PlacementArrays]:
        """The arrays of the tasks that can be placed; a task with a table that fits no device is left out."""
        placeable = []
        for task in tasks:
            with suppress(InfeasibleTask):
                placeable.append(cls.of(task))
        return placeable

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.memory)

    def __len__(self) -> int:
        return len(self.bytes)

    def check_room(self) -> None:
        """Check that every unit on its own fits some device beside the settled shards.

        Raises:
            InfeasibleTask: a unit fits no device.
        """
        fits = (self.allowed & (self.used + self.bytes[:, None] <= self.memory)).any(axis=1)
        if not fits.all():
            unit = int(np.flatnonzero(~fits)[0])
            raise InfeasibleTask(
                f"table '{', '.join(self.units.free[unit].tables)}' needs {format_bytes(int(self.bytes[unit]))}, more than any device "
                "that it may use has left: allow column_wise or row_wise for it, or use devices with more memory"
            )

    def able(self, unit: int, used: Ints, assignment: Ints) -> Bools:
        """`(d,)` whether a device may take a unit: the unit is allowed there, fits, and meets no rival.

        Args:
            unit: number of the unit.
            used: `(d,)` memory taken so far.
            assignment: `(n,)` device of each unit placed so far, negative for the others.
        """
        able: Bools = self.allowed[unit] & (used + self.bytes[unit] <= self.memory)
        theirs = assignment[self.rivals[unit]]
        able[theirs[theirs >= 0]] = False
        return able

    def hardest_first(self) -> Ints:
        """`(n,)` units by their number of devices that are allowed and large enough, fewest first; ties by memory, largest first."""
        choices = (self.allowed & (self.used + self.bytes[:, None] <= self.memory)).sum(axis=1)
        return np.lexsort((-self.bytes, choices))

    def left_over(self, unit: int, assignment: Ints, when: str) -> str:
        """The error message for a unit for which no device was left: the sizes and the remedies.

        Args:
            unit: number of the unit.
            assignment: `(n,)` device of each unit, negative for units without one.
            when: for example "in the last of 64 tries".
        """
        used, done = self.used.copy(), assignment >= 0
        np.add.at(used, assignment[done], self.bytes[done])
        left = int(np.maximum(self.memory - used, 0)[self.allowed[unit]].max())
        return (
            f"no device is left for table '{', '.join(self.units.free[unit].tables)}', which needs "
            f"{format_bytes(int(self.bytes[unit]))}: {when} the devices it may use had at most {format_bytes(left)} left, or held a table "
            "that it must be kept apart from; allow column_wise or row_wise for it, use more devices or memory, or strategy 'certified'"
        )

    def plan(self, assignment: Ints | Sequence[int], strategy: str, seed: int) -> Plan:
        """The plan that puts unit i on device `assignment[i]`."""
        placed = (
            shard for unit, device in zip(self.units.free, assignment, strict=True) for shard in unit.on(int(device))
        )
        return Plan(self.task, [*self.units.fixed, *placed], strategy, seed)


def features_of(tasks: Sequence[PlacementArrays]) -> Floats:
    """`(n, 21)` table features of all blocks and settled shards of the tasks, one task after another."""
    return np.concatenate([part for task in tasks for part in (task.features, task.fixed_features)])


def _features(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(n, 21)` the papers' features of shards; `TABLE_FEATURES` names them."""
    if not shards:
        return np.zeros((0, len(TABLE_FEATURES)))
    return table_features(WorkArrays.of([shard_work(task, shard) for shard in shards]))
