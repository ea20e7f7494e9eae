"""A sample as calls of torch.distributed on buffers of this rank.

Where gloo has no algorithm of its own, torch makes the call of others: its reduce-scatter is an all-reduce of the whole buffer, of which
each rank keeps its part (ProcessGroupGloo). That is what programs on gloo get, so that is what is measured; the bytes that the store
names for it are those that have to travel (`volumes`), so its times look like those of links half as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    CollectiveSample,
    samples_of,
)

if TYPE_CHECKING:
    import torch


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
