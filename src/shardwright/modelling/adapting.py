"""Train a model from few samples: adapt a model of another machine or train from scratch, whichever predicts better.

Too few samples cannot be split for training, stopping and testing. So each recipe is cross-validated: it trains on all parts but one, for
a fixed number of updates, and predicts the part left out; the error is taken over all parts. So each set is predicted by a model that has
not seen it, and every set still serves for training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.model import WIDE, ComputeModel
from shardwright.modelling.accuracy import Accuracy, accuracy, predict
from shardwright.modelling.dataset import Samples, pairs_of
from shardwright.modelling.gpu_parts import Width

if TYPE_CHECKING:
    from shardwright.modelling.training import TrainingOptions

Recipe: TypeAlias = Callable[[Samples, int, float], ComputeModel]
"""Makes a model from samples, a seed, and the effort as a share of the usual updates."""

FEWEST_SETS = 30
"""Fewest sets that a model is trained on."""

FEWEST_SCALING = 5
"""Fewest sets that a model learned elsewhere is scaled by."""

_BATCH = 64
_UPDATES, _FINE_UPDATES = 500, 300
_RATE, _FINE_RATE = 4e-3, 1e-3


@dataclass(frozen=True)
class Validated:
    """A recipe after cross-validation.

    Attributes:
        name: name of the recipe.
        recipe: makes a model and scales it by the medians of measured over predicted, since a model trained on relative errors predicts too
            low.
        models: one model for each part, trained on all other parts.
        accuracy: errors over all sets, each predicted by the model that has not seen it, after the same scaling.
        predicted: `(n, 2)` these predictions, forward and backward ms.
    """

    name: str
    recipe: Recipe
    models: tuple[ComputeModel, ...]
    accuracy: Accuracy
    predicted: Floats


def recipes(start: ComputeModel | None, caches: tuple[int, int], width: Width = "own") -> dict[str, Recipe]:
    """The recipes for a model, by name.

    Args:
        start: a model that was learned elsewhere; if None, "from nothing" is the only recipe.
        caches: bytes of the caches of the measuring machine.
        width: see `TrainingOptions`.
    """

    def from_nothing(samples: Samples, seed: int, effort: float) -> ComputeModel:
        from shardwright.modelling.training import fitted  # needs torch

        return fitted(samples, _options(samples, effort * _UPDATES, _RATE, width, seed), caches)

    if start is None:
        return {"from nothing": from_nothing}

    def scaled_only(samples: Samples, _: int, __: float) -> ComputeModel:
        return scaled(start, samples)

    def fine_tuned(samples: Samples, seed: int, effort: float) -> ComputeModel:
        from shardwright.modelling.training import fitted

        options = _options(samples, effort * _FINE_UPDATES, _FINE_RATE, width, seed)
        return fitted(samples, options, caches, scaled(start, samples))

    return {"scaled": scaled_only, "fine-tuned": fine_tuned, "from nothing": from_nothing}


def scaled(start: ComputeModel, samples: Samples) -> ComputeModel:
    """The model with forward and backward times scaled by the median of measured over predicted, each by its own factor."""
    return _times(start, _measured_over(predict(start, samples), samples))


def _measured_over(predicted: Floats, samples: Samples) -> Floats:
    """`(2,)` medians of measured over predicted, forward and backward."""
    ratios: Floats = np.median(samples.times / np.maximum(predicted, 1e-6), axis=0)
    return ratios


def _scaled_recipe(recipe: Recipe, factor: Floats, samples: Samples, seed: int, effort: float) -> ComputeModel:
    return _times(recipe(samples, seed, effort), factor)


def _times(model: ComputeModel, factor: Floats) -> ComputeModel:
    scaled_weights = {
        name: (model.weights[name].T * factor.astype(np.float32)).T
        for name in ("head.1.weight", "head.1.bias", "head.skip", WIDE)
        if name in model.weights
    }
    return ComputeModel(model.head, model.weights | scaled_weights, model.metadata)


def validated(samples: Samples, ways: dict[str, Recipe], folds: int, seed: int = 0, effort: float = 1.0) -> Validated:
    """Cross-validate recipes; return the one with the least error on unseen sets.

    Args:
        samples: measured sets, one row each.
        ways: the recipes to try, by name.
        folds: number of parts to split the samples into; the sets of a pair stay together.
        seed: seed of the split and of training.
        effort: share of the usual updates.
    """
    part = _parts(samples, folds, seed)
    tried = []
    for name, recipe in ways.items():
        predicted, models = np.zeros_like(samples.times), []
        for number in range(folds):
            models.append(recipe(samples.select(part != number), seed + number, effort))
            predicted[part == number] = predict(models[-1], samples.select(part == number))
        factor = _measured_over(predicted, samples)
        predicted *= factor
        made = partial(_scaled_recipe, recipe, factor)
        tried.append(Validated(name, made, tuple(models), accuracy(predicted, samples, samples), predicted))
    return min(tried, key=lambda candidate: candidate.accuracy.mean_error)


def error_of(model: ComputeModel, samples: Samples) -> float:
    """Mean relative error of a model on samples."""
    return accuracy(predict(model, samples), samples, samples).mean_error


def _parts(samples: Samples, folds: int, seed: int) -> Ints:
    """`(n,)` the part of each set; the sets of a pair are in the same part."""
    groups, group = np.unique(pairs_of(list(samples.labels)).group, return_inverse=True)
    part: Ints = (np.random.default_rng(seed).permutation(len(groups)) % folds)[group]
    return part


def _options(samples: Samples, updates: float, rate: float, width: Width, seed: int) -> TrainingOptions:
    from shardwright.modelling.training import TrainingOptions

    epochs = math.ceil(updates / math.ceil(len(samples) / _BATCH))
    return TrainingOptions(epochs=max(epochs, 30), batch=_BATCH, learning_rate=rate, width=width, seed=seed)
