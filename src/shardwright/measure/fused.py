"""The work of one device as fused calls, and its forward and backward time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from shardwright.measure.arena import Arena
from shardwright.measure.backend import Backend, FusedCall, FusedInput, KernelGroup, kernel_groups
from shardwright.measure.device_batches import fresh_batches
from shardwright.measure.hardware import cache_bytes
from shardwright.sharding.work import ShardWork
from shardwright.workload.batches import Batch, Scatter, draw_batch

if TYPE_CHECKING:
    import torch

_ON_CUDA = 4  # batches in turn; the clock flushes the cache as well
_GRADIENTS = 0.5e-6, 1.5e-6  # so small that optimizer state, which only grows, stays put over any number of samples


class DeviceCalls:
    """All fused calls of one device, run one after another: first all lookups, then all updates.

    The runs have as many batches in turn as it takes that none finds its own rows in a cache (see `shardwright.measure.device_batches`).

    Args:
        works: the device's shards.
        seeds: one seed per shard, for its batches.
        optimizer: optimizer inside backward.
        backend: builds the calls.
        arena: holds the tables.

    Attributes:
        batches: how many batches the runs have in turn.
        spent: seconds that it took to build the calls and to draw the batches.
    """

    def __init__(
        self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str, backend: Backend, arena: Arena
    ) -> None:
        groups = kernel_groups(works)
        self.batches = fresh_batches(works, cache_bytes()[1]) if arena.device.type == "cpu" else _ON_CUDA
        began = perf_counter()
        self._calls: list[FusedCall] = [backend.build(group, optimizer, arena) for group in groups]
        built = perf_counter()
        self._batches: list[list[FusedInput]] = [
            fused_inputs(group, [seeds[member] for member in group.members], arena.device, self.batches)
            for group in groups
        ]
        wait_for(arena.device)
        self.spent = {"build": built - began, "batches": perf_counter() - built}
        self._outputs: list[Sequence[torch.Tensor]] = []
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}

    def forward(self, batch: int) -> None:
        """Look up in a batch."""
        self._outputs = [call.forward(batches[batch]) for call, batches in zip(self._calls, self._batches, strict=True)]

    def backward(self, _: int) -> None:
        """Update with the gradients of the last lookup."""
        for position, (call, outputs) in enumerate(zip(self._calls, self._outputs, strict=True)):
            call.backward(outputs, self._gradients_like(position, outputs))

    def _gradients_like(self, position: int, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Gradients of the outputs' shapes, which differ between the batches of a sequence call."""
        return [self._gradient((position, number), output.detach()) for number, output in enumerate(outputs)]

    def _gradient(self, key: tuple[int, int], output: torch.Tensor) -> torch.Tensor:
        """The gradient of an output: the front of a buffer, which has its size after the first pass over the batches.

        Random, as a GPU may be quicker with constant data.
        """
        count = output.numel()
        if key not in self._gradients or self._gradients[key].numel() < count:
            self._gradients.pop(key, None)  # makes room before more is taken
            self._gradients[key] = output.new_empty(count).uniform_(*_GRADIENTS)
        return self._gradients[key][:count].view(output.shape)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def fused_input(group: KernelGroup, seeds: Sequence[object], device: torch.device) -> FusedInput:
    """One batch for all tables of a group; see `fused_inputs`."""
    return fused_inputs(group, seeds, device, 1)[0]


def fused_inputs(group: KernelGroup, seeds: Sequence[object], device: torch.device, batches: int) -> list[FusedInput]:
    """Batches for all tables of a group; the hot rows of a table are the same in all of them.

    Args:
        group: the tables.
        seeds: one per table: anything that `numpy.random.SeedSequence` takes.
        device: where the batches are made: by numpy for a CPU, on the GPU itself for CUDA.
        batches: how many.
    """
    if device.type == "cuda":
        from shardwright.measure.device_batches import draw_batch_on

        return [draw_batch_on(group.works, seeds, device, turn) for turn in range(batches)]
    scatters = [Scatter.draw(work.rows, _rng(seed)) for work, seed in zip(group.works, seeds, strict=True)]
    found = []
    for turn in range(batches):
        rngs = [_rng(seed, turn) for seed in seeds]
        drawn = [_as_tensors(draw_batch(*one)) for one in zip(group.works, rngs, scatters, strict=True)]
        found.append(_join(drawn) if len(drawn) > 1 else drawn[0])
    return found


def _rng(seed: object, *turn: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=turn))  # type: ignore[arg-type]


def _as_tensors(batch: Batch) -> FusedInput:
    import torch

    return FusedInput(torch.from_numpy(batch.indices), torch.from_numpy(batch.offsets))


def _join(batches: Sequence[FusedInput]) -> FusedInput:
    """The batches of several tables, one table after another."""
    import torch

    starts = [0]
    for batch in batches[:-1]:
        starts.append(starts[-1] + batch.indices.numel())
    offsets = [batch.offsets[:-1] + start for batch, start in zip(batches, starts, strict=True)]
    offsets.append(batches[-1].offsets[-1:] + starts[-1])
    return FusedInput(torch.cat([batch.indices for batch in batches]), torch.cat(offsets))
