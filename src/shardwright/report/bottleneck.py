"""Which device a phase waits for, and which tables make it so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.report.entry import Entry, phase_ms
from shardwright.sharding.costs import PHASES

PHASE_NAMES = ("forward lookup", "forward collectives", "backward collectives", "backward and optimizer")


@dataclass(frozen=True)
class Culprit:
    """A table that the slowest device of a phase is busy with.

    Attributes:
        table: its place in the task.
        device_ms: by how much that device's phase would get shorter without it.
        phase_ms: by how much the phase would, as the next slowest device then decides.
    """

    table: int
    device_ms: float
    phase_ms: float


@dataclass(frozen=True)
class Bottleneck:
    """The device that a phase waits for.

    Attributes:
        phase: the phase, one of `PHASES`.
        name: the phase in words.
        rank: the device.
        ms: its time.
        mean_ms: the mean over all devices.
        alone_ms: sum of what each table alone would save on it; not its time, as fused costs do not add.
        tables: those that would save most, the most first; none where no cost model was at hand.
    """

    phase: str
    name: str
    rank: int
    ms: float
    mean_ms: float
    alone_ms: float
    tables: tuple[Culprit, ...]


def bottlenecks(entry: Entry, most: int = 8) -> tuple[Bottleneck, ...]:
    """The bottleneck of each phase, with at most so many tables each."""
    result = []
    for index, (phase, name, times) in enumerate(zip(PHASES, PHASE_NAMES, phase_ms(entry.cost), strict=True)):
        rank = int(np.argmax(times))
        alone, tables = _culprits(entry, index, most)
        result.append(Bottleneck(phase, name, rank, times[rank], float(np.mean(times)), alone, tables))
    return tuple(result)


def _culprits(entry: Entry, phase: int, most: int) -> tuple[float, tuple[Culprit, ...]]:
    found = entry.marginals
    if found is None:
        return 0.0, ()
    saved = found.slowest_ms[:, phase]
    order = np.argsort(-saved, kind="stable")[:most]
    tables = tuple(
        Culprit(int(table), float(saved[table]), float(found.phase_ms[table, phase]))
        for table in order
        if saved[table] > 0
    )
    return float(saved.sum()), tables
