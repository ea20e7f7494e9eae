"""The parts of `ablations`, their extent, and their pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from math import ceil
from typing import TYPE_CHECKING

from experiments.ablations.variants import VARIANTS
from experiments.entrants import model_version
from experiments.experiment import Piece

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

SEARCH, SAMPLES, TRAINED, MEASURED = "search", "samples", "trained", "measured"
"""Parts: searches that lack one part; collecting samples; training on them; measuring plans found under either head."""
BUNDLED = "bundled"
"""Name of the bundled CPU model in the column of the head."""
DEVICES, MAX_DIMS = (4, 8), (32, 128)
BATCH_SIZE, SEED = 1024, 2026
MEASURED_SEED = 11


@dataclass(frozen=True)
class Extent:
    """The extent of a run.

    Attributes:
        tasks: number of tasks of each setting.
        time_limit: seconds per search.
        samples: number of samples that the heads learn from.
        chunks: number of pieces of work that collect the samples.
        chunk_s: seconds that a chunk may take; samples still missing are left to later chunks.
        seeds: number of trainings of each head.
        measured: number of tasks of each setting whose plans are measured.
        rounds: number of measuring rounds.
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
    """A digest of a plan's shards: equal shards give equal digests."""
    lines = sorted(f"{shard.table} {shard.rows} {shard.columns} {shard.devices}" for shard in plan.shards)
    return sha256("\n".join(lines).encode()).hexdigest()[:8]


_SLOW_SHARE = 0.2  # share of the tasks of four devices that slow variants plan
_PLANS = "2, score embedding"  # version of the variants: change it when their plans change


@dataclass(frozen=True)
class Pieces:
    """Makes the pieces of a run."""

    name: str
    extent: Extent

    def searches(self) -> Iterator[Piece]:
        """Pieces that search: task by task, all settings and variants."""
        version = f"{_PLANS}, {model_version('cpu')}, {self.extent.time_limit:g} s"
        for number, devices, max_dim in product(range(self.extent.tasks), DEVICES, MAX_DIMS):
            for system, variants in VARIANTS.items():
                for name, variant in variants.items():
                    if not variant.slow or (number < ceil(_SLOW_SHARE * self.extent.tasks) and devices == DEVICES[0]):
                        yield self._piece(SEARCH, version, system, name, devices, max_dim, number)

    def collected(self) -> list[Piece]:
        """Pieces that collect samples. They run alone, as they measure; so do the pieces that need their samples."""
        return [self._alone(SAMPLES, "cost model", "", task=number) for number in range(self.extent.chunks)]

    def trained(self) -> list[Piece]:
        """Pieces that train one model each; the task's number is the seed."""
        heads = ("convex", "mlp")
        return [
            self._alone(TRAINED, "cost model", head, task=seed) for seed in range(self.extent.seeds) for head in heads
        ]

    def measured(self) -> list[Piece]:
        """Pieces that measure a task's plans under both heads and the bundled model; a quick run has one piece, on four devices."""
        devices = DEVICES[:1] if self.name == "quick" else DEVICES
        settings = product(range(self.extent.measured), devices, MAX_DIMS[::-1])
        chosen = list(settings)[:1] if self.name == "quick" else list(settings)
        pieces = [
            self._alone(MEASURED, "all", "both heads, bundled model", devices=each, max_dim=dim, task=number)
            for number, each, dim in chosen
        ]
        return [replace(piece, version=f"{piece.version}, {model_version('cpu')}") for piece in pieces]

    def _alone(
        self, part: str, system: str, variant: str, *, devices: int = 0, max_dim: int = 0, task: int = 0
    ) -> Piece:
        extent = self.extent
        version = f"{_PLANS}, {extent.samples} samples, {extent.seeds} seeds, {extent.rounds} rounds"
        return replace(self._piece(part, version, system, variant, devices, max_dim, task), alone=True)

    def _piece(
        self, part: str, version: str, system: str, variant: str, devices: int, max_dim: int, task: int
    ) -> Piece:
        setting = {"devices": devices, "max_dim": max_dim, "task": task}
        return Piece({"part": part, "extent": self.name, **setting, "system": system, "variant": variant}, version)
