"""What fused calls should hand out and compute: views of the right shapes and types, and values in float64, the plainest way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from shardwright.errors import InvalidInput
from shardwright.measure.backend import EPSILON, FusedCall, FusedInput, KernelGroup

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


_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_BY_ROW = {"sgd": (), "rowwise_adagrad": (True,), "adagrad": (False,), "adam": (False, False)}
"""Per optimizer and kind of state: whether it is one number a row, or one an element."""


def check_views(group: KernelGroup, optimizer: str, call: FusedCall) -> None:
    """Check the views of weights and state.

    Raises:
        InvalidInput: one is missing, or has another shape or type than it must have.
    """
    weights = call.weights()
    _count("weights()", len(weights), len(group.works), "tensor for each table")
    for table, (found, work) in enumerate(zip(weights, group.works, strict=True)):
        _shape(f"weights()[{table}]", found, (work.rows, work.dim), "(rows, dim)")
        if found.dtype != _DTYPES[work.dtype]:
            raise InvalidInput(f"weights()[{table}] is of {found.dtype}, must be of {_DTYPES[work.dtype]}")
    state = call.state()
    _count("state()", len(state), len(_BY_ROW[optimizer]), f"list for each kind of state that {optimizer} has")
    for kind, (tensors, by_row) in enumerate(zip(state, _BY_ROW[optimizer], strict=True)):
        _count(f"state()[{kind}]", len(tensors), len(group.works), "tensor for each table")
        for table, (found, work) in enumerate(zip(tensors, group.works, strict=True)):
            shape, means = ((work.rows,), "(rows,)") if by_row else ((work.rows, work.dim), "(rows, dim)")
            _shape(f"state()[{kind}][{table}]", found, shape, means)


def check_outputs(group: KernelGroup, lookups: Sequence[Lookups], outputs: Sequence[torch.Tensor]) -> None:
    """Check the shapes of what was looked up.

    Raises:
        InvalidInput: one is of another shape than it must have.
    """
    dims, sizes = [work.dim for work in group.works], [found.ids.numel() for found in lookups]
    if len(outputs) == 1 and len(dims) > 1:
        shape = (group.samples, sum(dims)) if group.pooled else (sum(sizes), dims[0])
        _shape("the one output of forward", outputs[0], shape, "(samples, sum of dims)" if group.pooled else "(n, dim)")
        return
    _count("forward", len(outputs), len(dims), "output for each table, or one for all")
    for table, (found, dim, size) in enumerate(zip(outputs, dims, sizes, strict=True)):
        shape = (group.samples if group.pooled else size, dim)
        _shape(f"output {table} of forward", found, shape, "(samples, dim)" if group.pooled else "(lookups, dim)")


def _count(what: str, found: int, wanted: int, rule: str) -> None:
    if found != wanted:
        raise InvalidInput(f"{what} has {found} entries, must have {wanted}: a {rule}")


def _shape(what: str, found: torch.Tensor, wanted: tuple[int, ...], means: str) -> None:
    if tuple(found.shape) != wanted:
        raise InvalidInput(f"{what} has the shape {tuple(found.shape)}, must have {wanted}: {means}")
