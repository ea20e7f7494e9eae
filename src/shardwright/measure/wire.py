"""Shard works as JSON, for the worker process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

Json: TypeAlias = dict[str, Any]


def encode_work(work: ShardWork) -> Json:
    """A work as plain JSON values; the access profile in full, point by point."""
    return {
        "rows": work.rows,
        "dim": work.dim,
        "samples": work.samples,
        "lookups": work.lookups,
        "pooled": work.pooled,
        "dtype": work.dtype,
        "access": [work.access.rows.tolist(), work.access.share.tolist()],
    }


def decode_work(values: Mapping[str, Any]) -> ShardWork:
    """The inverse of `encode_work`."""
    rows, share = values["access"]
    plain = {key: values[key] for key in ("rows", "dim", "samples", "lookups", "pooled", "dtype")}
    return ShardWork(**plain, access=AccessProfile(np.array(rows), np.array(share)))
