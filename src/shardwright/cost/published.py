"""Kernel times of GPUs that were not measured here, learned from published figures.

In each pass a call takes a fixed time, plus, for each of its shards, the sum of these parts:

    forward   lookups, bags      cycles of the multiprocessors: index, address and start of each row; start and end of each bag
              cache              32-byte sectors of all rows looked up, through the second-level cache
              memory             sectors of the rows that are not in the cache
              outputs            values written to memory
    backward  sorted             cycles per lookup to sort and group the lookups by row
              gradients          gradients of all lookups, through the cache; of all bags or unpooled lookups, from memory
              updates            sectors of distinct rows and of their optimizer state, read and written

The nominal rates are: all multiprocessors at the boost clock, 64 bytes per cycle of each from the cache, and the vendor's bandwidth for
memory. `FACTORS`, the same for all GPUs, are a part's time over its time at these rates; for bytes none is below 1, the hardware's limit.
`benchmarks/published_costs.py` fits them to `data/published/kernels.csv`.

Kernels work table by table, so each shard has the cache to itself: the cache holds the rows looked up most often, and only their first
lookup goes to memory. All parts are sums over shards, so the time is linear and every bound holds. Times are those of the GPU's kernels:
a call with a few small tables takes longer, because the host needs some 0.3 ms to enqueue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays, kept
from shardwright.cost.model import CostModel, Pricing
from shardwright.errors import InvalidInput

SECTOR = 32  # fewest bytes that memory moves
_CACHE_BYTES_A_CYCLE = 64
_VALUE = 4  # bytes of an output and of its gradient
_HOLDS = 0.5  # share of a cache that random rows fill before they evict each other


@dataclass(frozen=True)
class Gpu:
    """A GPU's figures as its vendor publishes them.

    Attributes:
        bandwidth: bytes per second of its memory.
        cache: bytes of the cache that all multiprocessors share.
        processors: number of multiprocessors, or compute units.
        clock: boost clock of the multiprocessors, Hz.
    """

    bandwidth: float
    cache: float
    processors: int
    clock: float

    @property
    def cycles(self) -> float:
        """Cycles of all multiprocessors together per millisecond."""
        return self.processors * self.clock / 1e3


GPUS = {
    "rtx2080ti": Gpu(616e9, 5.5e6, 68, 1.545e9),
    "v100": Gpu(900e9, 6e6, 80, 1.53e9),
    "a100": Gpu(2039e9, 40e6, 108, 1.41e9),
    "h100": Gpu(3350e9, 50e6, 132, 1.98e9),
    "h200": Gpu(4800e9, 50e6, 132, 1.98e9),
    "b200": Gpu(8000e9, 126e6, 148, 1.965e9),
    "gb200": Gpu(8000e9, 126e6, 152, 1.965e9),  # with the clock of a B200, as GB300s
    "gb300": Gpu(8000e9, 126e6, 152, 1.965e9),
    "l40s": Gpu(864e9, 96e6, 142, 2.52e9),  # with all the cache of its chip; resellers state half
    "a10g": Gpu(600e9, 6e6, 80, 1.71e9),
    "mi250": Gpu(1638e9, 8e6, 104, 1.7e9),  # one of its two dies; each die is a device
    "mi300": Gpu(5300e9, 256e6, 304, 2.1e9),
    "mi350x": Gpu(8000e9, 256e6, 256, 2.2e9),
}
"""GPUs by device type, from the vendors' data sheets: full boards with the largest memory, and SXM if there are several forms."""

PARTS = (("lookups", "bags", "cache", "memory", "outputs"), ("sorted", "gradients", "updates"))
FACTORS = ((3.515, 17.17, 1.0, 1.0, 1.085), (26.89, 1.455, 1.748))
"""For each of `PARTS`, its time over the time at the nominal rates, forward and backward."""
CALL_MS = (0.01904, 0.1192)
"""Ms of a call's launches, forward and backward."""
_ORIGIN = "from figures that others have published"
HALF_WITHIN = "0.15"
"""Median relative error on the rows of a source that the fit leaves out (`benchmarks/results/published_costs.md`)."""
STATE_ROWS = {"sgd": 0, "rowwise_adagrad": 0, "adagrad": 1, "adam": 2}
"""Rows of optimizer state per row of weights; row-wise Adagrad keeps one number per row, in its own sector."""


@dataclass(frozen=True)
class PublishedModel(CostModel):
    """A cost model from published figures; linear, hence convex.

    Attributes:
        device: device type; a key of `GPUS` unless `gpu` is given.
        optimizer: the optimizer; the backward pass reads and writes its state.
        gpu: figures of the device; by default its vendor's.

    Raises:
        InvalidInput: the device is not known.
    """

    device: str
    optimizer: str = "rowwise_adagrad"
    gpu: Gpu | None = None
    metadata: Mapping[str, str] = field(init=False, repr=False, compare=False)

    cut_error: ClassVar[float] = 0.1
    """Error of the predicted cost of a cut, as a share of the table's time: twice the median in `benchmarks/published_costs.py`."""
    narrowest: ClassVar[int] = 32
    """Fewest columns of a block that searches cut, unless nothing else fits: in narrower blocks, a warp idles and a row is below a line."""

    def __post_init__(self) -> None:
        if self.gpu is None and self.device not in GPUS:
            raise InvalidInput(f"cost model: no figures of device {self.device!r}; known are {', '.join(GPUS)}")
        metadata = {"name": self.name, "device": self.device, "origin": _ORIGIN, "half_within": HALF_WITHIN}
        object.__setattr__(self, "metadata", metadata)

    @classmethod
    def of_bandwidth(cls, device: str, bandwidth: float, optimizer: str = "rowwise_adagrad") -> PublishedModel:
        """The model of a GPU with known memory bandwidth; all else is copied from the known GPU with the nearest bandwidth."""
        nearest = min(GPUS.values(), key=lambda gpu: abs(np.log(gpu.bandwidth / bandwidth)))
        return cls(f"{device} at {bandwidth / 1e9:.0f} GB/s", optimizer, replace(nearest, bandwidth=bandwidth))

    @property
    def name(self) -> str:
        """Device and kind, as in "h200/published"."""
        return f"{self.device}/published"

    @property
    def superadditive(self) -> PublishedModel:
        """A model of lower times in which cutting or replicating a table never lowers its cost: its cache holds everything."""
        return replace(self, gpu=replace(self._gpu, cache=np.inf))

    @cached_property
    def _gpu(self) -> Gpu:
        return self.gpu or GPUS[self.device]

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 2)` forward and backward ms of each shard, without launches."""
        forward, backward = parts(works, self._gpu, self.optimizer)
        return np.stack([forward @ FACTORS[0], backward @ FACTORS[1]], axis=1)

    @property
    def pricing(self) -> Pricing:
        """The sums as they are, plus the launches of a call."""
        nothing = np.zeros((0, 2))
        return Pricing(nothing, np.zeros(0), nothing.T, np.eye(2), np.array(CALL_MS))


def parts(works: WorkArrays, gpu: Gpu, optimizer: str) -> tuple[Floats, Floats]:
    """`(n, 5)` forward and `(n, 3)` backward ms of the `PARTS` of n shards, at the nominal rates."""
    sectors = np.ceil(works.row_bytes / SECTOR) * SECTOR
    bags = works.outputs
    cache, memory = gpu.cycles * _CACHE_BYTES_A_CYCLE, gpu.bandwidth / 1e3
    values = _VALUE * works.dim
    forward = (
        works.lookups / gpu.cycles,
        bags / gpu.cycles,
        works.lookups * sectors / cache,
        (works.lookups - _hits(works, sectors, gpu.cache)) * sectors / memory,
        bags * values / memory,
    )
    state = STATE_ROWS[optimizer] * np.ceil(values / SECTOR) * SECTOR + SECTOR * (optimizer == "rowwise_adagrad")
    backward = (
        works.lookups / gpu.cycles,
        works.lookups * values / cache + bags * values / memory,
        2 * works.distinct * (sectors + state) / memory,
    )
    return np.stack(forward, axis=1), np.stack(backward, axis=1)


def _hits(works: WorkArrays, sectors: Floats, cache: float) -> Floats:
    """`(n,)` lookups that hit the cache: all but the first of each cached row."""
    fits = kept(works, sectors, _HOLDS * cache)
    hits: Floats = (fits * np.maximum(works.reuse_lookups - works.reuse_rows, 0.0)).sum(axis=1)
    return hits
