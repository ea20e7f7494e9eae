"""Random all-to-alls to measure: the exchanges of devices with random sets of tables, to train NeuroShard's communication networks on.

The samples are NeuroShard's (Zha et al., MLSys 2023, section 3.2). A greedy of random quality places a random set of tables, each with any
dim, which gives the dim sums of the devices; every device starts with a random delay. Device d holds dim_d columns of all B samples, and
sends every other device those of its B / D samples; 4 bytes per value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.measure.sampling import DIMS, USUAL_TABLES
from shardwright.task.table import Table

VALUE_BYTES = 4
"""Bytes of an fp32 value; embeddings and their gradients travel as fp32."""


def samples_of(batch_size: int, devices: int) -> list[int]:
    """Number of samples of each device; the first devices get one more if the batch does not divide evenly."""
    share, rest = divmod(batch_size, devices)
    return [share + (device < rest) for device in range(devices)]


_MOST_NOISE = 2.0  # standard deviation of the logarithm of a table's cost in the worst greedy
_NO_DELAY_SHARE = 0.1
_MOST_DELAY = 4.0  # longest delay of a sample, as a multiple of the collective's nominal time


@dataclass(frozen=True)
class CollectiveSample:
    """One all-to-all to measure.

    Attributes:
        sample: number of the sample.
        batch_size: samples of the batch over all devices.
        dims: `(devices,)` dim sums.
        delays_ms: `(devices,)` start delays before the forward all-to-all, the earliest one 0.
    """

    sample: int
    batch_size: int
    dims: tuple[int, ...]
    delays_ms: tuple[float, ...]


@dataclass(frozen=True)
class CollectiveSpace:
    """All samples of a collection: sample i depends only on the seed and i.

    Attributes:
        pool: the tables to draw from.
        world: devices.
        seed: seed of the collection.
        batch_sizes: batch sizes to draw from.
        nominal_bandwidth: bytes per second of the nominal time, which sets the scale of the start delays.
        nominal_latency_ms: latency of the nominal time.
    """

    pool: Sequence[Table]
    world: int
    seed: int = 0
    batch_sizes: Sequence[int] = (512, 1024, 2048, 4096)
    nominal_bandwidth: float = 1e9
    nominal_latency_ms: float = 0.5

    def __post_init__(self) -> None:
        if not self.pool:
            raise InvalidInput("pool: is empty; give at least one table to draw from")
        if self.world < 2:
            raise InvalidInput(f"world is {self.world}, must be at least 2: collectives take place between devices")
        if self.seed < 0:
            raise InvalidInput(f"seed is {self.seed}, must not be negative")
        if not self.batch_sizes or any(size < self.world for size in self.batch_sizes):
            raise InvalidInput(
                f"batch_sizes is {list(self.batch_sizes)}, must not be empty, with each size at least {self.world}, the number of devices"
            )

    def draw(self, sample: int) -> CollectiveSample:
        """The collective of a sample."""
        rng = np.random.default_rng([self.seed, sample])
        batch_size = int(rng.choice(self.batch_sizes))
        dims = self._draw_dims(rng)
        return CollectiveSample(sample, batch_size, dims, self._draw_delays(batch_size, dims, rng))

    def _draw_dims(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Dim sums of the devices after a greedy of random quality.

        The greedy places tables by a cost dim x pooling^u x noise, largest first, on the device with the lowest sum. With u = 0 and no
        noise it evens out the dims, as a plan that considers communication does. With u = 1 it is the heuristic `lookup`. Noise makes it
        worse, up to a random placement.
        """
        count = int(rng.integers(self.world, USUAL_TABLES * self.world + 1))
        bound = 2 ** int(rng.integers(2, 8))
        table_dims = rng.choice([dim for dim in DIMS if dim <= bound], count)
        pooling = np.array([self.pool[index].pooling for index in rng.integers(len(self.pool), size=count)])
        noise = np.exp(rng.uniform(0, _MOST_NOISE) * rng.standard_normal(count))
        costs = table_dims * pooling ** rng.uniform() * noise
        sums, dims = np.zeros(self.world), np.zeros(self.world, dtype=np.int64)
        for table in np.argsort(-costs, kind="stable"):
            device = int(sums.argmin())
            sums[device] += costs[table]
            dims[device] += table_dims[table]
        return tuple(int(dim) for dim in rng.permutation(dims))

    def _draw_delays(self, batch_size: int, dims: Sequence[int], rng: np.random.Generator) -> tuple[float, ...]:
        """Start delays; all zero in some samples, so that those show the collective alone."""
        largest = max(samples_of(batch_size, self.world)) * sum(dims) * VALUE_BYTES
        nominal_ms = self.nominal_latency_ms + largest / self.nominal_bandwidth * 1e3
        longest = nominal_ms * rng.uniform(0, _MOST_DELAY)
        delays = longest * rng.uniform(size=self.world)
        if rng.random() < _NO_DELAY_SHARE:
            delays[:] = 0.0
        return tuple(float(delay) for delay in np.round(delays - delays.min(), 4))
