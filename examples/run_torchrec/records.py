"""What is asked of the ranks, and what each reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardwright.files import write_atomically


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One plan to run.

    Attributes:
        plan: the plan file; its task says what is run.
        sharding_plan: a saved TorchRec plan to run instead of the plan's shards; None for those.
        steps: steps that are timed.
        warm_up: steps before them.
        profiled: steps that are profiled after them.
        seed: seed of the batches.
        folder: where every rank leaves its report.
    """

    plan: str
    sharding_plan: str | None
    steps: int
    warm_up: int
    profiled: int
    seed: int
    folder: str


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured.

    Attributes:
        rank: its number.
        step_ms: ms of each timed step: forward, backward, optimizer.
        phases: median ms by phase; see `phases.PHASES`.
        weights_bytes: bytes it allocated for weights.
        optimizer_bytes: bytes it allocated for the optimizer's state.
    """

    rank: int
    step_ms: list[float]
    phases: dict[str, float]
    weights_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True)
class ReportFolder:
    """A folder with one report a rank.

    Attributes:
        path: the folder.
    """

    path: Path

    def write(self, report: RankReport) -> None:
        """Leave a rank's report."""
        write_atomically(self._file(report.rank), msgspec.json.encode(report).decode())

    def read(self, world: int) -> tuple[RankReport, ...]:
        """The reports of all ranks, in order."""
        return tuple(msgspec.json.decode(self._file(rank).read_bytes(), type=RankReport) for rank in range(world))

    def _file(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.json"
