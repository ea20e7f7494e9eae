"""`neuroshard-published`: NeuroShard as its paper runs it, beside the strategy of that name in this package.

Three parts. (1) The production tasks with ten halvings and no free cuts, with tables that fit a device. (2) The benchmark's tasks searched
by the embedding cost, as published, and by the step; both costs judge both plans. (3) The three networks: their errors on this machine's
kernels and collectives, and plans of `neuroshard` priced by them.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from experiments.entrants import Entrant, entrant, model_version
from experiments.experiment import Page, Piece, Row
from experiments.neuroshard.networks import NOT_OF_NETWORKS, network_rows
from experiments.neuroshard.production import fitting_task
from experiments.neuroshard.published_page import (
    BY_STEP,
    LIMITS,
    NETWORKS,
    PRODUCTION,
    PUBLISHED,
    RIVALS,
    SCORES,
    made_page,
)
from experiments.neuroshard.table import DEVICES, MAX_DIMS
from experiments.neuroshard.table_page import BATCH_SIZE, SEED
from experiments.neuroshard.worlds import WORLDS
from experiments.outcomes import planned
from shardwright.search.neuroshard import NeuroShard
from shardwright.task.task import Task

WORLD = WORLDS[0]
SEEDS, TASKS = 5, 10
QUICK_SEEDS, QUICK_TASKS = 1, 1
_SEARCHES = {PUBLISHED: NeuroShard(free_cuts=False), BY_STEP: NeuroShard(free_cuts=False, score="step")}


@dataclass(frozen=True)
class NeuroShardPublished:
    """The experiment `neuroshard-published`.

    Attributes:
        networks: whether to train the networks; this needs torch, and measures collectives for minutes.
    """

    networks: bool = True
    name: str = "neuroshard-published"
    about: str = "NeuroShard as published: ten halvings and no free cuts, its score, its three networks (MLSys 2023)"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """The production tasks one by one, then the benchmark's tasks, then the networks."""
        seeds, tasks = (QUICK_SEEDS, QUICK_TASKS) if quick else (SEEDS, TASKS)
        work = [
            Piece(_key(PRODUCTION, 128, 128, seed, name), _version(name))
            for seed in range(seeds)
            for name in (RIVALS[:-1] if quick else RIVALS)
        ]
        work += [
            Piece(_key(SCORES, devices, max_dim, number, name), _version(name))
            for number, devices, max_dim in product(range(tasks), DEVICES, MAX_DIMS)
            for name in _SEARCHES
        ]
        if self.networks and not quick:
            work.append(Piece(_key(NETWORKS, 4, 128, 0, "all"), f"one batch size, {model_version('cpu')}", alone=True))
        return work

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by one strategy, or train the networks and plan by them."""
        part, number, name = piece.key["part"], int(piece.key["task"]), str(piece.key["by"])
        if part == NETWORKS:
            return network_rows(benchmark_tasks(4, 128), _SEARCHES[PUBLISHED])
        task = (
            _production(number)
            if part == PRODUCTION
            else benchmark_tasks(int(piece.key["devices"]), int(piece.key["max_dim"]))[number]
        )
        row, _ = planned(task, entrant_of(name), seed=number)
        return [{"strategy": name} | row | NOT_OF_NETWORKS]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """A table for each part."""
        return made_page(rows)


def _key(part: str, devices: int, max_dim: int, task: int, by: str) -> dict[str, str | int | float]:
    return {"part": part, "devices": devices, "max_dim": max_dim, "task": task, "by": by}


def entrant_of(name: str) -> Entrant:
    """A strategy of this experiment."""
    if name in _SEARCHES:
        search = _SEARCHES[name]
        return Entrant(search, f"{search.most_splits} halvings, score {search.score}, free cuts {search.free_cuts}")
    return entrant(name, LIMITS)


@cache
def _version(name: str) -> str:
    return ", ".join(filter(None, (entrant_of(name).version, model_version("cpu"))))


@cache
def _production(seed: int) -> Task:
    return fitting_task(WORLD, seed)


@cache
def benchmark_tasks(devices: int, max_dim: int) -> list[Task]:
    """The first tasks of `neuroshard-table` that have no table too large for a device."""
    from shardwright.sharding.memory import shard_bytes
    from shardwright.sharding.shard import Shard
    from shardwright.workload import paper_tasks

    drawn = paper_tasks(3 * TASKS, devices=devices, max_dim=max_dim, seed=SEED, batch_size=BATCH_SIZE, device="cpu")
    fits = [
        task
        for task in drawn
        if all(shard_bytes(task, Shard.whole(t, 0)) <= max(task.topology.memory_bytes) for t in task.tables)
    ]
    return fits[:TASKS]
