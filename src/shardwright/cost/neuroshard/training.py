"""Training the three networks as in the paper: Adam at 1e-3, batches of 512, 80/10/10, the best validation epoch kept.

The tables that samples are drawn from are augmented as in the paper, when they are measured: each table of the pool may come with any dim
of 4, 8, … 128 (see `shardwright.measure.sampling`). The loss differs: the paper's is the squared error in ms; the mean of the
absolute relative error is the default here, because times span three decades. On 8,000 sets measured on a CPU it left a mean error of
4.9% on test sets, the squared error 7.5%, and even the squared error of the times came out lower. `loss="mse"` is the paper's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from shardwright.errors import InvalidInput
from shardwright.threads import one_thread

Loss: TypeAlias = Literal["relative", "mse"]
Progress: TypeAlias = Callable[[int, float], None]
_Network = TypeVar("_Network", bound=nn.Module)


@dataclass(frozen=True)
class NeuroShardOptions:
    """How to train.

    Attributes:
        epochs: passes over the training samples.
        batch: samples per update.
        learning_rate: of Adam.
        loss: "relative", or "mse" as in the paper.
        seed: of the split, the initial weights and the order of the batches.
    """

    epochs: int = 1000
    batch: int = 512
    learning_rate: float = 1e-3
    loss: Loss = "relative"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in ("relative", "mse"):
            raise InvalidInput(f"loss is {self.loss!r}, must be 'relative' or 'mse'")
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, must be at least 1")


@dataclass(frozen=True)
class TrainingData:
    """What a network is trained on.

    Attributes:
        inputs: tensors of n rows each, the network's arguments.
        times: `(n, out)` measured ms.
    """

    inputs: tuple[Tensor, ...]
    times: Tensor


def fit(
    make: Callable[[], _Network],
    data: TrainingData,
    valid: TrainingData,
    options: NeuroShardOptions,
    progress: Progress | None = None,
) -> _Network:
    """Train a network and return it as it was after its best validation epoch.

    Args:
        make: builds the network; called with torch's seed set.
        data: training samples.
        valid: validation samples.
        options: how to train.
        progress: called after every epoch with its number and the best validation loss so far.
    """
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(options.seed)
        return _fit(make(), data, valid, options, progress)


def _fit(
    network: _Network, data: TrainingData, valid: TrainingData, options: NeuroShardOptions, progress: Progress | None
) -> _Network:
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    best, best_loss = copy.deepcopy(network), float("inf")
    for epoch in range(1, options.epochs + 1):
        for rows in torch.randperm(len(data.times), generator=generator).split(options.batch):
            optimizer.zero_grad()
            _loss(network(*(part[rows] for part in data.inputs)), data.times[rows], options.loss).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(_loss(network(*valid.inputs), valid.times, options.loss))
        if loss < best_loss:
            best, best_loss = copy.deepcopy(network), loss
        if progress is not None:
            progress(epoch, best_loss)
    return best


def _loss(predicted: Tensor, times: Tensor, kind: Loss) -> Tensor:
    return ((predicted - times) ** 2).mean() if kind == "mse" else ((predicted - times).abs() / times).mean()
