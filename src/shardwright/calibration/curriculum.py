"""The lessons of a calibration: which sets come first, and which after each training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.calibration.choosing import VisitSeconds, disputed_ones, quick_ones
from shardwright.calibration.sets import Group, Set, cut_pair, plan_sets, random_sets, task_sets
from shardwright.cost.dataset import Samples, samples_of_works
from shardwright.cost.files import kind_of_table
from shardwright.cost.model import ComputeModel, CostModel
from shardwright.cost.score import device_ms
from shardwright.measure.sampling import BREADTHS, SampleSpace
from shardwright.task import Task
from shardwright.task.task import Optimizer
from shardwright.workload.generators import random_task, table_pool

_POOL = "dlrm-2021"
_CHOICE = 3  # sets to choose each one from
_PLANS, _PAIRS = 0.35, 0.25  # shares of what is measured after the first training
_DEVICES, _TABLES = 4, (8, 60)  # of the tasks that are drawn where none is given


@dataclass
class Curriculum:
    """What to measure.

    Attributes:
        task: the task that a model is made for, fitted to this machine; None for one of any tables.
        batch_size: samples of a batch.
        optimizer: optimizer inside backward.
        room_bytes: what weights and optimizer state of a set must fit.
        device: device type of this machine.
        seed: of all that is drawn.
        first: number of the first random set to draw, so that a calibration that goes on draws new ones.
    """

    task: Task | None
    batch_size: int
    optimizer: Optimizer
    room_bytes: int
    device: str
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        self.seconds = VisitSeconds()
        self._rng = np.random.default_rng([self.seed, self.first])
        self._drawn, self._named = self.first, 0
        kinds = {(table.pooled, table.dtype) for table in self.task.tables} if self.task else set()
        self.kinds = {kind_of_table(pooled, dtype) for pooled, dtype in kinds} | {kind_of_table(True, "fp32")}
        self._space = SampleSpace(
            table_pool(_POOL),
            self.seed,
            self.room_bytes,
            replace(
                BREADTHS["usual"],
                batch_sizes=(self.batch_size,),
                optimizers=(self.optimizer,),
                sequence_share=0.3 if any(not pooled for pooled, _ in kinds) else 0.0,
                fp16_share=0.3 if any(dtype == "fp16" for _, dtype in kinds) else 0.0,
            ),
        )

    def first_sets(self, count: int, model: ComputeModel | None) -> list[Group]:
        """Quick sets of all numbers of shards, with a task some of its own; `model` says which are quick."""
        sets = self._random(_CHOICE * count)
        if self.task is not None:
            sets += list(task_sets(self.task, count, self._rng))
        chosen = quick_ones(sets, model, self.seconds, count, self._rng) if model else sets[:count]
        return [(one,) for one in chosen]

    def told_by(self, model: CostModel, count: int) -> Samples:
        """Random sets, and of a task some of its own, with the times that a model tells: to teach another model what this one knows."""
        sets = list(random_sets(self._space, 0, count))
        if self.task is not None:
            sets += list(task_sets(self.task, count, np.random.default_rng(self.seed)))
        works = [one.work.works for one in sets]
        return samples_of_works(works, np.array([device_ms(model, some) for some in works]))

    def next_sets(self, count: int, models: Sequence[ComputeModel]) -> list[Group]:
        """About so many sets: devices of plans and their neighbours, pairs, and what the models disagree about."""
        groups: list[Group] = []
        plans, pairs = (max(1, round(share * count)) for share in (_PLANS, _PAIRS))
        while _size(groups) < plans:
            found = self._plans(models[-1])
            groups += found
            if not found:
                break
        limit = _size(groups) + pairs
        while _size(groups) < limit:
            groups.append(cut_pair(self.task or self._any_task(), self._name("cut"), self._rng))
        left = max(1, count - _size(groups))
        sets = self._random(_CHOICE * left)
        if self.task is not None:
            sets += list(task_sets(self.task, _CHOICE * left, self._rng))
        groups += [(one,) for one in disputed_ones(sets, models, self.seconds, left)]
        fitting = [group for group in groups if all(one.work.table_bytes <= self.room_bytes for one in group)]
        return [fitting[place] for place in self._rng.permutation(len(fitting))]

    def _plans(self, model: CostModel) -> list[Group]:
        name = self._name("plan")
        found, moved = plan_sets(self.task or self._any_task(), model, name, seed=self._named)
        return [found, *((one,) for one in moved)] if found else []

    def _any_task(self) -> Task:
        """A task as in the papers, small enough for the room."""
        task = random_task(
            self._rng,
            pool=_POOL,
            tables=_TABLES,
            devices=_DEVICES,
            memory=self.room_bytes,
            batch_size=self.batch_size,
            device=self.device,
            optimizer=self.optimizer,
            fill=None,
        )
        total = sum(table.weight_bytes for table in task.tables)
        scale = min(1.0, 0.4 * self.room_bytes * _DEVICES / total)
        return task if scale == 1 else replace(task, tables=[table.scaled_rows(scale) for table in task.tables])

    def _random(self, count: int) -> list[Set]:
        self._drawn += count
        return list(random_sets(self._space, self._drawn - count, count))

    def _name(self, kind: str) -> str:
        """A name for a pair that no other calibration of this cache folder gives."""
        self._named += 1
        return f"{kind}-{self.seed}-{self.first}-{self._named}"


def _size(groups: Sequence[Group]) -> int:
    return sum(map(len, groups))
