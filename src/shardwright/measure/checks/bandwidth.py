"""How fast a device copies its own memory: the ceiling of all kernels that move bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardwright.errors import MeasurementFailed
from shardwright.measure.backend import free_memory
from shardwright.measure.timing import Steady, TimingPolicy, clock_of, time_parts

SIZES = {
    "cpu": tuple(2**power for power in (22, 24, 26, 28)),
    "cuda": tuple(2**power for power in (24, 26, 28, 30, 32)),
}
"""Bytes copied, by kind of device."""

FAR_ABOVE_CACHE = {"cpu": 2**28, "cuda": 2**30}
"""Bytes from which a copy is one of memory alone, by kind of device; smaller ones are found in the last-level cache, wholly or in part."""

_BUFFERS = 3  # copied in turn, so that none is found in a cache


@dataclass(frozen=True)
class CopyTime:
    """Copying a buffer to another on the same device.

    Attributes:
        size_bytes: bytes copied: as many are read, and as many written.
        ms: time.
    """

    size_bytes: int
    ms: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes read and written a second."""
        return 2e3 * self.size_bytes / self.ms


def copy_times(device: str, sizes: Sequence[int] | None = None) -> list[CopyTime]:
    """Times of copies of several sizes; those that do not fit are left out.

    Args:
        device: "cpu" or "cuda".
        sizes: bytes; by default `SIZES` of the device.
    """
    where = torch.device(device)
    clock, policy = clock_of(where), TimingPolicy.of(where.type)
    found = []
    for size in sizes or SIZES[where.type]:
        if 2 * (_BUFFERS + 1) * size > free_memory(where):
            continue
        # Random bytes: constant ones may be quicker to move.
        sources = [torch.empty(size // 8, dtype=torch.int64, device=where).random_() for _ in range(_BUFFERS)]
        targets = [torch.empty_like(source) for source in sources]

        def copy(run: int, sources: list[torch.Tensor] = sources, targets: list[torch.Tensor] = targets) -> None:
            targets[run % _BUFFERS].copy_(sources[run % _BUFFERS])

        found.append(CopyTime(size, time_parts([copy], clock, policy, Steady(), _BUFFERS).parts_ms[0]))
    return found


def of_memory(times: Sequence[CopyTime], device: str) -> list[CopyTime]:
    """The copies that say how fast memory is: those far above the last-level cache, or where none of these fits, the largest.

    Args:
        times: of copies.
        device: "cpu" or "cuda".

    Raises:
        MeasurementFailed: there is no copy.
    """
    if not times:
        raise MeasurementFailed(
            f"bandwidth: not even a copy of {min(SIZES[device])} bytes fits the free memory of {device}; end what else uses it"
        )
    least = min(FAR_ABOVE_CACHE[device], max(time.size_bytes for time in times))
    return [time for time in times if time.size_bytes >= least]


def ceiling(times: Sequence[CopyTime], device: str) -> float:
    """Bytes a second of the fastest copy of memory; those of a cache do not count.

    Args:
        times: of copies.
        device: "cpu" or "cuda".
    """
    return max(time.bytes_per_s for time in of_memory(times, device))
