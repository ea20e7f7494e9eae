"""A small fixed kernel that tells the state of the machine: how long it takes now.

Other programs (on a virtual machine: other tenants) share caches and memory, and slow kernels down for some milliseconds or minutes. The
sentinel runs before, after and every few runs between. The time of each run is converted to what it would be at the usual state of the
machine, so that measurements of different minutes can be compared:

    time at the usual state = time · (usual sentinel time / sentinel time now) ^ 0.7

The exponent is between those of kernels that compute (0.3) and of kernels that wait for memory (1.4); with it, timings of the same set
agreed best on a machine with noisy neighbours. Whoever compares times of two processes converts them to one state likewise.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from shardwright.measure.arena import Arena

if TYPE_CHECKING:
    import torch

    from shardwright.measure.timing import Clock

SENTINEL_BYTES = 128 * 2**20
"""Room that a sentinel takes."""

_DIM = 64
_WINDOWS = {"cpu": 16, "cuda": 1}
_BAG = 16
_REMEMBERED = 5_000  # minutes of measuring: longer than the bursts of other tenants
_FIRST = 20  # readings before anything is measured
_RUNS = 2
_ELASTICITY = 0.7


def at_state(ms: float, measured: float, wanted: float) -> float:
    """Milliseconds of a kernel at another state of the machine; states are sentinel times."""
    return ms * float((wanted / measured) ** _ELASTICITY)


class Sentinel:
    """A pooled lookup of all rows of a window of a large buffer, in random order, twice.

    On a CPU each run has the next window of 8 MiB. The window was not touched for so long that the first pass reads main memory and the
    second one the last-level cache, whatever ran before: what is left in the caches by a sample does not matter.

    Attributes:
        usual_ms: what it took as a rule before anything was measured: the state that times are converted to.
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
        for _ in range(_FIRST):
            self.read()
        self.usual_ms: float = float(np.median(self._readings))

    def run(self, _: int) -> None:
        """Run the kernel once."""
        from torch.nn.functional import embedding_bag

        window = self._windows[self._runs % len(self._windows)]
        self._runs += 1
        for _ in range(2):
            embedding_bag(self._ids, window, self._offsets, mode="sum")

    def read(self) -> float:
        """The state of the machine now: milliseconds of the shorter of two runs."""
        found = min(self._clock.time([self.run], 0)[0] for _ in range(_RUNS))
        self._readings.append(found)
        return found

    def beyond_usual(self, state_ms: float) -> float:
        """A state over the median of the last 5,000 readings."""
        return state_ms / float(np.median(self._readings))
