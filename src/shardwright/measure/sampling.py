"""Random sets of tables to measure, as one device might hold them, drawn from a pool of real tables.

As in NeuroShard, each table of the pool may come with any dim (4, 8, … 128), and most sets have 1 to 15 tables. A learned model must be
valid between and beyond the pool's tables. So rows, pooling factors and skew are jittered, some tables are scaled down or take the pooling
factor of another table, and some sets share one dim or an upper bound on it, as tasks do. The model must also be valid for the shards that
searches make. So a quarter of the sets has 16 to 60 shards, some shards are random row blocks, and in some sets part of the shards are
replicas, which see a part of the batch. A `Breadth` defines all these ranges.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools
from shardwright.errors import InvalidInput
from shardwright.measure.device_work import DeviceWork, Job
from shardwright.sharding.memory import optimizer_bytes
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from shardwright.task.table import DTYPE_BYTES, Table


@dataclass(frozen=True)
class Breadth:
    """Ranges and shares of sampled sets, in addition to a pool of tables.

    Attributes:
        batch_sizes: batch sizes; each sample draws one, so a size listed twice is drawn twice as often.
        optimizers: optimizers inside backward; each sample draws one.
        sequence_share: share of sets with sequences (tables that are not pooled); half of these sets hold only sequences.
        sequence_dim_share: share of the sets with sequences in which all sequences have one dim, and so one fused call.
        largest_dim: dims are 4, 8, … up to this one.
        fp16_share: share of sets with weights in half precision; in some of these sets only part of the tables have them.
        free_share: share of tables drawn from the full ranges (rows, pooling, skew) instead of the pool.
        holders: numbers of devices that share the batch of a replicated table.
        lookup_bytes: approximate limit on the bytes that the lookups of a set read; it bounds time and memory of a sample.
    """

    batch_sizes: tuple[int, ...] = (1024,)
    optimizers: tuple[str, ...] = ("rowwise_adagrad",)
    sequence_share: float = 0.0
    sequence_dim_share: float = 0.0
    largest_dim: int = 128
    fp16_share: float = 0.0
    free_share: float = 0.0
    holders: tuple[int, ...] = (2, 4, 8, 16)
    lookup_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if not self.batch_sizes or any(size < 1 for size in self.batch_sizes):
            raise InvalidInput(f"batch_sizes: {list(self.batch_sizes)} must be at least one size, each at least 1")
        if not 0 <= self.sequence_share <= 1:
            raise InvalidInput(f"sequence_share: {self.sequence_share} must be between 0 and 1")


BREADTHS: Mapping[str, Breadth] = {
    "usual": Breadth(),
    "wide": Breadth(
        batch_sizes=(8192, 16_384, 32_768, 65_536, 65_536),
        optimizers=("rowwise_adagrad", "rowwise_adagrad", "sgd"),
        sequence_share=0.2,
        sequence_dim_share=0.7,
        largest_dim=256,
        fp16_share=0.35,
        free_share=0.3,
        holders=(2, 4, 8, 16, 32, 64),
        lookup_bytes=16e9,
    ),
}
"""The breadths by name: "usual" is the default for CPUs, "wide" for GPUs."""


DIMS = tuple(range(4, BREADTHS["usual"].largest_dim + 1, 4))
USUAL_TABLES = 15
MAX_TABLES = 60
MAX_ROWS = 10_000_000
MAX_POOLING = 200.0

_COMMON_DIM_SHARE, _BOUNDED_DIM_SHARE = 0.25, 0.25
_LARGE_SETS = 5  # large sets for every USUAL_TABLES sets with 1, 2, … tables
_SCALED_SHARE, _SMALLEST_SCALE = 0.25, 1e-3
_MIXED_SHARE = 0.15
_BLOCK_SHARE, _SMALLEST_BLOCK = 0.15, 1 / 16
_REPLICATED_SETS, _REPLICA_SHARE = 0.3, 0.5  # share of sets with replicas; share of replicas among their shards
_SMALLEST_PART = 8  # fewest samples of the batch that a replica sees
_PURE_SEQUENCES = 0.5  # share of sets with sequences that hold nothing else; in the others, half of the shards are
_PURE_FP16 = 0.8  # share of the sets with fp16 weights in which all tables have them
_FREE_ROWS, _FREE_POOLING, _FREE_SKEW = (1e2, 1e7), (0.5, MAX_POOLING), (0.0, 1.4)  # ranges of tables from no pool
_UNIFORM_SHARE = 0.15  # share of the free tables with uniform access
_SHORTEST_READ, _ID_BYTES = 64, 64  # fewest bytes per looked-up row; bytes per lookup of ids and of sorting in backward
_OUTPUT_BYTES = 4  # FBGEMM returns fp32 for all types of weights
_ROW_JITTER, _POOLING_JITTER, _SKEW_JITTER = 0.5, 0.3, 0.05  # standard deviations: of logarithms, and of the exponent
_PAGE = 4096


@dataclass(frozen=True)
class SampleSpace:
    """All samples of a collection: sample i depends only on the seed and i.

    Attributes:
        pool: the tables to draw from.
        seed: seed of the collection.
        room_bytes: room for weights and optimizer state of a set; the largest tables are cut to fewer rows until the set fits.
        breadth: ranges and shares of the draws.
    """

    pool: Sequence[Table]
    seed: int = 0
    room_bytes: int = 4_000_000_000
    breadth: Breadth = BREADTHS["usual"]

    def __post_init__(self) -> None:
        if not self.pool:
            raise InvalidInput("pool: is empty; give at least one table to draw from")
        if self.room_bytes < 2**20:
            raise InvalidInput(f"room_bytes: {self.room_bytes} must be at least 1 MiB")

    def draw(self, sample: int) -> Job:
        """The set of tables of a sample, as one device might hold them."""
        rng = np.random.default_rng([self.seed, sample])
        count, wide = _table_count(self.seed, sample), self.breadth
        optimizer = str(rng.choice(wide.optimizers)) if len(wide.optimizers) > 1 else wide.optimizers[0]
        batch_size = int(rng.choice(wide.batch_sizes))
        tables = [self._draw_table(dim, rng) for dim in _draw_dims(count, wide.largest_dim, rng)]
        if _hits(rng, wide.fp16_share):
            tables = _as_fp16(tables, rng)
        tables = _cut_to_fit(tables, optimizer, self.room_bytes)
        works = [_draw_work(table, batch_size, rng) for table in tables]
        if rng.random() < _REPLICATED_SETS:
            holders = int(rng.choice(wide.holders))
            works = [_as_replica(work, holders) if rng.random() < _REPLICA_SHARE else work for work in works]
        if rng.random() < wide.sequence_share:
            share = 1.0 if rng.random() < _PURE_SEQUENCES else 0.5
            chosen = rng.random(count) < share
            if _hits(rng, wide.sequence_dim_share):
                works = _with_one_dim(works, chosen, self.room_bytes, rng)
            works = _as_sequences(works, chosen, self.room_bytes // 16)
        works = _with_fewer_lookups(works, wide.lookup_bytes)
        seeds = tuple(int(seed) for seed in rng.integers(2**62, size=count))
        return Job(DeviceWork(tuple(works), seeds, optimizer), batch_size=batch_size)

    def _draw_table(self, dim: int, rng: np.random.Generator) -> Table:
        """A jittered table of the pool with `dim` columns; some tables are scaled down, and some take another table's pooling factor."""
        if _hits(rng, self.breadth.free_share):
            return _draw_free_table(dim, rng)
        table, other = (self.pool[int(index)] for index in rng.integers(len(self.pool), size=2))
        scale = math.exp(rng.uniform(math.log(_SMALLEST_SCALE), 0)) if rng.random() < _SCALED_SHARE else 1.0
        rows = int(np.clip(table.rows * scale * rng.lognormal(0, _ROW_JITTER), 1, MAX_ROWS))
        pooling = (other if rng.random() < _MIXED_SHARE else table).pooling
        pooling = float(min(pooling * rng.lognormal(0, _POOLING_JITTER), MAX_POOLING))
        exponent = table.access.exponent
        if exponent is not None and exponent > 0:
            exponent = max(0.0, exponent + _SKEW_JITTER * rng.standard_normal())
        access = AccessProfile.zipf(rows, exponent) if exponent is not None else table.access.thinned(rows)
        return replace(table, rows=rows, dim=dim, pooling=pooling, access=access)


def _table_count(seed: int, sample: int) -> int:
    """Number of tables of a sample: every 20 samples have each count from 1 to 15 once and five from 16 to 60, in random order."""
    block, position = divmod(sample, USUAL_TABLES + _LARGE_SETS)
    rng = np.random.default_rng([seed, block, USUAL_TABLES])
    large = np.exp(rng.uniform(math.log(USUAL_TABLES + 1), math.log(MAX_TABLES + 1), _LARGE_SETS)).astype(int)
    return int(rng.permutation([*range(1, USUAL_TABLES + 1), *large])[position])


def _hits(rng: np.random.Generator, share: float) -> bool:
    """Whether a random draw falls into a share. A share of 0 uses no random number, so that samples of older stores stay the same."""
    return share > 0 and bool(rng.random() < share)


def _draw_free_table(dim: int, rng: np.random.Generator) -> Table:
    """A table from no pool: rows and pooling factor are drawn on a logarithmic scale, and access from uniform to strongly skewed."""
    rows, pooling = (math.exp(rng.uniform(*np.log(ends))) for ends in (_FREE_ROWS, _FREE_POOLING))
    exponent = 0.0 if rng.random() < _UNIFORM_SHARE else rng.uniform(*_FREE_SKEW)
    return Table("free", round(rows), dim, pooling, access=AccessProfile.zipf(round(rows), float(exponent)))


def _draw_dims(count: int, largest: int, rng: np.random.Generator) -> list[int]:
    """Dims of a set: all equal, or bounded by a random power of two, or any."""
    dims = range(4, largest + 1, 4)
    kind = rng.random()
    if kind < _COMMON_DIM_SHARE:
        return [int(rng.choice(dims))] * count
    bounded = kind < _COMMON_DIM_SHARE + _BOUNDED_DIM_SHARE
    bound = 2 ** int(rng.integers(2, math.floor(math.log2(largest)) + 1)) if bounded else largest
    return [int(dim) for dim in rng.choice([dim for dim in dims if dim <= bound], count)]


def _as_fp16(tables: Sequence[Table], rng: np.random.Generator) -> list[Table]:
    """The tables with fp16 weights: all of them or a random part."""
    pure = rng.random() < _PURE_FP16
    return [replace(table, dtype="fp16") if pure or rng.random() < 0.5 else table for table in tables]


def _draw_work(table: Table, batch_size: int, rng: np.random.Generator) -> ShardWork:
    """The work of a table, or of a random row block with rows and lookups reduced alike."""
    share = float(np.exp(rng.uniform(math.log(_SMALLEST_BLOCK), 0))) if rng.random() < _BLOCK_SHARE else 1.0
    rows = max(1, round(table.rows * share))
    share = rows / table.rows
    lookups = table.pooling * share * batch_size
    shares, access = table.feature_shares, table.access.thinned(rows)
    return ShardWork(rows, table.dim, batch_size, lookups, table.pooled, access, table.dtype, feature_shares=shares)


def _as_sequences(works: Sequence[ShardWork], chosen: Bools, room_bytes: int) -> list[ShardWork]:
    """The shards; chosen ones become sequences until their outputs fill the room."""
    returned = np.array([work.lookups * work.dim * _OUTPUT_BYTES for work in works])
    fits = np.cumsum(np.where(chosen, returned, 0)) <= room_bytes
    return [
        replace(work, pooled=work.pooled and not sequence) for work, sequence in zip(works, chosen & fits, strict=True)
    ]


def _with_one_dim(
    works: Sequence[ShardWork], chosen: Bools, room_bytes: int, rng: np.random.Generator
) -> list[ShardWork]:
    """The shards; chosen ones get the dim of a random chosen one, else the smallest dim if the weights would not fit."""
    dims = [work.dim for work, sequence in zip(works, chosen, strict=True) if sequence]
    for dim in (int(rng.choice(dims)), min(dims)) if dims else ():
        alike = [replace(work, dim=dim) if sequence else work for work, sequence in zip(works, chosen, strict=True)]
        if sum(work.weight_bytes + 8 * work.rows for work in alike) <= room_bytes:
            return alike
    return list(works)


def _as_replica(work: ShardWork, holders: int) -> ShardWork:
    """The shard as one of several replicas, each of which sees a part of the batch."""
    samples = max(min(work.samples, _SMALLEST_PART), work.samples // holders)
    return replace(work, samples=samples, lookups=work.lookups * samples / work.samples)


def _with_fewer_lookups(works: Sequence[ShardWork], most_bytes: float) -> list[ShardWork]:
    """The shards; those that read most get fewer lookups, so that all lookups together read at most `most_bytes`."""
    read = [work.lookups * (max(work.dim * DTYPE_BYTES[work.dtype], _SHORTEST_READ) + _ID_BYTES) for work in works]
    limit = _even_limit(read, most_bytes)
    return [
        work if size <= limit else replace(work, lookups=work.lookups * limit / size)
        for work, size in zip(works, read, strict=True)
    ]


def _cut_to_fit(tables: Sequence[Table], optimizer: str, room_bytes: int) -> list[Table]:
    """The tables; the largest are cut to fewer rows, so that weights and optimizer state fit."""
    sizes = [_bytes_of(table, optimizer) for table in tables]
    limit = _even_limit(sizes, room_bytes - 2 * _PAGE * len(tables))
    return [
        table if size <= limit else table.scaled_rows(math.floor(table.rows * limit / size) / table.rows)
        for table, size in zip(tables, sizes, strict=True)
    ]


def _even_limit(sizes: Sequence[float], room: float) -> float:
    """The limit to which larger sizes must be cut so that all fit; infinite if none must be cut."""
    # Smallest first: each size may take an even share of the room that the smaller ones leave.
    for position, size in enumerate(sorted(sizes)):
        limit = room / (len(sizes) - position)
        if size > limit:
            return limit
        room -= size
    return math.inf


def _bytes_of(table: Table, optimizer: str) -> int:
    """Bytes of weights and optimizer state."""
    return table.rows * table.dim * DTYPE_BYTES[table.dtype] + optimizer_bytes(optimizer, table.rows, table.dim)


def pool_digest(pool: Sequence[Table]) -> str:
    """A digest of a pool's tables."""
    digest = hashlib.sha256()
    for table in pool:
        digest.update(f"{table.name} {table.rows} {table.pooling} {table.pooled} {table.dtype}\n".encode())
        digest.update(table.access.rows.tobytes() + table.access.share.tobytes())
    return digest.hexdigest()[:16]
