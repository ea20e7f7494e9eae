"""The features of a shard that cost models see.

The papers describe a table by 21 numbers: rows, dim, pooling factor, size, and the shares of its distinct rows in 17 reuse bins. These
features contain the same numbers, as logarithms if they span decades. They add the sizes that determine the time of kernels: lookups,
distinct rows, cache lines touched, alignment.

The features of a row block are those of the table that it was cut from; only the sizes (`scales`) are those of the block. A model thus
prices a block as its share of the table, plus the fixed parts of every block, such as its outputs. It never predicts that cutting saves
work, an error that a search would exploit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.sharding.work import ShardWork, columns_of
from shardwright.task.table import SCALE_BYTES

BINS = 17
_LINE = 64  # bytes of a cache line on a CPU, or of two sectors on a GPU
LOG_FEATURES = (
    "rows", "dim", "samples", "lookups", "pooling", "weight_bytes",
    "distinct_rows", "lines_looked_up", "lines_distinct", "lines_of_row", "outputs",
)  # fmt: skip
FEATURES = (
    *(f"log_{name}" for name in LOG_FEATURES),
    *(f"row_share_{i}" for i in range(BINS)),
    *(f"lookup_share_{i}" for i in range(BINS)),
    "aligned",
    "pooled",
    "fp16",
)
SCALES = (
    "shard",
    "samples",
    "outputs",
    "lookups",
    "looked_up",
    "distinct",
    "distinct_dim",
    "lines_looked_up",
    "lines_distinct",
)


CACHES = ("l2", "last_level")
WIDTHS = (32, 64, 128)
"""Columns up to which a GPU's kernels work alike: a warp has 32 threads, and each holds up to four columns."""
_PART_UNITS = {
    "shard": 1e-2,
    "bags": 1e-7,
    "outputs": 1e-9,
    "lookups": 1e-7,
    "bytes": 1e-9,
    "missed_first": 1e-7,
    "missed_first_bytes": 1e-9,
    "missed_near": 1e-7,
    "missed_near_bytes": 1e-9,
    "missed_bytes": 1e-9,
    "distinct": 1e-7,
    "distinct_bytes": 1e-9,
    "long_runs": 1e-5,
    "long_runs_dim": 1e-7,
    "long_run_lookups": 1e-7,
    "gradients": 1e-9,
}
_PART_NAMES = tuple(_PART_UNITS)
PARTS = (
    *(f"{kind}_{name}" for kind in ("pooled", "sequence") for name in _PART_NAMES),
    "narrow_sequence_lookups",
    "narrow_sequence_bags",
)
"""Sizes that the time of FBGEMM's kernels on a GPU grows with; see `parts`."""
_FIRST_CACHE = 2e5  # bytes of a multiprocessor's own cache
_LONG_RUN_BIN = 6  # rows looked up more than 32 times a batch
_VALUE = 4  # bytes of a gradient


@dataclass(frozen=True)
class WorkArrays:
    """The work of n shards as arrays.

    Attributes:
        rows: `(n,)` rows.
        dim: `(n,)` columns.
        samples: `(n,)` samples in a batch, which are the bags of a feature.
        lookups: `(n,)` looked-up rows in a batch.
        pooled: `(n,)` 1 if the rows of a sample are summed, else 0.
        weight_size: `(n,)` bytes of one weight.
        reuse_rows: `(n, 17)` expected distinct rows by reuse bin.
        reuse_lookups: `(n, 17)` expected lookups by reuse bin.
        row_share: `(n,)` share of the rows of the table that each block was cut from; see `ShardWork`. 1 for measured samples, which do not
            record it.
        features: `(n,)` features that look up in the table.
    """

    rows: Floats
    dim: Floats
    samples: Floats
    lookups: Floats
    pooled: Floats
    weight_size: Floats
    reuse_rows: Floats
    reuse_lookups: Floats
    row_share: Floats
    features: Floats

    @classmethod
    def of(cls, works: Sequence[ShardWork]) -> WorkArrays:
        """The work of a list of shards as arrays."""
        columns = columns_of(works)
        rows, dim, samples, lookups, pooled, weight_size = columns[:, :6].T
        reuse_rows, reuse_lookups = columns[:, 6 : 6 + BINS], columns[:, 6 + BINS :]
        row_share = np.array([work.row_share for work in works], dtype=np.float64)
        shared_by = np.array([len(work.feature_shares) for work in works], dtype=np.float64)
        return cls(rows, dim, samples, lookups, pooled, weight_size, reuse_rows, reuse_lookups, row_share, shared_by)

    @property
    def uncut(self) -> WorkArrays:
        """The work of the tables, or tiers, whose rows the blocks were cut from."""
        grown = ("rows", "lookups", "reuse_rows", "reuse_lookups", "row_share")
        return replace(self, **{name: (getattr(self, name).T / self.row_share).T for name in grown})

    @property
    def row_bytes(self) -> Floats:
        """`(n,)` bytes of a row of weights, with scale and bias if a weight has one byte."""
        bytes_: Floats = self.dim * self.weight_size + SCALE_BYTES * (self.weight_size == 1)
        return bytes_

    @property
    def lines(self) -> Floats:
        """`(n,)` mean number of cache lines that a row touches; rows lie end to end, so rows of odd sizes straddle lines."""
        row = self.row_bytes.astype(np.int64)
        touched: Floats = (row + _LINE - np.gcd(row, _LINE)) / _LINE
        return touched

    @property
    def distinct_bytes(self) -> Floats:
        """`(n,)` bytes of the cache lines that a batch touches."""
        bytes_: Floats = self.distinct * self.lines * _LINE
        return bytes_

    @property
    def calls(self) -> Floats:
        """`(n, 4)` keys of the fused calls: shards with equal keys share a call; see `sharding.work`."""
        return np.stack([self.samples, self.pooled, self.weight_size, np.where(self.pooled > 0, 0.0, self.dim)], axis=1)

    @property
    def bags(self) -> Floats:
        """`(n,)` bags of all features together."""
        return self.samples * self.features

    @property
    def outputs(self) -> Floats:
        """`(n,)` rows of outputs: one for each bag if its rows are summed, else one for each lookup."""
        return np.where(self.pooled > 0, self.bags, self.lookups)

    @property
    def distinct(self) -> Floats:
        """`(n,)` expected distinct rows in a batch."""
        distinct: Floats = self.reuse_rows.sum(axis=1)
        return distinct


def features(works: WorkArrays) -> Floats:
    """`(n, len(FEATURES))` inputs of the encoder, before standardisation: those of the tables that row blocks were cut from."""
    works = works.uncut
    distinct = works.distinct
    logs = np.stack(
        [
            works.rows,
            works.dim,
            works.bags,
            works.lookups,
            works.lookups / works.bags,
            works.rows * works.row_bytes,
            distinct,
            works.lookups * works.lines,
            distinct * works.lines,
            works.lines,
            works.outputs * works.dim,
        ],
        axis=1,
    )
    return np.hstack(
        [
            np.log(logs + 1e-3),
            works.reuse_rows / np.maximum(distinct, 1e-9)[:, None],
            works.reuse_lookups / np.maximum(works.reuse_lookups.sum(axis=1), 1e-9)[:, None],
            (np.gcd(works.row_bytes.astype(np.int64), _LINE) / _LINE)[:, None],
            works.pooled[:, None],
            (works.weight_size <= 2)[:, None],  # int8 counts as fp16, since no samples of int8 exist
        ]
    )


def scales(works: WorkArrays) -> Floats:
    """`(n, len(SCALES))` sizes that a shard's time grows with; the first estimate of the time is a non-negative mix of them."""
    return np.stack(
        [
            np.ones_like(works.rows),
            works.bags,
            works.outputs * works.dim,
            works.lookups,
            works.lookups * works.dim,
            works.distinct,
            works.distinct * works.dim,
            works.lookups * works.lines,
            works.distinct * works.lines,
        ],
        axis=1,
    )


def cached(works: WorkArrays, caches: Floats) -> Floats:
    """`(n, len(CACHES))` bytes of a batch's distinct rows, in units of each cache's bytes."""
    return works.distinct_bytes[:, None] / caches


def wider(works: WorkArrays) -> Bools:
    """`(n, len(WIDTHS))` whether a shard is wider than each width."""
    is_wider: Bools = works.dim[:, None] > WIDTHS
    return is_wider


def parts(works: WorkArrays, cache: float) -> Floats:
    """`(n, len(PARTS))` sizes that a GPU's time grows with, in units that take some 0.1 to 10 ms.

    Forward, one group of threads makes each bag, table by table, so every table has the caches to itself. Backward sorts the lookups of a
    call by row. A group of threads updates each row; a whole block of threads updates a row with a *long run* of 32 lookups or more, even
    if rows are short. Gradients are read from the cache as far as a table's gradients fit into it. Sequences of up to 32 columns have a
    separate kernel.

    Args:
        works: n shards.
        cache: bytes of the cache that all multiprocessors share; each half of the multiprocessors is nearer to one half of the cache.
    """
    table = works.uncut
    first, near, far = (_missed(table, size) * works.row_share for size in (_FIRST_CACHE, cache / 2, cache))
    runs, of_runs = (each[:, _LONG_RUN_BIN:].sum(axis=1) for each in (works.reuse_rows, works.reuse_lookups))
    beyond = np.minimum(1.0, table.outputs * works.dim * _VALUE / (cache / 2))
    row = works.row_bytes
    columns = (
        np.ones_like(works.rows),
        works.bags,
        works.outputs * works.dim,
        works.lookups,
        works.lookups * row,
        first,
        first * row,
        near,
        near * row,
        far * row,
        works.distinct,
        works.distinct * row,
        runs,
        runs * works.dim,
        of_runs,
        beyond * works.lookups * works.dim,
    )
    sizes = np.stack(columns, axis=1) * np.array(list(_PART_UNITS.values()))
    pooled = works.pooled[:, None] > 0
    of_sequences = np.where(pooled, 0.0, sizes)
    counts = of_sequences[:, [_PART_NAMES.index("lookups"), _PART_NAMES.index("bags")]]
    return np.hstack([np.where(pooled, sizes, 0.0), of_sequences, counts * (works.dim <= WIDTHS[0])[:, None]])


def kept(works: WorkArrays, row_bytes: Floats, cache: float) -> Floats:
    """`(n, 17)` share of the rows of each reuse bin that a cache holds, filled with the rows looked up most often.

    Args:
        works: n shards.
        row_bytes: `(n,)` bytes that a row takes in the cache.
        cache: its bytes.
    """
    size = works.reuse_rows * row_bytes[:, None]
    hotter = np.cumsum(size[:, ::-1], axis=1)[:, ::-1] - size
    return np.clip((cache - hotter) / np.maximum(size, 1e-9), 0.0, 1.0)


def _missed(works: WorkArrays, cache: float) -> Floats:
    """`(n,)` lookups that miss a cache: the first lookup of each row, and all lookups of rows that do not fit."""
    fits = kept(works, works.lines * _LINE, cache)
    missed: Floats = (fits * works.reuse_rows + (1.0 - fits) * works.reuse_lookups).sum(axis=1)
    return missed
