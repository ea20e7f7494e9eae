"""Random collectives to measure: the exchanges of devices with random sets of tables, and plain collectives of random sizes.

The all-to-all samples are NeuroShard's (Zha et al., MLSys 2023, section 3.2). A greedy of random quality places a random set of tables,
each with any dim, which gives the dim sums of the devices; every device starts with a random delay. The other kinds have sizes spread
evenly over the decades.

A collective puts the following bytes on the links of each device, inside its host and between hosts. There are D devices on h hosts of p
devices, and a whole buffer has N bytes:

- all-to-all: device d holds dim_d columns of all B samples, and sends every other device those of its B / D samples; 4 bytes per value.
- all-gather (from N / D bytes per device to N) and reduce-scatter (the reverse): hierarchical, (p - 1) / p N inside the host and
  (h - 1) / h N / p between hosts; with one host, (D - 1) / D N.
- all-reduce of N bytes: a reduce-scatter and then an all-gather, so twice that.

The last three are the volumes of the usual ring algorithms (Thakur et al., 2005, "Optimization of Collective Communication Operations in
MPICH"), whatever the library does internally: a time is always compared with the bytes that have to travel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput
from shardwright.measure.sampling import DIMS, USUAL_TABLES
from shardwright.task.table import Table

VALUE_BYTES = 4
"""Bytes of an fp32 value; embeddings and their gradients travel as fp32."""


@dataclass(frozen=True)
class Volumes:
    """Bytes of one collective; for all-to-all, of the forward pass (its backward pass sends what the forward pass received).

    Attributes:
        buffer: `(devices,)` bytes of the device's own input buffer.
        sent: `(2, devices)` bytes sent inside the host, and between hosts; bytes that stay on the device do not count.
        received: `(2, devices)` bytes received inside the host, and between hosts.
    """

    buffer: Ints
    sent: Ints
    received: Ints


def samples_of(batch_size: int, devices: int) -> list[int]:
    """Number of samples of each device; the first devices get one more if the batch does not divide evenly."""
    share, rest = divmod(batch_size, devices)
    return [share + (device < rest) for device in range(devices)]


def all_to_all_volumes(batch_size: int, dims: Sequence[int], hosts: int) -> Volumes:
    """The volumes of the forward all-to-all of pooled embeddings.

    Args:
        batch_size: samples over all devices.
        dims: `(devices,)` dim sums.
        hosts: number of hosts; each holds the same number of consecutive devices.
    """
    devices = len(dims)
    moved = VALUE_BYTES * np.outer(dims, samples_of(batch_size, devices)).astype(np.int64)  # from device, to device
    buffer = moved.sum(axis=1)
    np.fill_diagonal(moved, 0)
    host = np.arange(devices) // (devices // hosts)
    intra = np.where(host[:, None] == host[None, :], moved, 0)
    inter = moved - intra
    sent = np.stack([intra.sum(axis=1), inter.sum(axis=1)])
    received = np.stack([intra.sum(axis=0), inter.sum(axis=0)])
    return Volumes(buffer, sent, received)


def ring_volumes(elements: int, devices: int, hosts: int, *, gathers: bool, reduces: bool) -> Volumes:
    """The volumes of an all-gather, a reduce-scatter, or an all-reduce, which is both.

    Args:
        elements: number of values in the whole buffer.
        devices: number of devices.
        hosts: number of hosts, with the same number of devices each.
        gathers: whether every device ends with the whole buffer.
        reduces: whether every device starts with a whole buffer, and the buffers are added up.
    """
    whole, per_host = VALUE_BYTES * elements, devices // hosts
    passes = gathers + reduces
    intra = passes * whole * (per_host - 1) // per_host
    inter = passes * whole * (hosts - 1) // (hosts * per_host)
    links = np.repeat(np.array([[intra], [inter]], dtype=np.int64), devices, axis=1)
    buffer = np.full(devices, whole if reduces else whole // devices, dtype=np.int64)
    return Volumes(buffer, links, links.copy())


ALL_TO_ALL, REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE = "all_to_all", "reduce_scatter", "all_gather", "all_reduce"
KINDS = (ALL_TO_ALL, REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE)

_ALL_TO_ALL_SHARE = 4  # of this many consecutive samples, all but one are all-to-all if other kinds are wanted too
_MOST_NOISE = 2.0  # standard deviation of the logarithm of a table's cost in the worst greedy
_NO_DELAY_SHARE = 0.1
_MOST_DELAY = 4.0  # longest delay of a sample, as a multiple of the collective's nominal time
_SMALLEST_BYTES = 1024


@dataclass(frozen=True)
class CollectiveSample:
    """One collective to measure.

    Attributes:
        sample: number of the sample.
        kind: one of `KINDS`.
        batch_size: samples of the batch over all devices; 0 for kinds without a batch.
        dims: `(devices,)` dim sums; empty for kinds other than all-to-all.
        delays_ms: `(devices,)` start delays before the forward all-to-all, the earliest one 0; zeros for other kinds.
        elements: fp32 values in the whole buffer of the other kinds; 0 for all-to-all.
    """

    sample: int
    kind: str
    batch_size: int
    dims: tuple[int, ...]
    delays_ms: tuple[float, ...]
    elements: int = 0


@dataclass(frozen=True)
class CollectiveSpace:
    """All samples of a collection: sample i depends only on the seed and i.

    Attributes:
        pool: the tables to draw from.
        world: devices.
        seed: seed of the collection.
        batch_sizes: batch sizes to draw from.
        kinds: kinds to measure; three of four samples are all-to-all if there are other kinds.
        max_bytes: largest buffer of kinds other than all-to-all.
        nominal_bandwidth: bytes per second of the nominal time, which sets the scale of the start delays.
        nominal_latency_ms: latency of the nominal time.
    """

    pool: Sequence[Table]
    world: int
    seed: int = 0
    batch_sizes: Sequence[int] = (512, 1024, 2048, 4096)
    kinds: Sequence[str] = KINDS
    max_bytes: int = 64 * 2**20
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
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise InvalidInput(f"kinds: {list(self.kinds)} must be one or more of {', '.join(KINDS)}")
        if self.max_bytes < _SMALLEST_BYTES:
            raise InvalidInput(f"max_bytes is {self.max_bytes}, must be at least {_SMALLEST_BYTES}")

    def draw(self, sample: int) -> CollectiveSample:
        """The collective of a sample."""
        rng = np.random.default_rng([self.seed, sample])
        kind = self._kind(sample)
        if kind != ALL_TO_ALL:
            return CollectiveSample(sample, kind, 0, (), (0.0,) * self.world, self._draw_elements(rng))
        batch_size = int(rng.choice(self.batch_sizes))
        dims = self._draw_dims(rng)
        return CollectiveSample(sample, kind, batch_size, dims, self._draw_delays(batch_size, dims, rng))

    def _kind(self, sample: int) -> str:
        others = [kind for kind in KINDS if kind in self.kinds and kind != ALL_TO_ALL]
        if ALL_TO_ALL not in self.kinds:
            return others[sample % len(others)]
        turn, position = divmod(sample, _ALL_TO_ALL_SHARE)
        return others[turn % len(others)] if others and position == _ALL_TO_ALL_SHARE - 1 else ALL_TO_ALL

    def _draw_elements(self, rng: np.random.Generator) -> int:
        """Number of values in a whole buffer: spread evenly over the decades, and a multiple of the number of devices."""
        size = math.exp(rng.uniform(math.log(_SMALLEST_BYTES), math.log(self.max_bytes)))
        return max(1, round(size / VALUE_BYTES / self.world)) * self.world

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
