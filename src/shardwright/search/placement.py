"""Placing units one after another, each on a device with memory left that no constraint forbids."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from shardwright.errors import InfeasibleTask
from shardwright.search.units import Unit, Units
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task
from shardwright.task.units import format_bytes

Eligible = npt.NDArray[np.int64]


class Placement:
    """Shards placed so far, the memory they take, and where a further unit may go."""

    def __init__(self, task: Task, units: Units) -> None:
        self._task = task
        self._limit = np.array(task.topology.memory_bytes, dtype=np.int64)
        self._apart: dict[str, set[str]] = {}
        for pair in task.constraints.apart_pairs():
            one, other = sorted(pair)
            self._apart.setdefault(one, set()).add(other)
            self._apart.setdefault(other, set()).add(one)
        self.shards: list[Shard] = list(units.fixed)
        self._used = memory_account(task, self.shards).total
        self._held: dict[str, set[int]] = {}
        for shard in self.shards:
            self._held.setdefault(shard.table, set()).update(shard.devices)
        self._check_fixed()

    def eligible(self, unit: Unit) -> Eligible:
        """Ranks that may take the unit.

        Raises:
            InfeasibleTask: there is none.
        """
        free = unit.allowed & (self._used + unit.bytes <= self._limit)
        for table in unit.tables:
            for other in self._apart.get(table, ()):
                free[list(self._held.get(other, ()))] = False
        ranks = np.flatnonzero(free)
        if ranks.size == 0:
            left = format_bytes(max(0, int((self._limit - self._used)[unit.allowed].max())))
            raise InfeasibleTask(
                f"no device is left for table '{', '.join(unit.tables)}', which needs {format_bytes(unit.bytes)}: the devices it may "
                f"use have at most {left} left, or are forbidden by constraints; allow column_wise or row_wise, or use more "
                "devices or memory"
            )
        return ranks

    def place(self, unit: Unit, device: int) -> None:
        """Put the unit on a device."""
        self.shards += unit.on(device)
        self._used[device] += unit.bytes
        for table in unit.tables:
            self._held.setdefault(table, set()).add(device)

    def _check_fixed(self) -> None:
        over = np.flatnonzero(self._used > self._limit)
        if over.size:
            rank = int(over[0])
            raise InfeasibleTask(
                f"rank {rank} has {format_bytes(self._limit[rank])}, and the tables that must be cut over all devices take "
                f"{format_bytes(self._used[rank])} there: allow table_wise or column_wise for some, or use more devices"
            )
        for table, others in self._apart.items():
            clash = next((o for o in others if self._held.get(o, set()) & self._held.get(table, set())), None)
            if clash:
                raise InfeasibleTask(
                    f"tables {table} and {clash} are to be kept apart, but both must be cut over the same devices; allow table_wise for one"
                )


def place_all(task: Task, units: Units, order: Iterable[int], choose: Callable[[int, Eligible], int]) -> list[Shard]:
    """Place all free units.

    Args:
        task: the task.
        units: its units.
        order: indices of `units.free`, first to place first.
        choose: from a unit's index and the eligible ranks, the rank to place it on.

    Raises:
        InfeasibleTask: a unit finds no device.
    """
    placement = Placement(task, units)
    for index in order:
        unit = units.free[index]
        placement.place(unit, choose(index, placement.eligible(unit)))
    return placement.shards
