r"""A cost model corrected for one task: a scale, plus a sum over shards of the time that their tables took beyond the prediction.

    corrected time of a call = max(0, scale · base(sum) + Σ over its shards of c(shard))       forward and backward apart
    c(shard) = Σ_j w_j · terms_j(shard), at least minus half of the base model's time of the shard alone

The terms of a shard are: for each table of the task, the base model's time of the shard alone times the likeness of shard and table (a
table slower than predicted makes its blocks slower, and similar tables a little); the constant 1, whose weight is the price of a cut; its
bags; its outputs. The sum over shards is linear, so a convex model stays convex, and every bound also holds for the corrected model. The
scale absorbs a machine that is slower throughout. `shardwright.modelling.correction` fits scale and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import AddedModel, CostModel, Pricing
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task
from shardwright.tensor_files import check_weights

_SPREAD = 0.15  # prior standard deviation of a table's factor
_SPREAD_OF_SIZES = 0.1  # prior standard deviation of the three size terms, as a share of the mean table's time
# Distances at which likeness fades, in logarithms: of pooling, distinct share, dim and rows.
_ALIKE = np.array([0.4, 0.4, 1.0, 2.0])
_LEAST = -0.5  # lowest correction of a shard, as a share of its time alone
OWN_TERMS = 3
"""Terms of a shard's sizes, after those of its likeness to tables."""

KIND = "corrected"
_PREFIX = "correction."


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
        alone = alone_ms(base.pricing, base.encode(works))
        units = alone.mean(axis=0)[:, None] / _sizes(columns).mean(axis=0)
        return cls(np.unique(_features(columns), axis=0), units)

    @property
    def spread(self) -> Floats:
        """`(terms,)` prior standard deviation of each weight."""
        return np.array([_SPREAD] * len(self.centres) + [_SPREAD_OF_SIZES] * OWN_TERMS)

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
        spread: `(2, terms, terms)` a root of the weights' posterior covariance; empty for a model from a file.
        metadata: origin of the correction, as for a learned model; empty until the model is saved.
    """

    base: CostModel
    terms: Terms
    weights: Floats
    scale: Floats
    spread: Floats
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in the metadata, else the base model's name, marked as corrected."""
        return self.metadata.get("name", f"{self.base.name}, corrected")

    @cached_property
    def pricing(self) -> Pricing:
        """Scales the base model's times and adds the corrections unscaled."""
        return self.priced(self.scale, np.zeros(2))

    @property
    def cut_price(self) -> float:
        """Forward plus backward ms that the correction adds for each further shard of any size."""
        return float((self.weights[:, -OWN_TERMS] * self.terms.units[:, 0]).sum())

    def drawn(self, rng: np.random.Generator) -> CorrectedModel:
        """A random correction that fits the measurements too: weights drawn from their posterior distribution."""
        if not self.spread.size:
            return self
        noise = rng.standard_normal(self.weights.shape)
        return replace(self, weights=self.weights + np.einsum("pij,pj->pi", self.spread, noise))

    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 2)` forward and backward correction of n shards in ms."""
        alone = self.scale * alone_ms(self.base.pricing, latents)
        added: Floats = np.einsum("ntp,pt->np", self.terms.columns(works, alone), self.weights)
        return np.maximum(added, _LEAST * alone)


def arrays_of(model: CorrectedModel) -> dict[str, Floats]:
    """The arrays of a correction, without those of its base model."""
    own = {"centres": model.terms.centres, "units": model.terms.units, "weights": model.weights, "scale": model.scale}
    return {_PREFIX + name: array for name, array in own.items()}


def wanted_arrays() -> set[str]:
    """Names of the arrays that a file of a corrected model has beside those of its base model."""
    return {_PREFIX + name for name in ("centres", "units", "weights", "scale")}


def model_of(
    base: CostModel, arrays: Mapping[str, npt.NDArray[np.float32]], metadata: dict[str, str]
) -> CorrectedModel:
    """A corrected model from a file's arrays and metadata; files do not hold the weights' covariance.

    Raises:
        InvalidInput: an array is missing, has a wrong shape, or is not finite.
    """
    centres = arrays.get(f"{_PREFIX}centres", np.zeros((0, 4), np.float32))
    count = len(centres) + OWN_TERMS
    shapes = {"centres": (len(centres), len(_ALIKE)), "units": (2, OWN_TERMS), "weights": (2, count), "scale": (2,)}
    check_weights(arrays, {_PREFIX + name: shape for name, shape in shapes.items()}, remedy="tune again")
    own = {name: arrays[_PREFIX + name].astype(np.float64) for name in shapes}
    terms = Terms(own["centres"], own["units"])
    return CorrectedModel(base, terms, own["weights"], own["scale"], np.zeros((2, 0, 0)), metadata)


def alone_ms(pricing: Pricing, latents: Floats) -> Floats:
    """`(n, 2)` ms that each shard adds to an empty call."""
    empty = pricing.price(np.zeros((1, pricing.hidden.shape[1])))
    return np.maximum(pricing.price(latents) - empty, 0.0)


def _features(works: WorkArrays) -> Floats:
    """`(n, 4)` logarithms of pooling, distinct share, dim and rows, which define the likeness of two tables.

    A row block has those of its table.
    """
    works = works.uncut
    lookups = np.maximum(works.lookups, 1e-9)
    distinct = np.maximum(works.distinct, 1e-9)
    features: Floats = np.log(np.stack([lookups / works.bags, distinct / lookups, works.dim, works.rows], axis=1))
    return features


def _sizes(works: WorkArrays) -> Floats:
    """`(n, 3)` size terms of each shard: one, bags and outputs."""
    return np.stack([np.ones_like(works.rows), works.bags, works.outputs * works.dim], axis=1)
