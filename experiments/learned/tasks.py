"""The tasks of the experiments about learned placement: DreamShard's, at the batch size of the bundled CPU model.

Tables come from the pool "dlrm-2021", each at most once a task: dim 16, fp32, batch 1,024, 5 GB a device, every table whole. Half of the
tables are for training, the other half for testing (`split_pool(pool, 0.5)`), so that a test task has no table that training saw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardwright.task import Constraints, Table, TableConstraint, Task
from shardwright.workload import random_task, split_pool

POOL, DIM, BATCH, MEMORY = "dlrm-2021", 16, 1024, "5 GB"
TEST_SEED, TRAIN_SEED, VALIDATION_SEED = 2022, 0, 1
"""A task depends on one of these, its setting and its number alone."""


@dataclass(frozen=True)
class Setting:
    """A kind of tasks.

    Attributes:
        tables: tables of a task.
        devices: devices of a task.
    """

    tables: int
    devices: int

    @property
    def name(self) -> str:
        """As in "DLRM-50 × 4"."""
        return f"DLRM-{self.tables} × {self.devices}"

    @classmethod
    def of(cls, text: str) -> Setting:
        """From a text such as 50x4."""
        tables, devices = text.split("x")
        return cls(int(tables), int(devices))


def draw_task(setting: Setting, number: int, *, seed: int = TEST_SEED, unseen: float = 1.0) -> Task:
    """A task of a setting.

    Args:
        setting: how many tables and devices.
        number: which one.
        seed: `TEST_SEED`, `TRAIN_SEED` or `VALIDATION_SEED`; tasks of different seeds are different draws.
        unseen: each table is drawn from the half for testing with this probability, else from the half for training.
    """
    rng = np.random.default_rng([seed, setting.tables, setting.devices, number])
    task = random_task(
        rng,
        pool=pool(unseen, rng, setting.tables),
        tables=setting.tables,
        devices=setting.devices,
        dims=(DIM,),
        memory=MEMORY,
        batch_size=BATCH,
        device="cpu",
        replacement=False,
        fill=None,
    )
    return whole(task)


def draw_tasks(setting: Setting, count: int, *, seed: int = TEST_SEED, unseen: float = 1.0) -> list[Task]:
    """The first `count` tasks of a setting."""
    return [draw_task(setting, number, seed=seed, unseen=unseen) for number in range(count)]


def pool(unseen: float, rng: np.random.Generator, tables: int) -> tuple[Table, ...]:
    """A half of the pool, or so many tables of both that each is of the half for testing with probability `unseen`."""
    train, test = halves()
    if unseen in (0.0, 1.0):
        return test if unseen else train
    from_test = int(rng.binomial(tables, unseen))
    picked = [
        half[index]
        for half, count in ((train, tables - from_test), (test, from_test))
        for index in rng.choice(len(half), count, replace=False)
    ]
    return tuple(picked)


def whole(task: Task) -> Task:
    """The task with every table in one piece."""
    limit = TableConstraint(sharding_types=("table_wise",))
    return replace(task, constraints=Constraints({table.name: limit for table in task.tables}))


@cache
def halves() -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    """Tables for training and for testing."""
    return split_pool(POOL, 0.5)
