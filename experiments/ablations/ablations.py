"""`ablations`: `neuroshard` and `certified`, lacking one of their parts at a time, and the convex head against the mlp head.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from experiments.ablations.pieces import (
    BATCH_SIZE,
    FULL_RUN,
    MEASURED_SEED,
    QUICK_RUN,
    SAMPLES,
    SEARCH,
    SEED,
    TRAINED,
    Extent,
    Pieces,
    digest_of,
)
from experiments.ablations.variants import VARIANTS
from experiments.entrants import Entrant
from experiments.experiment import Page, Piece, Row
from experiments.outcomes import planned, row_of
from shardwright.cost.choice import cost_model_for
from shardwright.cost.score import scored
from shardwright.task.task import Task

if TYPE_CHECKING:
    from experiments.ablations.heads import HeadBench
    from shardwright.cost.model import Head

_COLUMNS = (
    "tables", "oversize", "cut", "step_ms", "embedding_cost_ms", "compute_ms", "balance", "bound_ms", "search_s", "failure", "why",
    "shards", "strategy", "head", "seed", "sets", "seconds", "mean_error", "median_error", "spearman", "repeat_error", "predicted_ms",
    "measured_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Ablations:
    """The experiment `ablations`.

    Attributes:
        folder: folder of the samples and the trained models.
        heads: whether to compare the heads on this machine's kernels; without torch or FBGEMM, the comparison is left out.
        full: extent of a full run.
        quick: extent of a quick run.
    """

    folder: Path = Path("out/experiments/ablations")
    heads: bool = True
    full: Extent = FULL_RUN
    quick: Extent = QUICK_RUN
    name: str = "ablations"
    about: str = "NeuroShard's search and certified without one part at a time; convex against mlp head"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Searches, task by task. After a fifth of them, pieces that collect samples, train and measure come in between."""
        extent = self.quick if quick else self.full
        make = Pieces("quick" if quick else "full", extent)
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
            task = _tasks(int(piece.key["devices"]), int(piece.key["max_dim"]), MEASURED_SEED)[int(piece.key["task"])]
            rows = self._bench(extent).measure(task, range(extent.seeds), extent.rounds)
        return [dict.fromkeys(_COLUMNS) | row for row in rows]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """The worth of each part, and the price of the convex head."""
        from experiments.ablations.page import page_of

        return page_of(rows)

    def _extent(self, piece: Piece) -> Extent:
        """The extent that a piece belongs to."""
        return self.quick if piece.key["extent"] == "quick" else self.full

    def _bench(self, extent: Extent) -> HeadBench:
        from experiments.ablations.heads import HeadBench

        return HeadBench(self.folder, extent.samples, extent.time_limit)


def _searched(piece: Piece, time_limit: float) -> Row:
    """Plan a task by a variant, and judge the plan by the fused costs of the bundled model."""
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


@cache
def _tasks(devices: int, max_dim: int, seed: int) -> list[Task]:
    from shardwright.workload import paper_tasks

    return paper_tasks(FULL_RUN.tasks, devices=devices, max_dim=max_dim, seed=seed, batch_size=BATCH_SIZE, device="cpu")
