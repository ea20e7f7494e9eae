"""What is collected, whoever measures it: the samples, and the room they need."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from shardwright.errors import InvalidInput
from shardwright.measure.hardware import device_memory
from shardwright.measure.sampling import Breadth, SampleSpace, breadth_named, pool_digest
from shardwright.task.table import Table
from shardwright.task.task import OPTIMIZERS

ARENA_BYTES = 4_000_000_000
_LARGEST_GPU_ARENA, _GPU_SHARE = 60 * 10**9, 0.45  # the rest is for ids, activations, gradients and what backward sorts
_SPACES = {"cpu": "usual", "cuda": "wide"}

_GPU_SECONDS = 1400.0


@dataclass(frozen=True)
class Collection:
    """A collection of kernel samples; sample i follows from the seed and i alone.

    Attributes:
        samples: how many samples a store is to hold in the end.
        seed: seed of the sets of tables.
        space: "usual" or "wide" (see `shardwright.measure.sampling.BREADTHS`); by default "wide" on a GPU.
        batch_sizes: each sample draws one of these; by default those of the space.
        device: "cpu" or "cuda".
        optimizer: optimizer inside backward; by default those of the space, of which each sample draws one.
        pool: tables to draw from; by default the "dlrm-2021" pool.
        sequence_share: share of sets whose tables are not pooled; by default that of the space.
        arena_bytes: room for the weights and optimizer state of a set; by default 4 GB, on a GPU 45% of its memory up to 60 GB.

    Raises:
        InvalidInput: an option breaks a rule.
    """

    samples: int
    seed: int = 0
    space: str | None = None
    batch_sizes: Sequence[int] | None = None
    device: str = "cpu"
    optimizer: str | None = None
    pool: Sequence[Table] | None = None
    sequence_share: float | None = None
    arena_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInput(f"samples is {self.samples}, must be at least 1")
        if self.seed < 0:
            raise InvalidInput(f"seed is {self.seed}, must not be negative")
        if self.device not in _SPACES:
            raise InvalidInput(f"device is {self.device!r}, must be 'cpu' or 'cuda'")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise InvalidInput(f"optimizer is {self.optimizer!r}, must be one of {', '.join(OPTIMIZERS)}")

    def arena(self, memory: Callable[[], int] = device_memory) -> int:
        """Room for the tables of a sample, in bytes; where none is given, on one kind of GPU always the same.

        Args:
            memory: says how many bytes of memory the GPU has; called only where that matters.
        """
        if self.arena_bytes:
            return self.arena_bytes
        if self.device == "cpu":
            return ARENA_BYTES
        return min(_LARGEST_GPU_ARENA, int(_GPU_SHARE * memory()) // 10**9 * 10**9)

    def sets(self, arena_bytes: int) -> SampleSpace:
        """The samples, which all fit an arena of this size.

        Raises:
            InvalidInput: an option breaks a rule.
        """
        pool, breadth = self.pool, self._breadth(arena_bytes)
        if pool is None:
            from shardwright.workload.pools import table_pool

            pool = table_pool("dlrm-2021")
        room, first = arena_bytes - arena_bytes // 100, breadth.optimizers[0]
        return SampleSpace(tuple(pool), self.seed, breadth.batch_sizes, first, room, breadth.sequence_share, breadth)

    def _breadth(self, arena_bytes: int) -> Breadth:
        """The named breadth, with what was asked for in place of its own; smaller devices get smaller batches too."""
        named = breadth_named(self.space or _SPACES[self.device])
        bounded = min(named.lookup_bytes, arena_bytes / 3)
        return replace(
            named,
            batch_sizes=named.batch_sizes if self.batch_sizes is None else tuple(self.batch_sizes),
            optimizers=named.optimizers if self.optimizer is None else (self.optimizer,),
            sequence_share=named.sequence_share if self.sequence_share is None else self.sequence_share,
            lookup_bytes=named.lookup_bytes if math.isinf(named.lookup_bytes) else bounded,
        )


def seconds_or_default(seconds: float | None, device: str) -> float | None:
    """Seconds after which a command stops that was told to stop after `seconds`, or told nothing; None for never.

    A GPU is paid for by time, so a command that was told nothing stops by itself there.

    Raises:
        InvalidInput: the time is no number above 0.
    """
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"--seconds is {seconds}, must be greater than 0; inf is no limit")
    return _GPU_SECONDS if seconds is None and device == "cuda" else seconds


def request_digest(space: SampleSpace, arena_bytes: int) -> str:
    """Tells collections apart: what the number of a set stands for."""
    asked = {
        "seed": space.seed,
        "batch_sizes": list(space.batch_sizes),
        "optimizer": space.optimizer,
        "sequence_share": space.sequence_share,
        "arena_bytes": arena_bytes,
        "pool": pool_digest(space.pool),
        **asdict(space.breadth),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
