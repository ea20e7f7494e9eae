"""The replay buffer that AutoShard's cost network learns from: sets of blocks and the time that each set takes on a device in the world.

The buffer drops the oldest sets. Varied copies of the training tasks, with other pooling factors and fewer rows, let a few hundred tables
teach the costs of any table.

Shape suffixes: s shards of a batch, n blocks of all of them, f features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shardwright.learned.arrays import Floats, Ints, PlacementArrays, features_of
from shardwright.learned.checkpoints import check_count, check_range, check_tensor
from shardwright.task.table import Table
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.learned.autoshard.network import AutoShardNetwork

SPREAD = 0.6
"""Standard deviation of the logarithms of the random factors for pooling factors and rows."""


def with_variations(tasks: Sequence[PlacementArrays], copies: int, rng: np.random.Generator) -> list[PlacementArrays]:
    """The tasks and `copies` varied copies of each; a copy that cannot be placed is left out."""
    copied = (varied(task.task, rng) for _ in range(copies) for task in tasks)
    return [*tasks, *PlacementArrays.of_placeable(copied)]


def varied(task: Task, rng: np.random.Generator) -> Task:
    """The task with every table's pooling factor multiplied by a random factor and its rows reduced at random."""
    return replace(task, tables=tuple(_varied_table(table, rng) for table in task.tables))


def _varied_table(table: Table, rng: np.random.Generator) -> Table:
    more_lookups, fewer_rows = np.exp(SPREAD * rng.standard_normal()), np.exp(-SPREAD * abs(rng.standard_normal()))
    return replace(table.scaled_rows(float(fewer_rows)), pooling=float(table.pooling * more_lookups))


NONE = -1


class ShardBatch(NamedTuple):
    """Sets of blocks with their costs.

    Attributes:
        features_nf: table features of the blocks of all sets, one set after another.
        owner_n: number of the set that each block belongs to.
        cost_s: forward + backward ms.
    """

    features_nf: Tensor
    owner_n: Tensor
    cost_s: Tensor

    def sums(self, encodings_nh: Tensor) -> Tensor:
        """`(s, h)` sums of the blocks' encodings over each set."""
        zeros = encodings_nh.new_zeros(len(self.cost_s), encodings_nh.shape[1])
        return zeros.index_add(0, self.owner_n, encodings_nh)

    def predicted(self, network: AutoShardNetwork) -> Tensor:
        """`(s,)` costs that a network predicts for the sets, in units of its `cost_scale`."""
        return network.relative_cost(self.sums(network.encode(self.features_nf)))


class ReplayBuffer:
    """A ring buffer of device shards: the sets of blocks that lay on one device.

    Args:
        tasks: the training tasks; a set is stored as the numbers of its blocks.
        capacity: largest number of sets kept.

    Attributes:
        blocks: `(capacity, width)` numbers of each set's blocks, padded with `NONE`.
        costs: `(capacity,)` forward + backward ms of each set.
        added: number of sets ever added.
    """

    def __init__(self, tasks: Sequence[PlacementArrays], capacity: int) -> None:
        self._features = torch.from_numpy(features_of(tasks).astype(np.float32))
        sizes = [len(task.features) + len(task.fixed_features) for task in tasks]
        self._begin = dict(zip(map(id, tasks), np.cumsum([0, *sizes]).tolist(), strict=False))
        self.blocks: npt.NDArray[np.int64] = np.full((capacity, max(sizes)), NONE, dtype=np.int64)
        self.costs: npt.NDArray[np.float32] = np.zeros(capacity, dtype=np.float32)
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, len(self.costs))

    def add(self, task: PlacementArrays, assignment: Ints, compute: Floats) -> None:
        """Add a set for each device of a placement that holds anything.

        Args:
            task: one of the training tasks.
            assignment: `(n,)` device of each unit.
            compute: `(d,)` forward + backward ms of each device.
        """
        on = np.concatenate([assignment[task.unit_of][:, None] == np.arange(task.devices), task.fixed_on])
        for device in np.flatnonzero(on.any(axis=0)):
            held = self._begin[id(task)] + np.flatnonzero(on[:, device])
            slot = self.added % len(self.costs)
            self.blocks[slot] = NONE
            self.blocks[slot, : len(held)] = held
            self.costs[slot] = compute[device]
            self.added += 1

    def tensors(self) -> dict[str, Tensor]:
        """The stored sets and costs, for a checkpoint."""
        return {"blocks": torch.from_numpy(self.blocks), "costs": torch.from_numpy(self.costs)}

    def counts(self) -> dict[str, int]:
        """The number of sets ever added, for a checkpoint."""
        return {"added": self.added}

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Replace the content by that of a saved buffer for the same tasks and of the same capacity.

        Raises:
            KeyError, ValueError: a tensor is missing or has another shape, or names blocks that no task has.
        """
        highest = {"blocks": (NONE, len(self._features) - 1), "costs": (0, torch.finfo(torch.float32).max)}
        for name, own in self.tensors().items():
            check_tensor(name, tensors[name], own)
            check_range(name, tensors[name], *highest[name])
        self.added = check_count("added", counts["added"])
        self.blocks[:], self.costs[:] = tensors["blocks"].numpy(), tensors["costs"].numpy()

    def draw(self, count: int, rng: np.random.Generator) -> ShardBatch:
        """`count` random sets, with replacement."""
        return self._batch(rng.integers(len(self), size=count))

    def all(self) -> ShardBatch:
        """All stored sets."""
        return self._batch(np.arange(len(self)))

    def _batch(self, chosen: Ints) -> ShardBatch:
        held = self.blocks[chosen] != NONE
        owner, _ = np.nonzero(held)
        features = self._features[torch.from_numpy(self.blocks[chosen][held])]
        return ShardBatch(features, torch.from_numpy(owner), torch.from_numpy(self.costs[chosen]))
