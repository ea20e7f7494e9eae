"""Sparse optimizers, as FBGEMM defines them: each updates the rows that a step touched by their summed gradient, in fp32.

With gradient g of a row w of C columns, learning rate η and step t from 1 on:

    sgd              w ← w − η g
    rowwise_adagrad  s ← s + mean(g²), one number a row;   w ← w − η g / (√s + ε)
    adagrad          s ← s + g²;                           w ← w − η g / (√s + ε)
    adam             m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  w ← w − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)

Everything is computed element by element, means included, so that replicas get the same bits regardless of the other rows in the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardwright.errors import InvalidInput
from shardwright.task.quantities import checked_number

STATES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "rowwise_adagrad": ("sum",),
    "adagrad": ("sum",),
    "adam": ("momentum", "variance"),
}
"""Names of the fp32 optimizer states of a row, by optimizer. A state is as wide as the row; with rowwise_adagrad it is one number."""


@dataclass(frozen=True)
class OptimizerOptions:
    """Hyper-parameters, with FBGEMM's defaults.

    Attributes:
        learning_rate: η.
        eps: ε.
        betas: β₁ and β₂ of adam.
    """

    learning_rate: float = 0.01
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        checked_number(self.learning_rate, "learning_rate", zero=True)
        checked_number(self.eps, "eps")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidInput(f"betas are {self.betas!r}, must be two numbers of at least 0 and below 1")


_CHUNK = 4096  # rows at once, so that intermediate results stay in the cache


def state_width(optimizer: str, dim: int) -> int:
    """Columns of each state of a row."""
    return 1 if optimizer == "rowwise_adagrad" else dim


def update(
    optimizer: str,
    options: OptimizerOptions,
    step: int,
    weights: torch.Tensor,
    states: Sequence[torch.Tensor],
    slots: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    """Update rows in place.

    Args:
        optimizer: name of the optimizer.
        options: hyper-parameters.
        step: t, from 1 on.
        weights: `(rows, dim)` fp32 or fp16.
        states: `(rows, width)` fp32 each, in the order of `STATES`.
        slots: `(n,)` distinct rows.
        gradient: `(n, dim)` fp32 summed gradients; overwritten.
    """
    some = _CHUNK if slots.device.type == "cpu" else max(slots.numel(), 1)
    for part, its_gradient in zip(slots.split(some), gradient.split(some), strict=True):
        change = _change(optimizer, options, step, states, part, its_gradient)
        rows = weights.index_select(0, part)
        weights.index_copy_(0, part, rows.to(torch.float32).sub_(change).to(weights.dtype))


def _change(
    optimizer: str,
    options: OptimizerOptions,
    step: int,
    states: Sequence[torch.Tensor],
    slots: torch.Tensor,
    gradient: torch.Tensor,
) -> torch.Tensor:
    rate, eps = options.learning_rate, options.eps
    if optimizer == "sgd":
        return gradient.mul_(rate)
    if optimizer == "adam":
        first, second = options.betas
        momentum = states[0].index_select(0, slots).mul_(first).add_(gradient, alpha=1 - first)
        variance = states[1].index_select(0, slots).mul_(second).addcmul_(gradient, gradient, value=1 - second)
        states[0].index_copy_(0, slots, momentum)
        states[1].index_copy_(0, slots, variance)
        below = variance.div_(1 - second**step).sqrt_().add_(eps)
        return momentum.mul_(rate / (1 - first**step)).div_(below)
    squares = gradient.square()
    total = states[0].index_select(0, slots).add_(_row_means(squares) if optimizer == "rowwise_adagrad" else squares)
    states[0].index_copy_(0, slots, total)
    return gradient.mul_(rate).div_(total.sqrt_().add_(eps))


def _row_means(values: torch.Tensor) -> torch.Tensor:
    """`(n, 1)` means of the rows of `(n, c)`, summed by halves: the order of a library's sums may depend on n."""
    columns = values.shape[1]
    width = columns
    while width > 1:
        half = width // 2
        odd = values[:, width - 1 : width] if width % 2 else None
        values = values[:, :half] + values[:, half : 2 * half]
        if odd is not None:
            values[:, :1] += odd
        width = half
    return values / columns
