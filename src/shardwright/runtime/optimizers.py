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
"""Names of the fp32 optimizer states of a row, by optimizer."""

_CHUNK = 4096  # rows at once, so that intermediate results stay in the cache


@dataclass(frozen=True)
class Optimizer:
    """An optimizer and its hyper-parameters, with FBGEMM's defaults.

    Attributes:
        name: name of the optimizer.
        learning_rate: η.
        eps: ε.
        betas: β₁ and β₂ of adam.
    """

    name: str
    learning_rate: float = 0.01
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        checked_number(self.learning_rate, "learning_rate", zero=True)
        checked_number(self.eps, "eps")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidInput(f"betas are {self.betas!r}, must be two numbers of at least 0 and below 1")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states of a row."""
        return STATES[self.name]

    @property
    def by_row(self) -> bool:
        """Whether a state is one number a row; else it is as wide as the row."""
        return self.name == "rowwise_adagrad"

    def update(
        self,
        step: int,
        weights: torch.Tensor,
        states: Sequence[torch.Tensor],
        slots: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Update rows in place.

        Args:
            step: t, from 1 on.
            weights: `(rows, dim)` fp32 or fp16.
            states: `(rows, width)` fp32 each, in the order of `states`.
            slots: `(n,)` distinct rows.
            gradient: `(n, dim)` fp32 summed gradients; overwritten.
        """
        some = _CHUNK if slots.device.type == "cpu" else max(slots.numel(), 1)
        for part, its_gradient in zip(slots.split(some), gradient.split(some), strict=True):
            change = self._change(step, states, part, its_gradient)
            rows = weights.index_select(0, part)
            weights.index_copy_(0, part, rows.to(torch.float32).sub_(change).to(weights.dtype))

    def _change(
        self, step: int, states: Sequence[torch.Tensor], slots: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        if self.name == "sgd":
            return gradient.mul_(self.learning_rate)
        if self.name == "adam":
            first, second = self.betas
            momentum = states[0].index_select(0, slots).mul_(first).add_(gradient, alpha=1 - first)
            variance = states[1].index_select(0, slots).mul_(second).addcmul_(gradient, gradient, value=1 - second)
            states[0].index_copy_(0, slots, momentum)
            states[1].index_copy_(0, slots, variance)
            below = variance.div_(1 - second**step).sqrt_().add_(self.eps)
            return momentum.mul_(self.learning_rate / (1 - first**step)).div_(below)
        squares = gradient.square()
        total = states[0].index_select(0, slots).add_(_row_means(squares) if self.by_row else squares)
        states[0].index_copy_(0, slots, total)
        return gradient.mul_(self.learning_rate).div_(total.sqrt_().add_(self.eps))


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
