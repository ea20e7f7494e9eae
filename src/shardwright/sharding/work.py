"""The lookup work of a shard on each of its devices in one step, as kernels and cost models see it.

Shards of a device that run as one fused kernel call share its fixed cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Floats
from shardwright.sharding.shard import Shard
from shardwright.task.access import AccessProfile, reuse_of_many
from shardwright.task.table import DTYPE_BYTES, Dtype, Table, row_bytes
from shardwright.task.task import Task

ID_BYTES, WEIGHT_BYTES, LENGTH_BYTES = 8, 4, 8
"""Bytes of a lookup's id and of its weight, and of a bag's length."""


@dataclass(frozen=True)
class ShardWork:
    """The lookup work of one shard on one device in one step.

    Attributes:
        rows: rows of the block.
        dim: columns of the block.
        samples: bags of a feature in the fused call: the batch, divided evenly among the replicas of the block.
        lookups: mean number of lookups in the block by all samples together.
        pooled: whether the rows of a sample are summed.
        access: how the lookups spread over the block's rows.
        dtype: type of the weights.
        row_share: rows of the block over those of the table, or of the tier, if the block's rows are drawn evenly from all of them; else 1.
            It tells a cost model how large the uncut table was, and does not change the work.
        feature_shares: share of the lookups by each feature that looks up in the table; each feature has its own bags and outputs.
        weighted: whether every lookup has a weight.
    """

    rows: int
    dim: int
    samples: int
    lookups: float
    pooled: bool
    access: AccessProfile
    dtype: Dtype = "fp32"
    row_share: float = field(default=1.0, compare=False)
    feature_shares: tuple[float, ...] = (1.0,)
    weighted: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the block's weights."""
        return self.rows * row_bytes(self.dtype, self.dim)

    @property
    def id_bytes(self) -> float:
        """Mean bytes of a step's ids with their weights, and of the lengths of bags whose rows are summed."""
        return (ID_BYTES + WEIGHT_BYTES * self.weighted) * self.lookups + LENGTH_BYTES * self.bags * self.pooled

    @property
    def pooling(self) -> float:
        """Mean lookups in the block per sample, by all features together."""
        return self.lookups / self.samples

    @property
    def bags(self) -> int:
        """Bags of all features together."""
        return self.samples * len(self.feature_shares)

    @property
    def outputs(self) -> float:
        """Mean rows of outputs: one for each bag if its rows are summed, else one for each lookup."""
        return self.bags if self.pooled else self.lookups


def shard_work(task: Task, shard: Shard) -> ShardWork:
    """Return the work of `shard` on each of its devices.

    Each of r replicas serves `batch_size / r` samples. A row block gets the lookups that fall on its rows. The access profile gives their
    share if the rows are consecutive by hotness. The share is proportional to the number of rows if they are dealt out of a tier, or are
    ids and hot ids lie scattered. If `Table.id_shares` gives the distribution of lookups over the ids, every block counts as the busiest of
    its size: TorchRec puts the first block of every table on the first rank, so busy blocks meet there, and a step waits for the busiest
    device.
    """
    table = task.table_by_name[shard.table]
    access, share, row_share = _block_access(table, shard)
    samples = max(1, -(-task.batch_size // len(shard.devices)))
    lookups = table.pooling * share * task.batch_size / len(shard.devices)
    return ShardWork(
        shard.row_count,
        shard.dim,
        samples,
        lookups,
        table.pooled,
        access,
        table.dtype,
        row_share,
        table.feature_shares,
        table.weighted,
    )


@dataclass
class ShardWorks:
    """The work of the shards of one task, computed once for equal blocks: a plan has many of them."""

    task: Task
    _known: dict[tuple[object, ...], ShardWork] = field(default_factory=dict, repr=False)

    def of(self, shard: Shard) -> ShardWork:
        """Return the shard's work, as `shard_work` does."""
        place = shard.rows if shard.row_order == "hotness" and shard.tier is None else None
        kind = (shard.table, shard.row_count, shard.dim, len(shard.devices), shard.tier, place)
        if kind not in self._known:
            self._known[kind] = shard_work(self.task, shard)
        return self._known[kind]


COLUMNS = 40
"""Numbers per shard that samples store and cost models read; see `columns_of`."""


def columns_of(works: Sequence[ShardWork]) -> Floats:
    """`(n, 40)` features of n shards: rows, dim, samples, lookups, pooled, bytes of a weight, 17 reuse bins of rows and 17 of lookups."""
    known: dict[tuple[AccessProfile, float], int] = {}  # column blocks of a table share their reuse
    owner = [known.setdefault((work.access, work.lookups), len(known)) for work in works]
    reuse = np.concatenate(reuse_of_many([access for access, _ in known], [each for _, each in known]), axis=1)
    plain = [(w.rows, w.dim, w.samples, w.lookups, w.pooled, DTYPE_BYTES[w.dtype]) for w in works]
    return np.hstack([np.array(plain, dtype=np.float64).reshape(-1, 6), reuse[owner]])


def _block_access(table: Table, shard: Shard) -> tuple[AccessProfile, float, float]:
    """Access profile of the block's rows, its share of the table's lookups, and its `row_share`."""
    if shard.row_count == table.rows:
        return table.access, 1.0, 1.0
    if shard.row_order == "id":
        part = shard.row_count / table.rows
        return table.access.thinned(shard.row_count), table.share_of_block(shard.row_count), part
    if shard.tier is None:
        return table.access.block(*shard.rows), table.access.share_of(*shard.rows), 1.0
    start, stop = shard.tier
    part = shard.row_count / (stop - start)
    return table.access.block(start, stop).thinned(shard.row_count), table.access.share_of(start, stop) * part, part


class Call(NamedTuple):
    """The properties that all shards of one fused call share.

    A fused call has one number of samples and one weight type. It sums the bags of all its tables or of none; without sums, all its tables
    must have one dim (FBGEMM: "Mixed dimension tables only supported for pooling tables").

    Attributes:
        samples: bags of each feature.
        pooled: whether the rows of a bag are summed.
        dtype: type of the weights.
        dim: columns of each table if rows are not summed; else 0, which stands for any.
    """

    samples: int
    pooled: bool
    dtype: Dtype
    dim: int


def call_of(work: ShardWork) -> Call:
    """The call that serves a shard."""
    return Call(work.samples, work.pooled, work.dtype, 0 if work.pooled else work.dim)


def numbered_calls(works: Iterable[ShardWork]) -> list[int]:
    """Number the fused calls from 0 in order of first occurrence; returns the number of each shard's call."""
    known: dict[Call, int] = {}
    return [known.setdefault(call_of(work), len(known)) for work in works]
