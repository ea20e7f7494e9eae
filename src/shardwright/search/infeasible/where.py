"""Sets of devices that tables are confined to, each distinct set once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.task.task import Task
from shardwright.task.units import format_bytes

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Where:
    """A set of devices of a task.

    Attributes:
        mask: `(devices,)` which they are.
        memory: their memory in bytes, largest first.
        hosts: how many hosts they belong to.
        everywhere: whether they are all devices there are.
    """

    mask: Mask
    memory: tuple[int, ...]
    hosts: int
    everywhere: bool

    @property
    def count(self) -> int:
        """How many devices they are."""
        return len(self.memory)

    @cached_property
    def total(self) -> int:
        """Their memory together, in bytes."""
        return sum(self.memory)

    def __str__(self) -> str:
        ranks = np.flatnonzero(self.mask).tolist()
        if self.everywhere:
            return f"all {self.count} devices"
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        shown = ", ".join(map(str, ranks[:8]))
        return f"ranks {shown}" if len(ranks) <= 8 else f"{len(ranks)} devices (ranks {shown}, …)"


@dataclass(eq=False)
class Places:
    """The sets of devices of a task, made once each.

    Attributes:
        task: the task.
    """

    task: Task
    _known: dict[bytes, Where] = field(default_factory=dict)

    def of(self, mask: Mask) -> Where:
        """The set with this `(devices,)` mask."""
        key = mask.tobytes()
        if key not in self._known:
            ranks = np.flatnonzero(mask)
            memory = self.task.topology.memory_bytes
            self._known[key] = Where(
                mask=mask.copy(),
                memory=tuple(sorted((memory[rank] for rank in ranks), reverse=True)),
                hosts=int(np.unique(ranks // self.task.topology.devices_per_host).size),
                everywhere=bool(mask.all()),
            )
        return self._known[key]


def inside(sets: Sequence[Where]) -> list[list[int]]:
    """For each of the sets, the indices of those that lie within it; itself is one."""
    masks = np.array([where.mask for where in sets])
    outside = (
        masks.astype(np.float32) @ (~masks).astype(np.float32).T
    )  # (sets, sets): devices of one that are not in the other
    return [np.flatnonzero(column == 0).tolist() for column in outside.T]


def compared(need: int, have: int) -> tuple[str, str]:
    """Two sizes for people, to the byte where they would read the same."""
    told = format_bytes(need), format_bytes(have)
    return told if told[0] != told[1] else (f"{need} bytes", f"{have} bytes")
