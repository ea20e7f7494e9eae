"""Which shards of a device run as one fused kernel call, and so share its fixed cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardwright.sharding.work import ShardWork
from shardwright.task.table import Dtype


class Call(NamedTuple):
    """What all shards of one fused call have in common.

    A fused call has one number of samples, one weight type, and sums the bags of all its tables or of none. Without sums all
    tables must have one dim as well (FBGEMM: "Mixed dimension tables only supported for pooling tables").

    Attributes:
        samples: bags of each table.
        pooled: whether the rows of a bag are summed.
        dtype: type of the weights.
        dim: columns of each table where rows are not summed, else 0: any.
    """

    samples: int
    pooled: bool
    dtype: Dtype
    dim: int


def call_of(work: ShardWork) -> Call:
    """The call that serves a shard."""
    return Call(work.samples, work.pooled, work.dtype, 0 if work.pooled else work.dim)


def numbered_calls(works: Iterable[ShardWork]) -> list[int]:
    """The number of each shard's call: 0 for that of the first shard, and one more for each call that is new."""
    known: dict[Call, int] = {}
    return [known.setdefault(call_of(work), len(known)) for work in works]
