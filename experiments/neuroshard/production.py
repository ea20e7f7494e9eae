"""`neuroshard-production`: 856 tables of terabytes on 128 devices, beside what NeuroShard's paper gives for its production model.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from experiments.entrants import (
    COMPARED,
    LEARNED,
    TORCHREC,
    Entrant,
    Limits,
    entrant,
    model_version,
    torchrec_installed,
)
from experiments.experiment import Page, Piece, Row
from experiments.neuroshard.production_tasks import WORLDS, heaviest_ms, production_task
from experiments.outcomes import planned
from shardwright.search.learned.policy_files import bundled_policy
from shardwright.task.task import Task

SEEDS, SECONDS = 10, 60
QUICK_SEEDS, QUICK_SECONDS = 2, 15
TORCHREC_SEEDS, TORCHREC_SECONDS = 1, 600


@dataclass(frozen=True)
class NeuroShardProduction:
    """The experiment.

    Attributes:
        strategies: who takes part; those that place by a policy only where one is bundled for the devices.
    """

    strategies: tuple[str, ...] = COMPARED
    name: str = "neuroshard-production"
    about: str = "856 tables of terabytes on 128 devices, beside the paper's nine figures (NeuroShard, MLSys 2023)"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Seed by seed through both worlds, each by all strategies; TorchRec's planner takes long and comes last."""
        seconds = QUICK_SECONDS if quick else SECONDS
        found = [
            _piece(world.name, seed, name, seconds)
            for seed in range(QUICK_SEEDS if quick else SEEDS)
            for world in WORLDS
            for name in self.strategies
            if name != TORCHREC and (name not in LEARNED or bundled_policy("dreamshard", world.name) is not None)
        ]
        if TORCHREC in self.strategies and torchrec_installed() and not quick:
            seeds = range(TORCHREC_SEEDS)
            found += [_piece(world.name, seed, TORCHREC, TORCHREC_SECONDS) for seed in seeds for world in WORLDS]
        return found

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by one strategy."""
        world, seed, name = (piece.key[column] for column in ("world", "seed", "by"))
        task = _task(str(world), int(seed))
        one = _entrant(str(name), str(world), float(piece.key["limit_s"]))
        row, _ = planned(task, one, seed=int(seed))
        own: Row = {"strategy": str(name), "heaviest_ms": heaviest_ms(task)}
        return [own | row]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """Costs beside the paper's, as ratios to random, and what each strategy found in each world."""
        from experiments.neuroshard.production_page import made_page

        return made_page(rows, self.strategies)


def _piece(world: str, seed: int, name: str, seconds: int) -> Piece:
    version = ", ".join(filter(None, (_entrant(name, world, seconds).version, model_version(world))))
    return Piece({"world": world, "seed": seed, "by": name, "limit_s": seconds}, version)


def _entrant(name: str, world: str, seconds: float) -> Entrant:
    return entrant(name, Limits(seconds=seconds, torchrec_seconds=seconds), device=world)


@cache
def _task(world: str, seed: int) -> Task:
    return production_task(next(one for one in WORLDS if one.name == world), seed)
