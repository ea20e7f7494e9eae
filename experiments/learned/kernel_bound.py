"""A proven lower bound on the slowest device's kernel time, for tasks of whole tables and a convex cost model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.cost.model import CostModel, Pricing
from shardwright.errors import InvalidInput
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.sharding.work import numbered_calls, shard_work
from shardwright.task import Task

Floats = npt.NDArray[np.float64]


def compute_bound(task: Task, cost_model: CostModel) -> float:
    """Ms that the slowest device of any plan spends on forward and backward kernels at least.

    A device's time is the sum of f (convex) over its fused calls, each of a sum of encodings z_c. With P(z) = f(0) + Σ_c (f(z_c) - f(0)),
    which is no more than that on a device in use (see `search.bound`), whole tables, and k of D devices in use:

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
    works = [shard_work(task, block) for block in blocks]
    call = np.array(numbered_calls(works), dtype=np.int64)
    units = np.zeros((len(arrays), int(call.max()) + 1, cost_model.pricing.linear.shape[1]))
    np.add.at(units, (arrays.unit_of, call), cost_model.encode(works))
    return max(_shared(units, arrays.devices, cost_model.pricing), _alone(units, cost_model.pricing))


def _in_use(times: Floats, pricing: Pricing) -> Floats:
    """`(n,)` ms of n devices in use from the `(n, calls, 2)` times of the head for all calls, made or not."""
    empty = pricing.price(np.zeros(pricing.linear.shape[1]))
    least: Floats = (times.sum(axis=1) - (times.shape[1] - 1) * empty + pricing.once).sum(axis=1)
    return least


def _shared(units: Floats, devices: int, pricing: Pricing) -> float:
    """The bound from an even share of everything."""
    used = np.arange(1, min(devices, len(units)) + 1)[:, None, None]
    return float(_in_use(pricing.price(units.sum(axis=0) / used), pricing).min())


def _alone(units: Floats, pricing: Pricing) -> float:
    """The bound from single units."""
    before = units @ pricing.hidden.T + pricing.hidden_bias
    times = np.maximum(before, 0.0) @ pricing.mix.T + units @ pricing.linear.T + pricing.bias
    # Tangent of both outputs, each where it is positive: `(n, calls, latent)` slopes.
    slopes = np.stack([(before > 0) * pricing.mix[i] @ pricing.hidden + pricing.linear[i] for i in range(2)], axis=2)
    slope = ((times > 0)[..., None] * slopes).sum(axis=2)
    discount = np.minimum(slope.reshape(len(units), -1) @ units.reshape(len(units), -1).T, 0.0)
    np.fill_diagonal(discount, 0.0)
    return float((_in_use(np.maximum(times, 0.0), pricing) + discount.sum(axis=1)).max())
