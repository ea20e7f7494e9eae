r"""Correct a cost model by the measured times of devices of one task.

    corrected time of a call = max(0, scale · base(sum) + Σ over its shards of c(shard))       forward and backward apart
    c(shard) = Σ_j w_j · terms_j(shard), at least minus half of the base model's time of the shard alone

The terms of a shard are: for each table of the task, the base model's time of the shard alone times the likeness of shard and table (a
table slower than predicted makes its blocks slower, and similar tables a little); the constant 1, whose weight is the price of a cut; its
bags; its outputs. The sum over shards is linear, so a convex model stays convex, and every bound also holds for the corrected model. The
scale absorbs a machine that is slower throughout. The weights are a ridge regression on measured minus scaled times: Gaussian weights of
known spread, Gaussian measurement noise. Few measurements leave the model nearly unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.correction import OWN_TERMS, CorrectedModel, Terms, alone_ms
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel
from shardwright.cost.score import device_ms
from shardwright.sharding.work import ShardWork
from shardwright.task.task import Task

_FOLDS = 4


def with_cut_price(base: CostModel, task: Task, price: float) -> CorrectedModel:
    """The model with a fixed price added to every shard, so that plans have fewer cuts.

    Args:
        base: the model.
        task: the task that defines the mean table.
        price: the price of a shard, as a share of the mean table's time.
    """
    terms = Terms.of(task, base)
    count = len(terms.spread)
    weights = np.zeros((2, count))
    weights[:, -OWN_TERMS] = price
    return CorrectedModel(base, terms, weights, np.ones(2), np.zeros((2, count, count)))


def corrected(
    base: CostModel, task: Task, devices: Sequence[Sequence[ShardWork]], times: Floats, noise: Floats
) -> CorrectedModel:
    """Correct a model by measured devices.

    Args:
        base: the model.
        task: the task that the devices belong to.
        devices: the shards of each of n devices; none is empty.
        times: `(n, 2)` measured forward and backward ms.
        noise: `(n, 2)` standard errors of `times`, in ms.
    """
    terms = Terms.of(task, base)
    predicted = np.array([device_ms(base, works) for works in devices])
    scale = np.array([_scale(times[:, phase], predicted[:, phase]) for phase in range(2)])
    sums = np.array([_summed(base, terms, scale, works) for works in devices])  # (n, terms, 2)
    of_phases = [
        _ridge(sums[:, :, phase], times[:, phase] - scale[phase] * predicted[:, phase], noise[:, phase], terms.spread)
        for phase in range(2)
    ]
    weights, spread = (np.array(part) for part in zip(*of_phases, strict=True))
    return CorrectedModel(base, terms, weights, scale, spread)


def held_out_error(
    base: CostModel, task: Task, devices: Sequence[Sequence[ShardWork]], times: Floats, noise: Floats
) -> float | None:
    """Mean relative error on forward + backward ms of devices, each predicted by a correction that has not seen it; None for too few.

    Takes the arguments of `corrected`.
    """
    part = np.arange(len(devices)) % _FOLDS
    if len(devices) < 2 * _FOLDS:
        return None
    errors = np.zeros(len(devices))
    for number in range(_FOLDS):
        seen, others = (np.flatnonzero(chosen).tolist() for chosen in (part != number, part == number))
        model = corrected(base, task, [devices[place] for place in seen], times[seen], noise[seen])
        predicted = np.array([device_ms(model, devices[place]) for place in others]).sum(axis=1)
        errors[others] = np.abs(predicted / times[others].sum(axis=1) - 1)
    return float(errors.mean())


def _summed(base: CostModel, terms: Terms, scale: Floats, works: Sequence[ShardWork]) -> Floats:
    alone = scale * alone_ms(base.pricing, base.encode(works))
    total: Floats = terms.columns(WorkArrays.of(works), alone).sum(axis=0)
    return total


def _scale(measured: Floats, predicted: Floats) -> float:
    seen = predicted > 0
    return float(np.median(measured[seen] / predicted[seen])) if seen.any() else 1.0


def _ridge(columns: Floats, wanted: Floats, noise: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Posterior of a linear regression: the mean of the weights, and a root of their covariance."""
    scaled = columns * spread / noise[:, None]
    precision = scaled.T @ scaled + np.eye(len(spread))
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    mean = root @ (root.T @ (scaled.T @ (wanted / noise)))
    return spread * mean, spread[:, None] * root
