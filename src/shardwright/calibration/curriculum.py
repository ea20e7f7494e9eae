"""Chooses the sets that a calibration measures: quick sets first; then devices of plans, cuts, and sets that models disagree about.

These models are trained on halves of the data. Sets are chosen by their worth per second of measuring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.calibration.sets import Group, cut_pair, heavy_sets, plan_sets, task_sets
from shardwright.cost.files import kind_of_table
from shardwright.cost.model import ComputeModel, CostModel
from shardwright.cost.score import device_ms
from shardwright.measure.device_work import Job
from shardwright.measure.pace import VisitSeconds
from shardwright.measure.sampling import BREADTHS, SampleSpace
from shardwright.modelling.accuracy import predict
from shardwright.modelling.dataset import Samples, samples_of_works
from shardwright.task import Task
from shardwright.task.task import Optimizer
from shardwright.workload.generators import random_task, table_pool

_POOL = "dlrm-2021"
_CHOICE = 3  # candidates drawn for each set that is chosen
_PLANS, _PAIRS = 0.35, 0.25  # shares of the sets after the first training
_DEVICES, _TABLES = 4, (8, 60)  # devices, and range of tables, of the tasks drawn when none is given
_SPREAD = 0.5  # of the logarithm: random factor on the worth of quick sets, so that the choice varies


@dataclass
class Curriculum:
    """Chooses the sets to measure.

    Attributes:
        task: the task that the model is for, fitted to this machine; None for a model of any tables.
        batch_size: samples in a batch.
        optimizer: optimizer inside backward.
        room_bytes: memory that must hold the weights and optimizer state of a set.
        device: device type of this machine.
        seed: seed of all random draws.
        first: number of the first random set to draw, so that a resumed calibration draws new ones.
        seconds: predicts how long the visits to sets take.
    """

    task: Task | None
    batch_size: int
    optimizer: Optimizer
    room_bytes: int
    device: str
    seed: int = 0
    first: int = 0
    seconds: VisitSeconds = field(default_factory=VisitSeconds)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, self.first])
        self._drawn, self._named = self.first, 0
        # A generator, so that each of these sets is used once. Quick sets hold none of the heaviest tables, which decide the step time.
        self._heavy = ((job,) for job in (heavy_sets(self.task) if self.task else ()))
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
        """The task's heaviest tables, then quick sets with few to many shards; `model` predicts which sets are quick."""
        sets = self._new_sets(_CHOICE * count, count)
        chosen = self._quick(sets, model, count) if model else sets[:count]
        return [*self._heavy, *((job,) for job in chosen)]

    def told_by(self, model: CostModel, count: int) -> Samples:
        """Random sets, and some of the task's tables, with the times that a model predicts, so that another model can learn from them."""
        sets = (*map(self._space.draw, range(count)), *self._of_task(count, np.random.default_rng(self.seed)))
        works = [job.work.works for job in sets]
        return samples_of_works(works, np.array([device_ms(model, some) for some in works]))

    def next_sets(self, count: int, models: Sequence[ComputeModel]) -> list[Group]:
        """About `count` sets: the heaviest tables (once), devices of plans and neighbours, pairs, and sets that models disagree about."""
        groups: list[Group] = []
        plans, pairs = (max(1, round(share * count)) for share in (_PLANS, _PAIRS))
        while _size(groups) < plans:
            drawn = self._plans(models[-1])
            groups += drawn
            if not drawn:
                break
        limit = _size(groups) + pairs
        while _size(groups) < limit:
            groups.append(cut_pair(self.task or self._any_task(), self._name("cut"), self._rng))
        left = max(1, count - _size(groups))
        sets = self._new_sets(_CHOICE * left, _CHOICE * left)
        groups += [(job,) for job in self._disputed(sets, models, left)]
        fitting = [group for group in groups if all(job.work.table_bytes <= self.room_bytes for job in group)]
        return [*self._heavy, *(fitting[place] for place in self._rng.permutation(len(fitting)))]

    def _quick(self, sets: Sequence[Job], model: ComputeModel, count: int) -> list[Job]:
        """Sets with few to many shards that take little time to measure."""
        expected = self._seconds_of(sets, _step_ms([model], sets)[0])
        return _best_of_each_size(sets, self._rng.lognormal(0, _SPREAD, len(sets)) / expected, count)

    def _disputed(self, sets: Sequence[Job], models: Sequence[ComputeModel], count: int) -> list[Job]:
        """Sets with few to many shards on which the models disagree most, in proportion to the measuring time."""
        predicted = _step_ms(models, sets)
        spread = np.log(predicted).std(axis=0)
        return _best_of_each_size(sets, spread / np.sqrt(self._seconds_of(sets, predicted.mean(axis=0))), count)

    def _seconds_of(self, sets: Sequence[Job], ms: Floats) -> Floats:
        return self.seconds.expected([job.work for job in sets], ms)

    def _plans(self, model: CostModel) -> list[Group]:
        name = self._name("plan")
        of_plans, moved = plan_sets(self.task or self._any_task(), model, name, seed=self._named)
        return [of_plans, *((job,) for job in moved)] if of_plans else []

    def _any_task(self) -> Task:
        """A random task as in the papers, small enough for `room_bytes`."""
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

    def _new_sets(self, count: int, of_task: int) -> list[Job]:
        """Random sets that were not drawn before, and some of the task's tables."""
        numbers = range(self._drawn, self._drawn + count)
        self._drawn = numbers.stop
        return [*map(self._space.draw, numbers), *self._of_task(of_task, self._rng)]

    def _of_task(self, count: int, rng: np.random.Generator) -> Iterable[Job]:
        return task_sets(self.task, count, rng) if self.task is not None else ()

    def _name(self, kind: str) -> str:
        """A name for a pair that is unique among all calibrations in this cache folder."""
        self._named += 1
        return f"{kind}-{self.seed}-{self.first}-{self._named}"


def _size(groups: Sequence[Group]) -> int:
    return sum(map(len, groups))


def _step_ms(models: Sequence[ComputeModel], sets: Sequence[Job]) -> Floats:
    """`(models, n)` predicted step ms of each set: forward plus backward."""
    samples = samples_of_works([job.work.works for job in sets], np.ones((len(sets), 2)))
    return np.stack([np.maximum(predict(model, samples).sum(axis=1), 1e-3) for model in models])


def _best_of_each_size(sets: Sequence[Job], value: Floats, count: int) -> list[Job]:
    """The `count` sets of highest value, taken in turn from those with 1, 2-3, 4-7, … shards."""
    by_size: defaultdict[int, list[int]] = defaultdict(list)
    for place in np.argsort(value).tolist():
        by_size[len(sets[place].work.works).bit_length()].append(place)
    chosen: list[Job] = []
    while by_size and len(chosen) < count:
        for size in sorted(by_size):
            chosen.append(sets[by_size[size].pop()])
            if not by_size[size]:
                del by_size[size]
    return chosen[:count]
