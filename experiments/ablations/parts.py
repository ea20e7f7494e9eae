"""Parts of `ablations`, how much of each is run, and what plans are told apart by."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

SEARCH, SAMPLES, TRAINED, MEASURED = "search", "samples", "trained", "measured"
"""Parts: searches without a part of theirs; collecting samples, training on them, and measuring plans found under either head."""
BUNDLED = "bundled"
"""In place of a head: the bundled model of CPU kernels."""
DEVICES, MAX_DIMS = (4, 8), (32, 128)
BATCH_SIZE, SEED = 1024, 2026
MEASURED_SEED = 11


@dataclass(frozen=True)
class Extent:
    """How much is run.

    Attributes:
        tasks: of each setting.
        time_limit: seconds a search.
        samples: that the heads learn from.
        chunks: pieces of work that collect them.
        chunk_s: seconds that a chunk may take; what is missing then stays missing.
        seeds: trainings of each head.
        measured: tasks of each setting whose plans are measured.
        rounds: of measuring.
    """

    tasks: int
    time_limit: float
    samples: int
    chunks: int
    chunk_s: float
    seeds: int
    measured: int
    rounds: int


FULL_RUN = Extent(tasks=40, time_limit=10.0, samples=3000, chunks=6, chunk_s=240.0, seeds=3, measured=3, rounds=3)
QUICK_RUN = Extent(tasks=2, time_limit=10.0, samples=150, chunks=2, chunk_s=25.0, seeds=1, measured=1, rounds=2)


def digest_of(plan: Plan) -> str:
    """The same for the same shards."""
    lines = sorted(f"{shard.table} {shard.rows} {shard.columns} {shard.devices}" for shard in plan.shards)
    return sha256("\n".join(lines).encode()).hexdigest()[:8]
