"""Accuracy of a cost model on unseen samples, next to the noise between two measurements of the same set."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.neuroshard.model import LearnedModel
from shardwright.measure.stock import differences
from shardwright.modelling.dataset import Samples


@dataclass(frozen=True)
class Accuracy:
    """Errors over n held-out sets, of forward + backward ms unless stated otherwise.

    Attributes:
        sets: n.
        mean_error: mean absolute relative error.
        median_error: median absolute relative error.
        forward_error: mean absolute relative error of the forward time alone; None if the model predicts the sum only.
        backward_error: mean absolute relative error of the backward time alone; None if the model predicts the sum only.
        mse: mean squared error of forward + backward in ms², the figure of NeuroShard's paper.
        spearman: rank correlation of predicted and measured times.
        by_tables: mean error by range of the number of shards in the set.
        repeat_error: mean relative difference of a set measured twice; None without repeats.
    """

    sets: int
    mean_error: float
    median_error: float
    forward_error: float | None
    backward_error: float | None
    mse: float
    spearman: float
    by_tables: dict[str, float]
    repeat_error: float | None


def predict(model: LearnedModel, samples: Samples) -> Floats:
    """`(n, 2)` predicted forward and backward ms of n sets, each the sum over the set's fused calls."""
    latents, (call, owner) = model.encode_arrays(samples.works), samples.calls
    sums, times = np.zeros((len(owner), latents.shape[1])), np.zeros((len(samples), 2))
    np.add.at(sums, call, latents)
    np.add.at(times, owner, model.pricing.price(sums))
    return times


def accuracy(predicted: Floats, held_out: Samples, all_samples: Samples) -> Accuracy:
    """Errors on the first measurements in `held_out`, and repeat noise from `all_samples`.

    Args:
        predicted: `(n, 2)` forward and backward ms of the sets in `held_out`, by a model that has not seen them.
        held_out: n sets.
        all_samples: every set of the store, repeats included.
    """
    from scipy.stats import spearmanr

    firsts = held_out.repeat == 0
    predicted, measured = predicted[firsts], held_out.times[firsts]
    error = _relative(predicted.sum(axis=1), measured.sum(axis=1))
    counts = held_out.shard_counts[firsts]
    ranges = ((1, 3), (4, 7), (8, 11), (12, 15), (16, 10**9))
    by_tables = {
        f"{low}-{high}" if high < 10**9 else f"{low}+": float(error[inside].mean())
        for low, high in ranges
        if (inside := (counts >= low) & (counts <= high)).any()
    }
    return Accuracy(
        sets=len(measured),
        mean_error=float(error.mean()),
        median_error=float(np.median(error)),
        forward_error=float(_relative(predicted[:, 0], measured[:, 0]).mean()),
        backward_error=float(_relative(predicted[:, 1], measured[:, 1]).mean()),
        mse=float(((predicted - measured).sum(axis=1) ** 2).mean()),
        spearman=float(spearmanr(predicted.sum(axis=1), measured.sum(axis=1)).statistic),
        by_tables=by_tables,
        repeat_error=repeat_noise(all_samples),
    )


def repeat_noise(samples: Samples) -> float | None:
    """Mean relative difference between the two measurements of a set, which no model can beat by much; None without repeats."""
    first, second = samples.repeat_pairs()
    if not len(first):
        return None
    return float(differences(first.sum(axis=1), second.sum(axis=1)).mean())


def _relative(predicted: Floats, measured: Floats) -> Floats:
    return np.abs(predicted - measured) / measured


def accuracy_metadata(accuracy: Accuracy) -> dict[str, str]:
    """The errors as entries for a model's metadata."""
    figures: dict[str, Any] = {key: value for key, value in asdict(accuracy).items() if isinstance(value, float)}
    return {"test_sets": str(accuracy.sets)} | {key: f"{value:.5f}" for key, value in figures.items()}
