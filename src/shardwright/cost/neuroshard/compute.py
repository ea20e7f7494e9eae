"""Training NeuroShard's compute network on measured sets of tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from shardwright.cost.accuracy import accuracy, predict
from shardwright.cost.dataset import Samples
from shardwright.cost.neuroshard.features import table_features
from shardwright.cost.neuroshard.model import NeuroShardModel
from shardwright.cost.neuroshard.network import ComputeNetwork, exported
from shardwright.cost.neuroshard.training import NeuroShardOptions, Progress, TrainingData, fit
from shardwright.cost.pricing import Floats
from shardwright.cost.training import FEWEST_SETS, split
from shardwright.errors import InvalidInput

_LEAST_STD = 1e-3


@dataclass(frozen=True)
class ComputeAccuracy:
    """Errors of the compute network on sets held out, of forward + backward ms.

    Attributes:
        sets: number of sets.
        mean_error: mean absolute relative error.
        median_error: median absolute relative error.
        mse: mean squared error, ms², the paper's figure.
        spearman: rank correlation of predicted and measured times.
        by_tables: mean error by range of the number of shards in the set.
        repeat_error: mean relative difference of a set measured twice; None without repeats.
    """

    sets: int
    mean_error: float
    median_error: float
    mse: float
    spearman: float
    by_tables: dict[str, float]
    repeat_error: float | None


def train_compute(
    samples: Samples, options: NeuroShardOptions, progress: Progress | None = None
) -> tuple[NeuroShardModel, ComputeAccuracy]:
    """Train the compute network; the model has no communication networks and no metadata yet.

    The split is that of `shardwright.cost.training` with the same seed, so errors of both models are of the same sets.

    Raises:
        InvalidInput: there are fewer than 50 sets.
    """
    if len(samples) < FEWEST_SETS:
        raise InvalidInput(
            f"{len(samples)} samples are too few to train on; collect at least {FEWEST_SETS}, better 8,000"
        )
    train, valid, test = split(samples, options.seed)
    raw = table_features(train.works)
    mean, std = raw.mean(axis=0), np.maximum(raw.std(axis=0), _LEAST_STD)
    data, checked = (_padded(part, mean, std) for part in (train, valid))
    network = fit(ComputeNetwork, data, checked, options, progress)
    constants = {"feature_mean": mean.astype(np.float32), "feature_std": std.astype(np.float32)}
    model = NeuroShardModel(exported(network) | constants)
    return model, compute_accuracy(model, test, samples)


def compute_accuracy(model: NeuroShardModel, held_out: Samples, everything: Samples) -> ComputeAccuracy:
    """Errors on the first measurements in `held_out`; repeat noise from `everything`."""
    errors = accuracy(partial(predict, model), held_out, everything)
    first = held_out.select(held_out.repeat == 0)
    squared = (predict(model, first).sum(axis=1) - first.times.sum(axis=1)) ** 2
    return ComputeAccuracy(
        errors.sets,
        errors.mean_error,
        errors.median_error,
        float(squared.mean()),
        errors.spearman,
        errors.by_tables,
        errors.repeat_error,
    )


def _padded(samples: Samples, mean: Floats, std: Floats) -> TrainingData:
    """Features `(n, s, 21)` and, 1 or 0 in the padding, `(n, s)`; times `(n, 1)`."""
    x = torch.tensor((table_features(samples.works) - mean) / std, dtype=torch.float32)
    counts = samples.shard_counts
    slot = np.arange(counts.max())[None, :]
    inside = torch.tensor(slot < counts[:, None], dtype=torch.float32)
    index = torch.tensor(np.minimum(samples.starts[:-1, None] + slot, len(x) - 1))
    times = torch.tensor(samples.times.sum(axis=1, keepdims=True), dtype=torch.float32)
    return TrainingData((x[index], inside), times)
