"""A small fixed kernel that tells whether the machine is quiet.

Bursts from other programs (on a virtual machine: other tenants) slow a whole sample down. The sentinel runs before and after each sample;
when it takes longer than it does on the quiet machine, so did the sample, and the sample is measured again.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from shardwright.measure.arena import Arena
from shardwright.measure.timing import Clock

if TYPE_CHECKING:
    import torch

SENTINEL_BYTES = 128 * 2**20
"""Room that a sentinel takes."""

_DIM = 64
_WINDOWS = {"cpu": 16, "cuda": 1}
_BAG = 16
_REMEMBERED = 5_000  # minutes of measuring: longer than the bursts of other tenants
_RUNS = 7  # the first ones also wait for what a sample left to be written back
_FRESH_S = 0.02
_QUIET_SHARE = 0.1


class Sentinel:
    """A pooled lookup of all rows of a window of a large buffer, in random order, twice.

    On a CPU each run has the next window of 8 MiB. The window was not touched for so long that the first pass reads main memory and the
    second one the last-level cache, whatever ran before: what is left in the caches by a sample does not matter.

    Attributes:
        quiet_ms: what it takes on the quiet machine: the 10% quantile of the last 5,000 readings.
    """

    def __init__(self, arena: Arena, clock: Clock) -> None:
        import torch

        self._clock = clock
        windows = _WINDOWS[arena.device.type]
        rows = SENTINEL_BYTES // 4 // _DIM // windows
        self._windows: torch.Tensor = arena.take(windows * rows * _DIM, torch.float32).view(windows, rows, _DIM)
        self._ids = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(arena.device)
        self._offsets = torch.arange(0, rows, _BAG).to(arena.device)
        self._runs = 0
        self._readings: deque[float] = deque(maxlen=_REMEMBERED)
        self._last_read = -_FRESH_S
        for _ in range(20):
            self._readings.append(self._time())
        self.quiet_ms = float(np.quantile(self._readings, _QUIET_SHARE))

    def run(self, _: int) -> None:
        """Run the kernel once."""
        from torch.nn.functional import embedding_bag

        window = self._windows[self._runs % len(self._windows)]
        self._runs += 1
        for _ in range(2):
            embedding_bag(self._ids, window, self._offsets, mode="sum")

    def read(self) -> float:
        """Run the kernel a few times; returns its shortest time relative to the quiet machine's.

        A reading of the last 20 ms is used again: the one after a sample is the one before the next.
        """
        if perf_counter() - self._last_read > _FRESH_S:
            self._readings.append(self._time())
            self.quiet_ms = float(np.quantile(self._readings, _QUIET_SHARE))
            self._last_read = perf_counter()
        return self._readings[-1] / self.quiet_ms

    def _time(self) -> float:
        """Shortest milliseconds of a few runs."""
        return min(self._clock.time([self.run], 0)[0] for _ in range(_RUNS))
