"""Train NeuroShard's three networks as in the paper: Adam at 1e-3, batches of 512, an 80/10/10 split, the best validation epoch.

As in the paper, measuring augments the tables: each table of the pool may come with any dim of 4, 8, … 128 (see
`shardwright.measure.sampling`). The loss differs: the paper uses the squared error in ms, we use the mean absolute relative error, because
times span three decades.

Shape suffixes: b samples, s tables of a set, f features, d devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.arrays import Floats
from shardwright.cost.model import HEAD_HIDDEN, HIDDEN, LATENT
from shardwright.cost.neuroshard.model import (
    SIZES,
    TABLE_FEATURES,
    CommunicationNetworks,
    NeuroShardModel,
    Weights,
    megabytes,
    table_features,
)
from shardwright.errors import InvalidInput
from shardwright.modelling.accuracy import Accuracy, accuracy, predict
from shardwright.modelling.dataset import Samples, split
from shardwright.modelling.fitting import Fit, Progress, Stack
from shardwright.modelling.neuroshard_collectives import PASSES, Collectives, PassErrors, errors_of, repeat_error
from shardwright.modelling.training import check_enough
from shardwright.options import Options, number, whole
from shardwright.threads import one_thread

_Network = TypeVar("_Network", bound=nn.Module)


class SetNetwork(nn.Module):
    """Encoder, sum and head: fused forward + backward ms of a set of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Stack((len(TABLE_FEATURES), HIDDEN, LATENT))
        self.head = Stack((LATENT, HEAD_HIDDEN, 1))

    def forward(self, x_bsf: Tensor, inside_bs: Tensor) -> Tensor:
        """`(b, 1)` ms of b sets; `inside_bs` is 1 for tables and 0 in the padding."""
        sums = (torch.relu(self.encoder(x_bsf)) * inside_bs[..., None]).sum(dim=1)
        times: Tensor = self.head(sums)
        return times


def exported(network: nn.Module, prefix: str = "") -> Weights:
    """The arrays of a network as numpy arrays."""
    return {prefix + name: value.detach().numpy().astype(np.float32) for name, value in network.named_parameters()}


@dataclass(frozen=True)
class NeuroShardOptions(Options):
    """Options of the training.

    Attributes:
        epochs: passes over the training samples.
        batch: samples per update.
        learning_rate: learning rate of Adam.
        seed: seed of the split, the initial weights and the order of the batches.
    """

    epochs: int = whole(1000)
    batch: int = whole(512)
    learning_rate: float = number(1e-3)
    seed: int = whole(0, least=0)


@dataclass(frozen=True)
class TrainingData:
    """The samples that a network is trained on.

    Attributes:
        inputs: the network's arguments, tensors of n rows each.
        times: `(n, out)` measured ms.
    """

    inputs: tuple[Tensor, ...]
    times: Tensor

    def __len__(self) -> int:
        return len(self.times)

    def batches(self, size: int, generator: torch.Generator) -> Sequence[Tensor]:
        """All rows once, in random order."""
        return list(torch.randperm(len(self), generator=generator).split(size))

    def loss(self, network: nn.Module, rows: Tensor) -> Tensor:
        """Mean relative error of a network on some rows."""
        error: Tensor = network(*(part[rows] for part in self.inputs)) - self.times[rows]
        return (error.abs() / self.times[rows]).mean()


def _fitted(
    make: Callable[[], _Network],
    data: TrainingData,
    valid: TrainingData,
    options: NeuroShardOptions,
    progress: Progress | None,
) -> _Network:
    """Train the network that `make` builds; return it as it was after its best validation epoch."""
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(options.seed)
        fit: Fit[_Network] = Fit(options.epochs, options.batch, options.learning_rate, options.seed)
        return fit(make(), data, valid, progress)[0]


# Least standard deviations of features and of volumes: features that are constant in training are not divided by 0.
_LEAST_STD, _LEAST_VOLUME_STD = 1e-3, 1e-6


def train_compute(
    samples: Samples, options: NeuroShardOptions, progress: Progress | None = None
) -> tuple[NeuroShardModel, Accuracy]:
    """Train the compute network; the returned model has no communication networks and no metadata yet.

    The split is that of `shardwright.modelling.training` with the same seed, so the errors of both models are over the same sets. The
    network predicts forward and backward together, so there are no errors of one alone.

    Raises:
        InvalidInput: there are fewer than 50 sets.
    """
    check_enough(samples)
    train, valid, test = map(samples.select, split(samples.sample, options.seed))
    raw = table_features(train.works)
    mean, std = raw.mean(axis=0), np.maximum(raw.std(axis=0), _LEAST_STD)
    data, checked = (_padded(part, mean, std) for part in (train, valid))
    network = _fitted(SetNetwork, data, checked, options, progress)
    constants = {"feature_mean": mean.astype(np.float32), "feature_std": std.astype(np.float32)}
    model = NeuroShardModel(exported(network) | constants)
    errors = accuracy(predict(model, test), test, samples)
    return model, replace(errors, forward_error=None, backward_error=None)


def _padded(samples: Samples, mean: Floats, std: Floats) -> TrainingData:
    """Features `(n, s, 21)`, mask `(n, s)` (1 for tables, 0 in the padding), and times `(n, 1)`."""
    x = torch.tensor((table_features(samples.works) - mean) / std, dtype=torch.float32)
    counts = samples.shard_counts
    slot = np.arange(counts.max())[None, :]
    inside = torch.tensor(slot < counts[:, None], dtype=torch.float32)
    index = torch.tensor(np.minimum(samples.starts[:-1, None] + slot, len(x) - 1))
    times = torch.tensor(samples.times.sum(axis=1, keepdims=True), dtype=torch.float32)
    return TrainingData((x[index], inside), times)


FEWEST_COLLECTIVES = 50


@dataclass(frozen=True)
class TrainedCommunication:
    """Communication networks and their errors on the test collectives.

    Attributes:
        networks: the networks for every measured number of devices.
        errors: errors by label of the collectives, as in "4 devices", and by pass: "all_to_all_forward", "all_to_all_backward".
    """

    networks: CommunicationNetworks
    errors: dict[str, dict[str, PassErrors]]


def train_communication(
    parts: Sequence[Collectives], options: NeuroShardOptions, progress: Progress | None = None
) -> TrainedCommunication:
    """Train a forward and a backward network for each number of devices.

    Args:
        parts: measured collectives, one entry for each number of devices.
        options: how to train; the split is that of `shardwright.modelling.dataset.split` with the same seed.
        progress: called after every epoch of every network.

    Raises:
        InvalidInput: there are no all-to-alls, or fewer than 50 for a number of devices.
    """
    filled = [part for part in parts if len(part)]
    _check(filled)
    weights: Weights = {}
    for part in filled:
        for name in PASSES:
            weights |= _train(part, name, options, progress)
    sizes, counts = np.unique(np.concatenate([part.batch_size for part in filled]), return_counts=True)
    devices = tuple(part.devices for part in filled)
    networks = CommunicationNetworks(weights, devices, int(sizes[counts.argmax()]))
    return TrainedCommunication(networks, {part.label: _errors(networks, part, options.seed) for part in filled})


def predict_passes(networks: CommunicationNetworks, part: Collectives) -> dict[str, Floats]:
    """`(n, D)` predicted ms of the forward and the backward pass of n all-to-alls."""
    result = {name: np.zeros_like(part.dims) for name in PASSES}
    for size in np.unique(part.batch_size):
        rows = part.batch_size == size
        result["forward"][rows] = networks.forward_ms(part.dims[rows], part.delays[rows], int(size))
        result["backward"][rows] = networks.backward_ms(part.dims[rows], int(size))
    return result


def _check(parts: Sequence[Collectives]) -> None:
    if not parts:
        raise InvalidInput(
            "the sample stores hold no all_to_all; collect some first: shardwright collect --collectives"
        )
    for part in parts:
        if len(part) < FEWEST_COLLECTIVES:
            raise InvalidInput(
                f"{len(part)} all-to-alls of {part.devices} devices are too few to train on; collect at least {FEWEST_COLLECTIVES}, "
                "better thousands"
            )


def _train(part: Collectives, name: str, options: NeuroShardOptions, progress: Progress | None) -> Weights:
    """Train one network; return its arrays."""
    train, valid, _ = map(part.select, split(part.sample, options.seed))
    raw = _inputs(train, name)
    mean, std = raw.mean(axis=0), np.maximum(raw.std(axis=0), _LEAST_VOLUME_STD)
    data, checked = (
        TrainingData(
            (torch.tensor((_inputs(half, name) - mean) / std, dtype=torch.float32),),
            torch.tensor(getattr(half, name), dtype=torch.float32),
        )
        for half in (train, valid)
    )
    network = _fitted(lambda: Stack((len(mean), *SIZES, part.devices)), data, checked, options, progress)
    prefix = f"communication.{part.devices}.{name}."
    constants = {f"{prefix}mean": mean.astype(np.float32), f"{prefix}std": std.astype(np.float32)}
    return exported(network, prefix) | constants


def _inputs(part: Collectives, name: str) -> Floats:
    """Forward pass: `(n, 2 D)` MB of values, then delays in ms from the first start. Backward pass: `(n, D)` MB of values."""
    sizes = megabytes(part.dims, part.batch_size[:, None])
    if name == "backward":
        return sizes
    return np.hstack([sizes, part.delays - part.delays.min(axis=1, keepdims=True)])


def _errors(networks: CommunicationNetworks, part: Collectives, seed: int) -> dict[str, PassErrors]:
    """Errors on the first measurements of the test collectives."""
    first = part.select(split(part.sample, seed)[2] & (part.repeat == 0))
    predicted = predict_passes(networks, first)
    return {
        f"all_to_all_{name}": errors_of(predicted[name].ravel(), getattr(first, name).ravel(), repeat_error(part, name))
        for name in PASSES
    }
