"""The work of a device, the unit of measuring: its shards, their JSON form for other processes, and their timing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from shardwright.sharding.memory import buffer_bytes, optimizer_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.access import AccessProfile
from shardwright.task.task import Task

Json: TypeAlias = dict[str, Any]

QUIET = 1.5
"""Largest ratio of the machine's state to its usual state at which a visit counts as undisturbed."""

ASSUMED_ELASTICITY = 0.7
"""Elasticity assumed before any measurement; see `shardwright.measure.timing.Elasticity`."""

_PAGE = 4096


@dataclass(frozen=True)
class DeviceWork:
    """The shards of one device, in a fixed order, so that equal works are found and measured once.

    Attributes:
        works: the shards.
        seeds: the seed of each shard's lookups.
        optimizer: optimizer inside backward.
    """

    works: tuple[ShardWork, ...]
    seeds: tuple[int, ...]
    optimizer: str

    @property
    def table_bytes(self) -> int:
        """Bytes of weights and optimizer state."""
        return sum(
            work.weight_bytes + optimizer_bytes(self.optimizer, work.rows, work.dim) + 4 * _PAGE for work in self.works
        )

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the batch: ids, outputs, gradients."""
        return sum(buffer_bytes(work) for work in self.works)


@dataclass(frozen=True)
class Job:
    """A work in a queue, with the kind and label of its visits in the store.

    Attributes:
        work: the work of a device.
        kind: why it is measured: "random", "policy", "neighbour", "task", "pair", "tune" or "control".
        label: its origin: the number of a sample, or a pair and its variant (see `shardwright.modelling.dataset`).
        batch_size: samples in a batch; by default the most samples of any shard.
    """

    work: DeviceWork
    kind: str = "random"
    label: str = ""
    batch_size: int | None = None


@dataclass(frozen=True)
class Visit:
    """One timing of a device's work: built, warmed up, and run on fresh batches, some passes over each.

    Attributes:
        forward_ms: time of the lookups of all tables, mean over the batches, converted to the machine's usual state.
        backward_ms: time of the backward pass of all tables, optimizer included, averaged and converted in the same way.
        batches: number of batches.
        sentinel: state of the machine during the visit over its usual state; see `shardwright.measure.timing`.
        usual_ms: the usual state at the time of the visit: median time of the sentinel in the minutes before, in ms.
        measured_at: seconds since 1970.
        spent: seconds by step: build, batches, warm-up, runs.
        elasticity: how strongly forward and backward followed the state; see `shardwright.measure.timing`.
    """

    forward_ms: float
    backward_ms: float
    batches: int
    sentinel: float
    usual_ms: float
    measured_at: float
    spent: dict[str, float] = field(default_factory=dict)
    elasticity: tuple[float, float] = (ASSUMED_ELASTICITY, ASSUMED_ELASTICITY)

    @property
    def times_ms(self) -> tuple[float, float]:
        """Forward and backward ms."""
        return self.forward_ms, self.backward_ms

    @property
    def quiet(self) -> bool:
        """Whether no burst of other programs hit the visit."""
        return self.sentinel <= QUIET


def device_works(plan: Plan, seed: int) -> list[DeviceWork]:
    """The work of each device of a plan. The lookups of a table depend only on the seed, not on how it is sharded."""
    return [_device_work(plan.task, shards, seed) for shards in plan.by_device]


def arena_bytes(works: Iterable[DeviceWork]) -> int:
    """Bytes of memory that the tables of any of these works need."""
    return max((work.table_bytes for work in works), default=0) + _PAGE


def encode_work(work: ShardWork) -> Json:
    """A work as plain JSON values, with every point of its access profile."""
    access = [work.access.rows.tolist(), work.access.share.tolist()]
    return {part.name: getattr(work, part.name) for part in fields(work)} | {"access": access}


def decode_work(values: Mapping[str, Any]) -> ShardWork:
    """The inverse of `encode_work`; also reads files of earlier releases, which lack some fields."""
    rows, share = map(np.array, values["access"])
    access = AccessProfile(rows, share)
    return ShardWork(**{**values, "access": access, "feature_shares": tuple(values.get("feature_shares", [1.0]))})


def _device_work(task: Task, shards: Iterable[Shard], seed: int) -> DeviceWork:
    pairs = [(shard_work(task, shard), _lookup_seed(shard, seed)) for shard in shards]
    pairs.sort(key=lambda pair: (pair[1], pair[0].dim, pair[0].rows, pair[0].lookups))
    return DeviceWork(tuple(work for work, _ in pairs), tuple(number for _, number in pairs), task.optimizer)


def _lookup_seed(shard: Shard, seed: int) -> int:
    """The seed of a shard's lookups. It depends on table and rows, so column blocks, replicas and other plans see the same lookups."""
    text = f"{seed} {shard.table} {shard.rows} {shard.row_order}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
