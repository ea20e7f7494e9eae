"""Rows of a sample store for tests."""

from __future__ import annotations

from typing import Any


def row(sample: int, repeat: int = 0, **changes: Any) -> dict[str, Any]:
    """A measured sample of one to three shards."""
    shard = {
        "rows": 100,
        "dim": 8,
        "samples": 16,
        "lookups": 32.5,
        "pooled": True,
        "dtype": "fp32",
        "reuse_rows": [1.0] * 17,
        "reuse_lookups": [2.0] * 17,
    }
    return {
        "sample": sample,
        "repeat": repeat,
        "batch_size": 16,
        "optimizer": "sgd",
        "device_kind": "cpu",
        "forward_ms": 1.5,
        "backward_ms": 2.5,
        "runs": 12,
        "sentinel": 1.0,
        "measured_at": 1_700_000_000_000,
        "shards": [shard] * (1 + sample % 3),
        **changes,
    }
