r"""Correct a cost model by the measured times of devices of one task.

    corrected time of a call = max(0, scale · base(sum) + Σ over its shards of c(shard))       forward and backward apart
    c(shard) = Σ_j w_j · terms_j(shard), at least minus half of the base model's time of the shard alone

The terms of a shard are: for each table of the task, the base model's time of the shard alone times the likeness of shard and table (a
table slower than predicted makes its blocks slower, and similar tables a little); a one, whose weight is the price of a cut; its bags;
its outputs. The sum over shards is linear, so a convex model stays convex, and every bound also holds for the corrected model. The scale
absorbs a machine that is slower throughout. The weights are a ridge regression on measured minus scaled times: Gaussian weights of known
spread, Gaussian measurement noise. Few measurements leave the model nearly unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import AddedModel, CostModel, Pricing
from shardwright.cost.score import device_ms
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.task import Task

_SPREAD = 0.15  # prior standard deviation of a table's factor
_SPREAD_OF_SIZES = 0.1  # prior standard deviation of the three size terms, as a share of the mean table's time
# Distances at which likeness fades, in logarithms: of pooling, distinct share, dim and rows.
_ALIKE = np.array([0.4, 0.4, 1.0, 2.0])
_LEAST = -0.5  # lowest correction of a shard, as a share of its time alone
_OWN_TERMS = 3


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms that corrections are linear in.

    Attributes:
        centres: `(tables, 4)` features of the task's tables.
        units: `(2, 3)` forward and backward ms per unit of each size term: the mean table's time over its mean size.
    """

    centres: Floats
    units: Floats

    @classmethod
    def of(cls, task: Task, base: CostModel) -> Terms:
        """The terms of a task."""
        works = [shard_work(task, Shard.whole(table, 0)) for table in task.tables]
        columns = WorkArrays.of(works)
        alone = _alone(base.pricing, base.encode(works))
        units = alone.mean(axis=0)[:, None] / _sizes(columns).mean(axis=0)
        return cls(np.unique(_features(columns), axis=0), units)

    @property
    def spread(self) -> Floats:
        """`(terms,)` prior standard deviation of each weight."""
        return np.array([_SPREAD] * len(self.centres) + [_SPREAD_OF_SIZES] * _OWN_TERMS)

    def columns(self, works: WorkArrays, alone: Floats) -> Floats:
        """`(n, terms, 2)` forward and backward ms of each term of n shards.

        Args:
            works: the shards.
            alone: `(n, 2)` ms of each shard alone.
        """
        away = ((_features(works)[:, None] - self.centres) / _ALIKE) ** 2
        alike = np.exp(-0.5 * away.sum(axis=2))
        sizes = _sizes(works)[:, :, None] * self.units.T[None]
        return np.concatenate([alike[:, :, None] * alone[:, None], sizes], axis=1)


@dataclass(frozen=True, eq=False)
class CorrectedModel(AddedModel):
    """A cost model that scales a base model and adds a correction for each shard.

    Attributes:
        base: the model to correct.
        terms: the terms that the corrections are linear in.
        weights: `(2, terms)` forward and backward weights.
        scale: `(2,)` factor on the base model's times.
        spread: `(2, terms, terms)` a root of the weights' covariance, given the measurements.
    """

    base: CostModel
    terms: Terms
    weights: Floats
    scale: Floats
    spread: Floats

    @property
    def name(self) -> str:
        """The base model's name, marked as corrected."""
        return f"{self.base.name}, corrected"

    @cached_property
    def pricing(self) -> Pricing:
        """Scales the base model's times and adds the corrections unscaled."""
        return self.priced(self.scale, np.zeros(2))

    @property
    def cut_price(self) -> float:
        """Forward plus backward ms that the correction adds for each further shard, whatever its size."""
        return float((self.weights[:, -_OWN_TERMS] * self.terms.units[:, 0]).sum())

    def drawn(self, rng: np.random.Generator) -> CorrectedModel:
        """A random correction that the measurements also allow: weights drawn from their distribution."""
        noise = rng.standard_normal(self.weights.shape)
        return replace(self, weights=self.weights + np.einsum("pij,pj->pi", self.spread, noise))

    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 2)` forward and backward correction of n shards in ms."""
        alone = self.scale * _alone(self.base.pricing, latents)
        added: Floats = np.einsum("ntp,pt->np", self.terms.columns(works, alone), self.weights)
        return np.maximum(added, _LEAST * alone)


def with_cut_price(base: CostModel, task: Task, price: float) -> CorrectedModel:
    """A model in which every shard costs a fixed price more, so that plans have fewer cuts.

    Args:
        base: the model.
        task: the task that defines the mean table.
        price: the price of a shard, as a share of the mean table's time.
    """
    terms = Terms.of(task, base)
    count = len(terms.spread)
    weights = np.zeros((2, count))
    weights[:, -_OWN_TERMS] = price
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
    found = [
        _ridge(sums[:, :, phase], times[:, phase] - scale[phase] * predicted[:, phase], noise[:, phase], terms.spread)
        for phase in range(2)
    ]
    weights, spread = (np.array(part) for part in zip(*found, strict=True))
    return CorrectedModel(base, terms, weights, scale, spread)


def _summed(base: CostModel, terms: Terms, scale: Floats, works: Sequence[ShardWork]) -> Floats:
    alone = scale * _alone(base.pricing, base.encode(works))
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


def _alone(pricing: Pricing, latents: Floats) -> Floats:
    """`(n, 2)` ms of each shard alone: its addition to an empty call."""
    empty = pricing.price(np.zeros((1, pricing.hidden.shape[1])))
    return np.maximum(pricing.price(latents) - empty, 0.0)


def _features(works: WorkArrays) -> Floats:
    """`(n, 4)` logarithms of pooling, distinct share, dim and rows, which define how alike two tables are; a row block is as its table."""
    works = works.uncut
    lookups = np.maximum(works.lookups, 1e-9)
    distinct = np.maximum(works.distinct, 1e-9)
    found: Floats = np.log(np.stack([lookups / works.bags, distinct / lookups, works.dim, works.rows], axis=1))
    return found


def _sizes(works: WorkArrays) -> Floats:
    """`(n, 3)` size terms of each shard: one, bags and outputs."""
    return np.stack([np.ones_like(works.rows), works.bags, works.outputs * works.dim], axis=1)
