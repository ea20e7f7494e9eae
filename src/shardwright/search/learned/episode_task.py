"""What all episodes of one task in the Gymnasium environment share.

Shapes: u units.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.worlds import World, step_ms
from shardwright.search.units import Eligible, place_all
from shardwright.task.task import Task


class EpisodeTask:
    """A task, the order in which its units come up, and what a greedy placement of it costs.

    Args:
        task: the task.
        number: its number, for messages.

    Attributes:
        arrays: the task as arrays.
        batch: the task alone as a batch.

    Raises:
        InvalidInput: the task has nothing to place.
        InfeasibleTask: a table fits no device.
    """

    def __init__(self, task: Task, number: int) -> None:
        self.number = number
        self.arrays = PlacementArrays.of(task)
        if not len(self.arrays):
            raise InvalidInput(
                f"task {number} has nothing to place: the devices of all its shards are settled; leave it out"
            )
        self.batch = PlacementBatch.of([self.arrays])
        self._greedy_ms: float | None = None

    @cached_property
    def weights(self) -> Floats:
        """`(u,)` pooling factor × dim of each unit, summed over its blocks."""
        columns = [TABLE_FEATURES.index(name) for name in ("log_dim", "log_pooling")]
        sizes = np.exp(self.arrays.features[:, columns].sum(axis=1))
        return np.bincount(self.arrays.unit_of, sizes).astype(np.float64)

    @cached_property
    def order(self) -> torch.Tensor:
        """`(1, u)` the heaviest unit first."""
        return torch.from_numpy(np.argsort(-self.weights, kind="stable"))[None]

    def place_greedily(self) -> Ints:
        """`(u,)` devices when each unit goes where the least weight lies so far, of those with room.

        Raises:
            InfeasibleTask: a unit finds no room.
        """
        loads = np.zeros(self.arrays.devices)
        devices = np.zeros(len(self.arrays), dtype=np.int64)

        def choose(unit: int, eligible: Eligible) -> int:
            devices[unit] = eligible[np.argmin(loads[eligible])]
            loads[devices[unit]] += self.weights[unit]
            return int(devices[unit])

        try:
            place_all(self.arrays.task, self.arrays.units, self.order[0].tolist(), choose)
        except InfeasibleTask as error:
            raise InfeasibleTask(
                f"task {self.number}: the greedy placement that rewards are relative to fails: {error}; or take reward='balance'"
            ) from None
        return devices

    def greedy_ms(self, world: World) -> float:
        """Step time of the greedy placement; asked of the world once."""
        if self._greedy_ms is None:
            (phases,) = world.costs([(self.arrays, self.place_greedily())])
            self._greedy_ms = step_ms(phases)
        return self._greedy_ms
