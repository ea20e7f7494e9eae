"""The training loop of all networks: Adam over batches; the weights of the best validation epoch are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

Progress: TypeAlias = Callable[[int, float], None]
"""Progress callback after each epoch: its number, and the best validation loss so far."""

Network = TypeVar("Network", bound=nn.Module)
Judged_contra = TypeVar("Judged_contra", bound=nn.Module, contravariant=True)


class Stack(nn.ModuleList):
    """Linear layers with ReLUs between them, none after the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        """`(..., out)` outputs of `(..., in)` inputs."""
        for index, layer in enumerate(self):
            x = layer(torch.relu(x) if index else x)
        return x


class Data(Protocol[Judged_contra]):
    """n measured samples to train on."""

    def __len__(self) -> int: ...

    def batches(self, size: int, generator: torch.Generator) -> Iterable[Tensor]:
        """All samples once, in random order, as rows of about `size` samples."""
        ...

    def loss(self, network: Judged_contra, rows: Tensor) -> Tensor:
        """The loss of a network on some samples."""
        ...


@dataclass(frozen=True)
class Fit(Generic[Network]):
    """Fits a network to samples.

    Attributes:
        epochs: most passes over the samples.
        batch: samples per update.
        rate: learning rate of Adam.
        seed: seed of the order of the batches.
        patience: stop when the validation loss has not fallen for this many epochs; None to run all epochs.
        cosine: whether the learning rate falls to 0 along a cosine.
        most_norm: larger gradients are scaled down to this norm; None for no limit.
        average: share of the newest weights in a running average, which is validated and returned; None for no average.
        constrain: brings the weights back into their bounds after each update.
    """

    epochs: int
    batch: int
    rate: float
    seed: int
    patience: int | None = None
    cosine: bool = False
    most_norm: float | None = None
    average: float | None = None
    constrain: Callable[[Network], None] = lambda network: None

    def __call__(
        self, network: Network, data: Data[Network], valid: Data[Network] | None, progress: Progress | None = None
    ) -> tuple[Network, int]:
        """The network after the epoch with the least validation loss (without validation: the last epoch), and the epochs run."""
        generator = torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs) if self.cosine else None
        judged = network if self.average is None else copy.deepcopy(network)
        best, best_loss, best_epoch, epoch = judged if valid is None else copy.deepcopy(judged), float("inf"), 0, 0
        for epoch in range(1, self.epochs + 1):
            for rows in data.batches(self.batch, generator):
                descend(network, optimizer, data.loss(network, rows), self.most_norm)
                self.constrain(network)
                if self.average is not None:
                    _move_towards(judged, network, self.average)
            if scheduler is not None:
                scheduler.step()
            if valid is None:
                continue
            with torch.no_grad():
                loss = float(valid.loss(judged, torch.arange(len(valid))))
            if loss < best_loss:
                best, best_loss, best_epoch = copy.deepcopy(judged), loss, epoch
            if progress is not None:
                progress(epoch, best_loss)
            if self.patience is not None and epoch - best_epoch >= self.patience:
                break
        return best, epoch


def descend(network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, most_norm: float | None = None) -> None:
    """Make one optimizer step on a loss, after scaling gradients down to a norm."""
    network.zero_grad()
    loss.backward()
    if most_norm is not None:
        nn.utils.clip_grad_norm_(network.parameters(), most_norm)
    optimizer.step()


@torch.no_grad()
def _move_towards(average: nn.Module, network: nn.Module, share: float) -> None:
    """Move a running average towards a network's weights; the average is steadier than the last step's weights."""
    for kept, new in zip(average.parameters(), network.parameters(), strict=True):
        kept.lerp_(new, share)
