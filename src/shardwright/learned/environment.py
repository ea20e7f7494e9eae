"""The batched environment: it places many tasks at once, one unit of each per step. All arrays are torch tensors.

Shape suffixes: e episodes, u units (padded), b blocks (padded), d devices (padded), f features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shardwright.learned.arrays import TABLE_FEATURES, PlacementArrays

UNPLACED = -1


@dataclass(frozen=True, eq=False)
class PlacementBatch:
    """Tasks padded to the same numbers of units, blocks, settled shards and devices.

    Attributes:
        tasks: one task per episode; a task may occur more than once.
        features_ebf: table features of the blocks; 0 in the padding.
        unit_eb: unit of each block; padding blocks point to `units`, one beyond the last unit.
        bytes_eu: memory that a unit takes, int64.
        unit_count_e: number of units of each task.
        allowed_eud: whether a unit may go on a device; false in the padding.
        rivals_euu: whether two units must be kept apart.
        fixed_ecf: table features of settled shards.
        fixed_ecd: whether a settled shard lies on a device.
        used_ed: memory that settled shards take, int64.
        memory_ed: memory of each device, int64; 0 in the padding.
        device_ed: whether the device exists.
    """

    tasks: tuple[PlacementArrays, ...]
    features_ebf: Tensor
    unit_eb: Tensor
    bytes_eu: Tensor
    unit_count_e: Tensor
    allowed_eud: Tensor
    rivals_euu: Tensor
    fixed_ecf: Tensor
    fixed_ecd: Tensor
    used_ed: Tensor
    memory_ed: Tensor
    device_ed: Tensor

    @classmethod
    def of(cls, tasks: Sequence[PlacementArrays]) -> PlacementBatch:
        """Pad and stack tasks."""
        units = max(len(task) for task in tasks)
        blocks = max(len(task.features) for task in tasks)
        fixed = max(len(task.fixed_features) for task in tasks)
        devices = max(task.devices for task in tasks)
        width = len(TABLE_FEATURES)
        stack = partial(_stacked, tasks)
        return cls(
            tasks=tuple(tasks),
            features_ebf=stack(lambda task: task.features, (blocks, width), np.float32),
            unit_eb=stack(lambda task: task.unit_of, (blocks,), np.int64, fill=units),
            bytes_eu=stack(lambda task: task.bytes, (units,), np.int64),
            unit_count_e=torch.tensor([len(task) for task in tasks]),
            allowed_eud=stack(lambda task: task.allowed, (units, devices), np.bool_),
            rivals_euu=stack(lambda task: task.rivals, (units, units), np.bool_),
            fixed_ecf=stack(lambda task: task.fixed_features, (fixed, width), np.float32),
            fixed_ecd=stack(lambda task: task.fixed_on, (fixed, devices), np.bool_),
            used_ed=stack(lambda task: task.used, (devices,), np.int64),
            memory_ed=stack(lambda task: task.memory, (devices,), np.int64),
            device_ed=stack(lambda task: np.ones(task.devices, dtype=bool), (devices,), np.bool_),
        )

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.unit_count_e)

    @property
    def units(self) -> int:
        """Largest number of units in a task."""
        return self.bytes_eu.shape[1]

    @property
    def devices(self) -> int:
        """Largest number of devices in a task."""
        return self.memory_ed.shape[1]

    def rows(self, index: Tensor) -> PlacementBatch:
        """The episodes that an index names, in the index's order and with its repetitions; the padding stays."""
        tensors = {name: value[index] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return PlacementBatch(tuple(self.tasks[row] for row in index.tolist()), **tensors)

    def repeat(self, times: int) -> PlacementBatch:
        """A batch with `times` adjacent copies of every task."""
        return self.rows(torch.arange(self.episodes).repeat_interleave(times))

    def by_unit(self, blocks_ebh: Tensor) -> Tensor:
        """`(e, u, h)` sums of `(e, b, h)` block encodings over the blocks of each unit."""
        return summed_at(self.unit_eb, blocks_ebh, self.units)

    def by_device(self, fixed_ech: Tensor) -> Tensor:
        """`(e, d, h)` sums of `(e, c, h)` encodings of the settled shards on each device, which it holds before the first step."""
        return torch.einsum("ech,ecd->edh", fixed_ech, self.fixed_ecd.to(fixed_ech.dtype))

    def sums(self, units_euh: Tensor, assignment_eu: Tensor) -> Tensor:
        """`(e, d, h)` sums of the `(e, u, h)` encodings of the units on each device; unplaced units count nowhere."""
        return summed_at(torch.where(assignment_eu < 0, self.devices, assignment_eu), units_euh, self.devices)


def summed_at(place_en: Tensor, values_enh: Tensor, places: int) -> Tensor:
    """`(e, places, h)` sums of the values at each place; values at `places`, one beyond the last place, count nowhere."""
    sums = values_enh.new_zeros(len(values_enh), places + 1, values_enh.shape[2])
    return sums.scatter_add(1, place_en[..., None].expand_as(values_enh), values_enh)[:, :-1]


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with minus infinity for devices outside the mask; unchanged if the mask allows no device."""
    return logits.masked_fill(~mask & mask.any(dim=-1, keepdim=True), -torch.inf)


def choices(logits: Tensor, mask: Tensor, device: Tensor) -> tuple[Tensor, Tensor]:
    """`(...)` log-probability of each choice of a device, and `(...)` entropy; both are 0 if the mask allows no device.

    Args:
        logits: `(..., d)` logits of the devices.
        mask: `(..., d)` devices to choose from.
        device: `(...)` the chosen devices; any if the mask allows none.
    """
    log = masked(logits, mask).log_softmax(dim=-1).masked_fill(~mask, 0.0)
    chosen = log.gather(-1, device[..., None])[..., 0]
    return chosen, -(log.exp() * mask * log).sum(dim=-1)


class Environment:
    """Places the units of every episode in a given order, one unit per step.

    A unit that no device may take stays unplaced; its episode goes on but has failed.

    Args:
        batch: the tasks.
        order_eu: units in the order of placement; entries beyond the task's own units are ignored.

    Attributes:
        batch: the tasks.
        step_index: number of steps made.
        assignment_eu: device of each unit, or `UNPLACED`.
        used_ed: memory taken on each device, int64.
        excess_e: bytes that unplaced units lacked, divided by the memory of the largest device; 0 unless the episode failed.
    """

    def __init__(self, batch: PlacementBatch, order_eu: Tensor) -> None:
        self.batch = batch
        self.order_eu = order_eu
        self.step_index = 0
        self.assignment_eu = torch.full_like(batch.bytes_eu, UNPLACED)
        self.used_ed = batch.used_ed.clone()
        self.excess_e = torch.zeros(batch.episodes)
        self._rows = torch.arange(batch.episodes)

    @property
    def done(self) -> bool:
        """Whether all units of all episodes have had their turn."""
        return self.step_index >= self.batch.units

    @property
    def current_e(self) -> Tensor:
        """`(e,)` the unit to place now in each episode; any number where `active_e` is false."""
        return self.order_eu[:, self.step_index]

    @property
    def active_e(self) -> Tensor:
        """`(e,)` whether the episode still has a unit to place."""
        return self.step_index < self.batch.unit_count_e

    def mask(self) -> Tensor:
        """`(e, d)` whether a device may take the current unit: the unit is allowed there, fits, and meets no rival."""
        batch, current = self.batch, self.current_e
        needed = batch.bytes_eu[self._rows, current]
        room = self.used_ed + needed[:, None] <= batch.memory_ed
        mask = batch.allowed_eud[self._rows, current] & room
        if batch.rivals_euu.any():
            rival_eu = batch.rivals_euu[self._rows, current] & (self.assignment_eu >= 0)
            held = batch.sums(rival_eu[..., None].float(), self.assignment_eu)[..., 0] > 0
            mask = mask & ~held
        return mask & self.active_e[:, None]

    def step(self, device_e: Tensor, mask_ed: Tensor | None = None) -> Tensor:
        """Place the current unit of every episode.

        Args:
            device_e: chosen device of each episode; ignored if no device may take the unit.
            mask_ed: the result of `mask` for this step, if the caller has it already.

        Returns:
            `(e,)` whether the unit was placed.

        Raises:
            ValueError: a chosen device may not take the unit.
        """
        mask_ed = self.mask() if mask_ed is None else mask_ed
        batch, current = self.batch, self.current_e
        possible = mask_ed.any(dim=1)
        if not bool(mask_ed[self._rows, device_e][possible].all()):
            raise ValueError("a chosen device may not take its unit; choose where mask() is true")
        needed = batch.bytes_eu[self._rows, current]
        missing = needed - (batch.memory_ed - self.used_ed).amax(dim=1)
        share = missing.clamp(min=1) / batch.memory_ed.amax(dim=1)
        self.excess_e = self.excess_e + torch.where(self.active_e & ~possible, share, 0.0)
        placed = torch.where(possible, device_e, self.assignment_eu[self._rows, current])
        self.assignment_eu[self._rows, current] = placed
        self.used_ed[self._rows, device_e] += torch.where(possible, needed, 0)
        self.step_index += 1
        return possible


def _stacked(
    tasks: Sequence[PlacementArrays],
    part: Callable[[PlacementArrays], npt.NDArray[Any]],
    shape: tuple[int, ...],
    dtype: type,
    fill: int = 0,
) -> Tensor:
    """The same array of every task, padded to one shape and stacked."""
    result: npt.NDArray[Any] = np.full((len(tasks), *shape), fill, dtype=dtype)
    for row, task in zip(result, tasks, strict=True):
        array = part(task)
        row[tuple(slice(size) for size in array.shape)] = array
    return torch.from_numpy(result)
