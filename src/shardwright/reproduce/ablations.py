"""`ablations`: `neuroshard` and `certified` without one of their parts at a time, and the convex head against the mlp head.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from itertools import product
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shardwright.reproduce.entrants import Entrant, model_version
from shardwright.reproduce.experiment import Page, Piece, Row
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.cost.model import Head
    from shardwright.reproduce.ablation_heads import HeadBench
    from shardwright.sharding.plan import Plan

SEARCH, SAMPLES, TRAINED, MEASURED = "search", "samples", "trained", "measured"
"""Parts: searches without a part of theirs; collecting samples, training on them, and measuring plans found under either head."""
DEVICES, MAX_DIMS = (4, 8), (32, 128)
BATCH_SIZE, SEED = 1024, 2026
_MEASURED_SEED = 11
_COLUMNS = (
    "tables", "oversize", "cut", "step_ms", "embedding_cost_ms", "compute_ms", "balance", "bound_ms", "search_s", "failure", "why",
    "shards", "strategy", "head", "seed", "sets", "seconds", "mean_error", "median_error", "spearman", "repeat_error", "predicted_ms",
    "measured_ms",
)  # fmt: skip
_SLOW_SHARE = 0.2  # of the tasks of four devices, for variants that take long
_PLANS = "1"  # of the variants: change it with what they do


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


@dataclass(frozen=True)
class Ablations:
    """The experiment.

    Attributes:
        folder: samples and trained models are kept here.
        heads: whether the heads are compared, for which kernels of this machine are measured; left out where torch or FBGEMM is missing.
        full: extent of a full run.
        quick: extent of a quick one.
    """

    folder: Path = Path("out/reproduce/ablations")
    heads: bool = True
    full: Extent = FULL_RUN
    quick: Extent = QUICK_RUN
    name: str = "ablations"
    about: str = "NeuroShard's search and certified without one part at a time; convex against mlp head"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Searches task by task; collecting begins after a fifth of them, then come training and measuring."""
        extent = self.quick if quick else self.full
        make = _Pieces("quick" if quick else "full", extent)
        spread = [(0.0, 1.0, list(make.searches()))]
        if self.heads and find_spec("torch") is not None and find_spec("fbgemm_gpu") is not None:
            spread += [(0.2, 0.5, make.collected()), (0.5, 0.6, make.trained()), (0.6, 1.0, make.measured())]
        placed = [
            (first + (last - first) * (index + 0.5) / len(pieces), piece)
            for first, last, pieces in spread
            for index, piece in enumerate(pieces)
        ]
        return [piece for _, piece in sorted(placed, key=lambda each: each[0])]

    def run(self, piece: Piece) -> Sequence[Row]:
        """Search, collect, train or measure."""
        part, extent = piece.key["part"], self._extent(piece)
        if part == SEARCH:
            rows = [_searched(piece, extent.time_limit)]
        elif part == SAMPLES:
            target = extent.samples * (int(piece.key["task"]) + 1) // extent.chunks
            rows = [self._bench(extent).collect(target, extent.chunk_s)]
        elif part == TRAINED:
            head = cast("Head", piece.key["variant"])
            rows = [self._bench(extent).train(head, int(piece.key["task"]))]
        else:
            task = _tasks(int(piece.key["devices"]), int(piece.key["max_dim"]), _MEASURED_SEED)[int(piece.key["task"])]
            rows = self._bench(extent).measure(task, range(extent.seeds), extent.rounds)
        return [dict.fromkeys(_COLUMNS) | row for row in rows]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """What each part is worth, and what the convex head costs."""
        from shardwright.reproduce.ablations_page import page_of

        return page_of(rows)

    def _extent(self, piece: Piece) -> Extent:
        """The extent that a piece belongs to."""
        return self.quick if piece.key["extent"] == "quick" else self.full

    def _bench(self, extent: Extent) -> HeadBench:
        from shardwright.reproduce.ablation_heads import HeadBench

        return HeadBench(self.folder, extent.samples, extent.time_limit)


@dataclass(frozen=True)
class _Pieces:
    """Makes the pieces of a run."""

    name: str
    extent: Extent

    def searches(self) -> Iterator[Piece]:
        """Task by task, all settings and variants."""
        from shardwright.reproduce.ablation_variants import VARIANTS

        version = f"{_PLANS}, {model_version('cpu')}, {self.extent.time_limit:g} s"
        for number, devices, max_dim in product(range(self.extent.tasks), DEVICES, MAX_DIMS):
            for system, variants in VARIANTS.items():
                for name, variant in variants.items():
                    if not variant.slow or (number < ceil(_SLOW_SHARE * self.extent.tasks) and devices == DEVICES[0]):
                        yield self._piece(SEARCH, version, system, name, devices, max_dim, number)

    def collected(self) -> list[Piece]:
        """So many samples each. Measuring runs alone, as does what needs what was measured."""
        return [self._alone(SAMPLES, "cost model", "", task=number) for number in range(self.extent.chunks)]

    def trained(self) -> list[Piece]:
        """A model each; the seed is the task's number."""
        heads = ("convex", "mlp")
        return [
            self._alone(TRAINED, "cost model", head, task=seed) for seed in range(self.extent.seeds) for head in heads
        ]

    def measured(self) -> list[Piece]:
        """A task each, with all plans of both heads; a quick run has tasks of four devices only."""
        devices = DEVICES[:1] if self.name == "quick" else DEVICES
        settings = product(range(self.extent.measured), devices, MAX_DIMS[::-1])
        chosen = list(settings)[:1] if self.name == "quick" else list(settings)
        return [
            self._alone(MEASURED, "all", "both heads", devices=each, max_dim=dim, task=number)
            for number, each, dim in chosen
        ]

    def _alone(
        self, part: str, system: str, variant: str, *, devices: int = 0, max_dim: int = 0, task: int = 0
    ) -> Piece:
        extent = self.extent
        version = f"{_PLANS}, {extent.samples} samples, {extent.seeds} seeds, {extent.rounds} rounds"
        return replace(self._piece(part, version, system, variant, devices, max_dim, task), alone=True)

    def _piece(
        self, part: str, version: str, system: str, variant: str, devices: int, max_dim: int, task: int
    ) -> Piece:
        setting: dict[str, str | int | float] = {
            "part": part,
            "extent": self.name,
            "devices": devices,
            "max_dim": max_dim,
            "task": task,
        }
        return Piece({**setting, "system": system, "variant": variant}, version)


def _searched(piece: Piece, time_limit: float) -> Row:
    """A task planned by a variant, and judged by the fused costs of the bundled model."""
    from shardwright.cost import cost_model_for
    from shardwright.cost.score import scored
    from shardwright.reproduce.ablation_variants import VARIANTS
    from shardwright.reproduce.outcomes import planned, row_of

    variant = VARIANTS[str(piece.key["system"])][str(piece.key["variant"])]
    number = int(piece.key["task"])
    task = _tasks(int(piece.key["devices"]), int(piece.key["max_dim"]), SEED)[number]
    fused = cost_model_for("cpu")
    row, plan = planned(
        variant.task(task),
        Entrant(variant.strategy, time_limit=None if variant.slow else time_limit),
        seed=number,
        model=variant.model(fused),
    )
    if plan is None:
        return row
    if variant.summed:
        row = row_of(scored(plan, fused)) | {"bound_ms": None}
    return row | {"shards": digest_of(plan)}


def digest_of(plan: Plan) -> str:
    """The same for the same shards."""
    lines = sorted(f"{shard.table} {shard.rows} {shard.columns} {shard.devices}" for shard in plan.shards)
    return sha256("\n".join(lines).encode()).hexdigest()[:8]


@cache
def _tasks(devices: int, max_dim: int, seed: int) -> list[Task]:
    from shardwright.workload import paper_tasks

    return paper_tasks(FULL_RUN.tasks, devices=devices, max_dim=max_dim, seed=seed, batch_size=BATCH_SIZE, device="cpu")
