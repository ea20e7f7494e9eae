"""Pieces of tables as arrays. Predicted times are compared in whole ticks: rounding must not decide which of two equals is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright._engine import TICKS
from shardwright.cost.model import CostModel
from shardwright.cost.score import served_bytes
from shardwright.errors import ShardwrightError
from shardwright.search.engine.blocks import Added, vectors_of
from shardwright.sharding.calls import Call, call_of
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Arrays(NamedTuple):
    """n pieces as arrays.

    Attributes:
        added: what a piece adds to the fused calls of its device.
        bytes: `(n,)` memory.
        dims: `(n,)` columns; of a colocated group, of its tables together.
        served: `(n, 2)` bytes of values and of ids.
    """

    added: Added
    bytes: Ints
    dims: Ints
    served: Floats

    def take(self, order: Ints) -> Arrays:
        """The pieces in this order."""
        return Arrays(self.added.take(order), self.bytes[order], self.dims[order], self.served[order])


def encode(task: Task, pieces: Sequence[Sequence[Shard]], cost_model: CostModel, calls: dict[Call, int]) -> Arrays:
    """The arrays of pieces given as blocks.

    Args:
        task: the task.
        pieces: the blocks of each.
        cost_model: encodes them.
        calls: the numbers of fused calls so far; new ones are added.

    Raises:
        ShardwrightError: the cost model predicted NaN.
    """
    flat = [block for blocks in pieces for block in blocks]
    works = [shard_work(task, block) for block in flat]
    begins = np.cumsum([0, *(len(blocks) for blocks in pieces)])
    call = np.array([calls.setdefault(call_of(work), len(calls)) for work in works], dtype=np.int64)
    groups = np.split(np.arange(len(flat)), begins[1:-1])
    added = Added.of_groups(call, vectors_of(cost_model, cost_model.encode(works)), groups)
    if not np.isfinite(single_ticks(added, cost_model)).all():
        raise ShardwrightError(
            f"cost model {cost_model.name} predicted NaN; it must predict finite times: train it again"
        )
    return Arrays(
        added,
        np.add.reduceat(np.array([shard_bytes(task, block) for block in flat], dtype=np.int64), begins[:-1]),
        np.add.reduceat(np.array([block.dim for block in flat], dtype=np.int64), begins[:-1]),
        np.add.reduceat(np.array([served_bytes(work) for work in works]).reshape(-1, 2), begins[:-1]),
    )


def single_ticks(added: Added, cost_model: CostModel) -> Floats:
    """`(n,)` predicted forward + backward ticks of each piece alone."""
    pricing = cost_model.pricing
    active = np.maximum(added.vectors[:, :-2] + pricing.hidden_bias, 0.0)
    times = np.maximum(active @ pricing.mix.T + added.vectors[:, -2:] + pricing.bias, 0.0)
    ticks: Floats = np.rint(added.summed(times.sum(axis=1)) * TICKS)
    return ticks
