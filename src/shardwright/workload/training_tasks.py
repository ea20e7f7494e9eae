"""Read training tasks: a file of groups drawn from pools, and of task files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from shardwright.errors import InvalidInput, counted
from shardwright.files import parse_document
from shardwright.schema import Place, check_format, convert, given
from shardwright.task import Constraints, Table, TableConstraint, Task
from shardwright.task.files import load_tables, load_task, task_to_dict
from shardwright.task.table import Dtype
from shardwright.task.task import Optimizer
from shardwright.workload.generators import random_task, split_pool, table_pool

FORMAT = 1
MOST_TASKS = 100_000

Half: TypeAlias = Literal["train", "test", "all"]


@dataclass(frozen=True)
class TrainingTasks:
    """Tasks to learn from.

    Attributes:
        tasks: the tasks; at least one.
        digest: 16 hexadecimal digits of a hash over all tasks.
    """

    tasks: tuple[Task, ...]
    digest: str

    @property
    def description(self) -> str:
        """A text such as "200 tasks of 20-60 tables on 4 devices, sha256 0123456789abcdef"."""
        tables = _span([len(task.tables) for task in self.tasks])
        devices = _span([task.topology.devices for task in self.tasks])
        return f"{counted(len(self.tasks), 'task')} of {tables} tables on {devices} devices, sha256 {self.digest}"


def training_tasks(tasks: Sequence[Task]) -> TrainingTasks:
    """Return tasks with their digest.

    Raises:
        InvalidInput: there are no tasks.
    """
    if not tasks:
        raise InvalidInput(
            "the training set has no task; a policy learns from at least one: add a group or a task file"
        )
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(task_to_dict(task), sort_keys=True).encode())
    return TrainingTasks(tuple(tasks), digest.hexdigest()[:16])


def load_training_tasks(path: str | Path) -> TrainingTasks:
    """Read a file of training tasks, or a task file, which is one.

    The file has a field `groups`. A group is `{file: task.yaml}`, relative to the file, or options of tasks that
    `workload.generators.random_task` draws, with its option names and defaults except for these:

    - count: number of tasks to draw, 1 by default; the n-th depends only on seed and n.
    - pool: the name of a pool, or `{file: tables.yaml}`, relative to the file.
    - half, split_seed: the half of the pool to draw from (`train`, `test` or `all`), by `split_pool(pool, 0.5, split_seed)`.
    - sharding_types: the only sharding types allowed for every table.

    Raises:
        InvalidInput: a file cannot be read, breaks a rule, or has no task; the message names file, field, value and rule.
    """
    document, place = parse_document(path, "training tasks file"), Place(str(path))
    if isinstance(document, dict) and "tables" in document:
        return training_tasks([load_task(path)])
    if not isinstance(document, dict) or "groups" not in document:
        raise InvalidInput(f"{place}: {_FORM}")
    check_format(document, place, "training tasks file", FORMAT)
    content = convert(document, _TasksFile, place)
    tasks: list[Task] = []
    for index, group in enumerate(content.groups):
        tasks += _group(group, place.at(f"groups[{index}]"), Path(path).parent)
    with place.naming():
        return training_tasks(tasks)


_FORM = (
    "training tasks are a task file, or a file such as {groups: [{file: task.yaml}, {count: 50, pool: dlrm-2021, tables: 40}]}, "
    "whose groups name task files or draw tasks from a pool"
)


class _File(Struct, forbid_unknown_fields=True):
    file: str


class _Drawn(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=MOST_TASKS)] = 1
    seed: Annotated[int, Meta(ge=0)] = 0
    half: Half = "all"
    split_seed: Annotated[int, Meta(ge=0)] = 0
    pool: str | dict[str, Any] = "dlrm-2021"
    sharding_types: list[str] | UnsetType = UNSET
    tables: int | tuple[int, int] | UnsetType = UNSET
    devices: int | UnsetType = UNSET
    max_dim: int | UnsetType = UNSET
    dims: list[int] | UnsetType = UNSET
    memory: int | float | str | UnsetType = UNSET
    batch_size: int | UnsetType = UNSET
    device: str | UnsetType = UNSET
    dtype: Dtype | UnsetType = UNSET
    optimizer: Optimizer | UnsetType = UNSET
    replacement: bool | UnsetType = UNSET
    fill: float | UnsetType | None = UNSET
    scale: float | UnsetType = UNSET


_OWN = ("count", "seed", "half", "split_seed", "pool", "sharding_types")
"""Fields of a drawn group that are not options of `random_task`, or need conversion first."""


class _TasksFile(Struct, forbid_unknown_fields=True):
    groups: list[dict[str, Any]]
    format: int = FORMAT


def _group(content: dict[str, Any], place: Place, folder: Path) -> list[Task]:
    if "file" in content:
        file = convert(content, _File, place).file
        with place.naming():
            return [load_task(folder / file)]
    group = convert(content, _Drawn, place)
    pool = _pool(group, place, folder)
    options = {name: value for name, value in given(group).items() if name not in _OWN}
    with place.naming():
        drawn = [
            random_task(np.random.default_rng([group.seed, number]), pool=pool, **options)
            for number in range(group.count)
        ]
    if group.sharding_types is UNSET:
        return drawn
    with place.at("sharding_types").naming():
        return [_limited(task, tuple(group.sharding_types)) for task in drawn]


def _pool(group: _Drawn, place: Place, folder: Path) -> tuple[Table, ...]:
    if isinstance(group.pool, dict):
        file = convert(group.pool, _File, place.at("pool")).file
        with place.at("pool").naming():
            source = load_tables(folder / file)
    else:
        with place.at("pool").naming():
            source = table_pool(group.pool)
    if group.half == "all":
        return source
    with place.naming():
        train, test = split_pool(source, 0.5, group.split_seed)
    return train if group.half == "train" else test


def _limited(task: Task, kinds: tuple[str, ...]) -> Task:
    limit = TableConstraint(sharding_types=kinds)
    return replace(task, constraints=Constraints(tables={table.name: limit for table in task.tables}))


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"
