"""A collective as calls of torch.distributed, and timing it on all ranks: a common start, the start delays, and the median of the runs.

A rank's time goes from its own start, after its delay, to its own end; so it holds the wait for ranks that start later, as in NeuroShard.

Where gloo has no algorithm of its own, torch makes the call of others: its reduce-scatter is an all-reduce of the whole buffer, of which
each rank keeps its part (ProcessGroupGloo). That is what programs on gloo get, so that is what is measured; the bytes that the store
names for it are those that have to travel (`volumes`), so its times look like those of links half as fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import monotonic_ns, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.sampling import CollectiveSample

if TYPE_CHECKING:
    import torch
from collections.abc import Sequence

from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    samples_of,
)

_MARGIN_NS = 1_000_000  # from the latest rank's arrival to the common start: time for the agreement to reach everyone
_SPIN_NS = 200_000  # the end of a wait, where cores abound: sleeping is exact to about 60 µs only


@dataclass(frozen=True)
class RunPolicy:
    """How often a collective is run; NeuroShard's numbers.

    Attributes:
        warm_up: runs that are not counted.
        runs: counted runs, of which each device's median is kept.
    """

    warm_up: int = 5
    runs: int = 10

    def __post_init__(self) -> None:
        if self.warm_up < 0 or not 1 <= self.runs < 2**15:
            raise InvalidInput(
                f"runs: warm_up {self.warm_up} must not be negative and runs {self.runs} must be between 1 and {2**15 - 1}"
            )


@dataclass(frozen=True)
class DeviceTimes:
    """Medians of one sample.

    Attributes:
        forward_ms: `(devices,)` ms of the collective; for all-to-all, of the forward pass with the start delays.
        backward_ms: `(devices,)` ms of the backward all-to-all; empty for the other kinds.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]


@dataclass(frozen=True)
class Member:
    """This process as a rank of a group that exists.

    Attributes:
        rank: its number.
        world: ranks.
        device: where its buffers lie.
        local_world: ranks on this machine. If that is all, they agree on a start by the machine's clock; else they start as a barrier
            lets them go.
    """

    rank: int
    world: int
    device: torch.device
    local_world: int

    def measure(self, sample: CollectiveSample, policy: RunPolicy) -> DeviceTimes:
        """Measure a sample; every rank of the group must call this. The same times are returned on each."""
        passes = build_passes(sample, self.rank, self.world, self.device)
        forward, backward = [], []
        for _ in range(policy.warm_up + policy.runs):
            forward.append(self._time(passes.forward, sample.delays_ms[self.rank]))
            if passes.backward is not None:
                backward.append(self._time(passes.backward, 0.0))
        mine = [median(times[policy.warm_up :]) if times else 0.0 for times in (forward, backward)]
        forward_ms, backward_ms = zip(*self._gather(mine), strict=True)
        return DeviceTimes(tuple(forward_ms), tuple(backward_ms) if backward else ())

    def _time(self, call: Callable[[], Any], delay_ms: float) -> float:
        """Milliseconds of one call after the common start and this rank's delay."""
        self._wait_until(self._common_start() + round(delay_ms * 1e6))
        if self.device.type == "cpu":
            started = perf_counter()
            call()
            return (perf_counter() - started) * 1e3
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(begin.elapsed_time(end))

    def _common_start(self) -> int:
        """When to start, by this machine's monotonic clock in ns. No rank gets it before all have asked."""
        import torch
        import torch.distributed as dist

        latest = torch.tensor([monotonic_ns()], device=self.device)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        arrived = int(latest)  # waits for the device
        return arrived + _MARGIN_NS if self.local_world == self.world else monotonic_ns()

    def _wait_until(self, instant: int) -> None:
        """Sleep; and spin at the end, unless that would take a core from a rank that is already exchanging."""
        spin = _SPIN_NS if 2 * self.local_world <= (os.cpu_count() or 1) else 0
        left = instant - monotonic_ns() - spin
        if left > 0:
            sleep(left / 1e9)
        while monotonic_ns() < instant:
            pass

    def _gather(self, mine: list[float]) -> list[list[float]]:
        """`(devices, 2)` times of all ranks."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(mine, dtype=torch.float64, device=self.device)
        all_ = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(all_, own)
        return [times.tolist() for times in all_]


@dataclass(frozen=True)
class Passes:
    """The calls of one sample on one rank.

    Attributes:
        forward: the collective; for all-to-all, that of the forward pass.
        backward: the all-to-all of the backward pass; None for the other kinds.
        outputs: what the calls write, one buffer a pass.
    """

    forward: Callable[[], Any]
    backward: Callable[[], Any] | None
    outputs: Sequence[torch.Tensor]


def build_passes(sample: CollectiveSample, rank: int, world: int, device: torch.device) -> Passes:
    """The calls of a sample, for one rank of a group that exists. Every input value is the number of the rank that sends it."""
    if sample.kind == ALL_TO_ALL:
        return _all_to_all(sample, rank, world, device)
    import torch
    import torch.distributed as dist

    share = sample.elements // world
    whole = torch.full((sample.elements,), float(rank), device=device)
    part = torch.full((share,), float(rank), device=device)
    if sample.kind == ALL_GATHER:
        gather = _named("all_gather_single", "all_gather_into_tensor")
        return Passes(lambda: gather(whole, part), None, [whole])
    if sample.kind == REDUCE_SCATTER:
        scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
        return Passes(lambda: scatter(part, whole), None, [part])
    return Passes(lambda: dist.all_reduce(whole), None, [whole])


def _all_to_all(sample: CollectiveSample, rank: int, world: int, device: torch.device) -> Passes:
    """Forward: this rank's columns of everybody's samples go out, everybody's columns of its samples come in. Backward: back."""
    import torch
    import torch.distributed as dist

    counts = samples_of(sample.batch_size, world)
    out_splits = [sample.dims[rank] * count for count in counts]
    in_splits = [dim * counts[rank] for dim in sample.dims]
    values = torch.full((sum(out_splits),), float(rank), device=device)
    pooled = torch.empty(sum(in_splits), device=device)
    gradients = torch.full((sum(in_splits),), float(rank), device=device)
    collected = torch.empty(sum(out_splits), device=device)
    return Passes(
        lambda: dist.all_to_all_single(pooled, values, in_splits, out_splits),
        lambda: dist.all_to_all_single(collected, gradients, out_splits, in_splits),
        [pooled, collected],
    )


def _named(name: str, older: str) -> Callable[..., Any]:
    """A function of torch.distributed under its present name, or the one it had before torch 2.13."""
    import torch.distributed as dist

    found: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, older)
    return found
