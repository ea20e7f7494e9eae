"""What fused calls should compute, in float64 and the plainest way: the reference that kernels are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from shardwright.measure.backend import EPSILON, FusedInput
from shardwright.measure.groups import KernelGroup

_BETA1, _BETA2 = 0.9, 0.999


@dataclass(frozen=True)
class Lookups:
    """The lookups of one table.

    Attributes:
        ids: `(n,)` rows.
        samples: `(n,)` the sample each lookup belongs to.
    """

    ids: torch.Tensor
    samples: torch.Tensor


def lookups_of(group: KernelGroup, batch: FusedInput) -> list[Lookups]:
    """The lookups of each table of a group."""
    samples, starts = group.samples, batch.offsets[:: group.samples].tolist()
    sizes = batch.offsets.diff().view(-1, samples)
    bag = torch.arange(samples, device=sizes.device)
    return [
        Lookups(batch.indices[start:stop], torch.repeat_interleave(bag, sizes[table]))
        for table, (start, stop) in enumerate(pairwise(starts))
    ]


def forward(group: KernelGroup, weights: Sequence[torch.Tensor], lookups: Sequence[Lookups]) -> list[torch.Tensor]:
    """Per table `(samples, dim)` sums, or `(n, dim)` rows where not pooled, of `(rows, dim)` weights in float64."""
    if not group.pooled:
        return [table[found.ids] for table, found in zip(weights, lookups, strict=True)]
    return [
        table.new_zeros(group.samples, table.shape[1]).index_add_(0, found.samples, table[found.ids])
        for table, found in zip(weights, lookups, strict=True)
    ]


def updated(
    optimizer: str,
    weights: torch.Tensor,
    state: Sequence[torch.Tensor],
    found: Lookups,
    gradient: torch.Tensor,
    *,
    pooled: bool,
    rate: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Weights and state of a table after one step, all in float64: the gradients of a row are summed first ("exact").

    Args:
        optimizer: "sgd", "rowwise_adagrad", "adagrad" or "adam". Adam is that of a late step, where the bias corrections have gone
            to 1, and of the rows looked up: state and weights of the others stay.
        weights: `(rows, dim)`.
        state: by kind: nothing, `(rows,)` sums of mean squares, `(rows, dim)` sums of squares, or `(rows, dim)` first and second moments.
        found: the lookups.
        gradient: `(samples, dim)` of the sums, or `(n, dim)` of the rows where not pooled.
        pooled: whether rows were summed.
        rate: learning rate.
    """
    spread = gradient[found.samples] if pooled else gradient
    summed = torch.zeros_like(weights).index_add_(0, found.ids, spread)
    if optimizer == "sgd":
        return weights - rate * summed, []
    if optimizer == "adagrad":
        total = state[0] + summed.square()
        return weights - rate * summed / (total.sqrt() + EPSILON), [total]
    if optimizer == "adam":
        touched = torch.zeros(len(weights), 1, dtype=torch.bool, device=weights.device)
        touched[found.ids] = True
        first = torch.where(touched, _BETA1 * state[0] + (1 - _BETA1) * summed, state[0])
        second = torch.where(touched, _BETA2 * state[1] + (1 - _BETA2) * summed.square(), state[1])
        step = first / (second.sqrt() + EPSILON)
        return torch.where(touched, weights - rate * step, weights), [first, second]
    total = state[0] + summed.square().mean(dim=1)
    return weights - rate * summed / (total.sqrt() + EPSILON)[:, None], [total]
