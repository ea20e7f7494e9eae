"""`neuroshard-production`: 856 tables of terabytes on 128 devices, beside the figures of NeuroShard's paper for its production model.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from experiments.entrants import (
    COMPARED,
    TORCHREC,
    Entrant,
    Limits,
    entrant,
    model_version,
    torchrec_installed,
)
from experiments.experiment import Page, Piece, Row
from experiments.neuroshard.production_page import made_page
from experiments.neuroshard.worlds import FILL, MAX_DIM, WORLDS, World
from experiments.outcomes import planned
from shardwright.cost.choice import cost_model_for
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task
from shardwright.workload.generators import halved_dims, table_pool

POOL = "dlrm-2021"


def production_task(world: World, seed: int) -> Task:
    """A task with all tables of the pool on 128 devices.

    Each table draws one of the dims 4, 8, … 128. Then one factor scales the rows of all tables, so that the weights take half of all
    memory. Pooling factors and the skew of accesses (Zipf exponents) stay those of the pool.

    Args:
        world: the cluster.
        seed: seed of the dims.
    """
    pool = table_pool(POOL)
    dims = np.random.default_rng([seed, len(pool)]).choice(halved_dims(MAX_DIM), len(pool))
    drawn = [replace(table, dim=int(dim)) for table, dim in zip(pool, dims, strict=True)]
    topology = world.topology
    factor = FILL * sum(topology.memory_bytes) / sum(table.weight_bytes for table in drawn)
    return Task([table.scaled_rows(factor) for table in drawn], topology, world.batch_size)


def fitting_task(world: World, seed: int) -> Task:
    """The production task with fewer rows in tables that fit no device: each takes nine tenths of a device, so no plan must cut it."""
    task = production_task(world, seed)
    most = 0.9 * max(task.topology.memory_bytes)
    shares = [most / shard_bytes(task, Shard.whole(table, 0)) for table in task.tables]
    tables = [table.scaled_rows(min(1.0, share)) for table, share in zip(task.tables, shares, strict=True)]
    return replace(task, tables=tables)


def heaviest_ms(task: Task) -> float:
    """Largest kernel ms of a single table, whole and alone on a device, among the tables that fit a device.

    If a plan cuts only tables that fit no device, its slowest device takes at least this long.
    """
    model, memory = cost_model_for(task.topology.device), max(task.topology.memory_bytes)
    whole = [Shard.whole(table, 0) for table in task.tables]
    encoded = model.encode([shard_work(task, shard) for shard in whole if shard_bytes(task, shard) <= memory])
    return max((float(model.pricing.price(row).sum()) for row in encoded), default=0.0)


SEEDS, SECONDS = 10, 60
QUICK_SEEDS, QUICK_SECONDS = 2, 15
TORCHREC_SEEDS, TORCHREC_SECONDS = 1, 600


@dataclass(frozen=True)
class NeuroShardProduction:
    """The experiment `neuroshard-production`.

    Attributes:
        strategies: names of the compared strategies.
    """

    strategies: tuple[str, ...] = COMPARED
    name: str = "neuroshard-production"
    about: str = "856 tables of terabytes on 128 devices, beside the paper's nine figures (NeuroShard, MLSys 2023)"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Seed by seed through both worlds, each by all strategies; TorchRec's planner takes long and comes last."""
        seconds = QUICK_SECONDS if quick else SECONDS
        work = [
            _piece(world.name, seed, name, seconds)
            for seed in range(QUICK_SEEDS if quick else SEEDS)
            for world in WORLDS
            for name in self.strategies
            if name != TORCHREC
        ]
        if TORCHREC in self.strategies and torchrec_installed() and not quick:
            seeds = range(TORCHREC_SEEDS)
            work += [_piece(world.name, seed, TORCHREC, TORCHREC_SECONDS) for seed in seeds for world in WORLDS]
        return work

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by one strategy."""
        world, seed, name = (piece.key[column] for column in ("world", "seed", "by"))
        task = _task(str(world), int(seed))
        strategy = _entrant(str(name), str(world), float(piece.key["limit_s"]))
        row, _ = planned(task, strategy, seed=int(seed))
        own: Row = {"strategy": str(name), "heaviest_ms": heaviest_ms(task)}
        return [own | row]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """Costs beside the paper's, as ratios to `random`, and the results of each strategy in each world."""
        return made_page(rows, self.strategies)


def _piece(world: str, seed: int, name: str, seconds: int) -> Piece:
    version = ", ".join(filter(None, (_entrant(name, world, seconds).version, model_version(world))))
    return Piece({"world": world, "seed": seed, "by": name, "limit_s": seconds}, version)


def _entrant(name: str, world: str, seconds: float) -> Entrant:
    return entrant(name, Limits(seconds=seconds, torchrec_seconds=seconds))


@cache
def _task(world: str, seed: int) -> Task:
    return production_task(next(each for each in WORLDS if each.name == world), seed)
