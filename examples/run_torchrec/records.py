"""The request to the ranks, and the report of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardwright.files import write_atomically


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One plan to run.

    Attributes:
        plan: the plan file; its task gives the tables and batches.
        sharding_plan: a saved TorchRec plan to run instead of the plan's shards; None to run the shards.
        steps: number of timed steps.
        warm_up: number of steps before them.
        profiled: number of profiled steps after them.
        seed: seed of the batches.
        folder: folder to which every rank writes its report.
    """

    plan: str
    sharding_plan: str | None
    steps: int
    warm_up: int
    profiled: int
    seed: int
    folder: str


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one rank.

    Attributes:
        rank: number of the rank.
        step_ms: ms of each timed step: forward, backward, optimizer.
        phases: median ms by phase; see `phases.PHASES`.
        weights_bytes: bytes that the rank allocated for weights.
        optimizer_bytes: bytes that the rank allocated for optimizer state.
    """

    rank: int
    step_ms: list[float]
    phases: dict[str, float]
    weights_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True)
class ReportFolder:
    """A folder with one report per rank.

    Attributes:
        path: the folder.
    """

    path: Path

    def write(self, report: RankReport) -> None:
        """Write a rank's report."""
        write_atomically(self._file(report.rank), msgspec.json.encode(report).decode())

    def read(self, world: int) -> tuple[RankReport, ...]:
        """Return the reports of all ranks, in order."""
        return tuple(msgspec.json.decode(self._file(rank).read_bytes(), type=RankReport) for rank in range(world))

    def _file(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.json"
