"""A proven lower bound on the slowest device's kernel time, for tasks of whole tables and a convex cost model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.cost.model import CostModel
from shardwright.cost.pricing import Pricing
from shardwright.errors import InvalidInput
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.sharding.work import shard_work
from shardwright.task import Task

Floats = npt.NDArray[np.float64]


def compute_bound(task: Task, cost_model: CostModel) -> float:
    """Ms that the slowest device of any plan spends on forward and backward kernels at least.

    With time P (convex) of a sum of encodings z, whole tables, and k of D devices in use:

    - max P(z_d) ≥ mean P(z_d) ≥ P(Σ z / k) (Jensen), and the smallest of these over k = 1 … D holds whatever k is;
    - the device that holds table i costs at least P(z_i) + Σ over the other tables of min(0, ∇P(z_i) · z_j), as P lies above its tangents;
      where no table makes a device cheaper that is P(z_i), the table alone.

    Raises:
        InvalidInput: the cost model is not convex, or a table of the task must be cut.
    """
    arrays = PlacementArrays.of(task)
    blocks = [block for unit in arrays.units.free for block in unit.blocks]
    if not cost_model.pricing.convex or len(blocks) != len(task.tables):
        raise InvalidInput(
            "the bound on kernel times is for convex cost models and tables that stay whole; choose such a model, and take away sharding "
            "types that cut tables"
        )
    units = np.zeros((len(arrays), cost_model.pricing.linear.shape[1]))
    np.add.at(units, arrays.unit_of, cost_model.encode([shard_work(task, block) for block in blocks]))
    return max(_shared(units, arrays.devices, cost_model.pricing), _alone(units, cost_model.pricing))


def _shared(units: Floats, devices: int, pricing: Pricing) -> float:
    """The bound from an even share of everything."""
    used = np.arange(1, min(devices, len(units)) + 1)[:, None]
    return float(pricing.price(units.sum(axis=0) / used).sum(axis=1).min())


def _alone(units: Floats, pricing: Pricing) -> float:
    """The bound from single units."""
    before = units @ pricing.hidden.T + pricing.hidden_bias
    times = np.maximum(before, 0.0) @ pricing.mix.T + units @ pricing.linear.T + pricing.bias
    # Tangent of both outputs, each where it is positive: `(n, latent)` slopes.
    slopes = np.stack([(before > 0) * pricing.mix[i] @ pricing.hidden + pricing.linear[i] for i in range(2)], axis=1)
    slope = ((times > 0)[..., None] * slopes).sum(axis=1)
    discount = np.minimum(slope @ units.T, 0.0)
    np.fill_diagonal(discount, 0.0)
    return float((np.maximum(times, 0.0).sum(axis=1) + discount.sum(axis=1)).max())
