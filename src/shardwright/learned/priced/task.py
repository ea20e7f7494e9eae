"""A task at the prices of its cost model: the cost that each unit adds to a device, and the even shares for comparison.

Four phases count on a device: kernels and links, forward and backward. Kernel times come from sums of vectors (`cost.model.Pricing`), links
from the bytes of values and ids that a unit's holder serves. Values leave and ids arrive in the forward pass; the busier direction counts.
The *reference* of a phase is what no plan of whole tables is far below: the even share of all devices, or the unit that takes longest.
Policies see times over references, never milliseconds.

Letters: n units, d devices, c fused calls, q numbers of a pricing vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.cost.collectives import prices_of
from shardwright.cost.features import WorkArrays, wider
from shardwright.cost.for_task import for_task
from shardwright.cost.ledger import EncodedBlocks
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.prices import peers_of
from shardwright.cost.score import communication_ms, served_bytes
from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import PlacementArrays
from shardwright.sharding.work import ShardWork, shard_work

PHASES = ("forward", "backward", "forward links", "backward links")
_LEAST_PART = 1e-3  # least reference of a phase, as a part of all references, so that times can be divided by it


@dataclass(frozen=True, eq=False)
class PricedTask:
    """A task as a policy reads it.

    Attributes:
        arrays: the task's units, memory and rules.
        pricing: turns sums of vectors into kernel times.
        vectors: `(n, c, q)` the addition of each unit to each fused call.
        calls: `(n, c)` whether a unit takes part in a call.
        links: `(n, 3)` ms on the links that a unit's values, ids and gradients of values take.
        fixed_vectors: `(d, c, q)` the same of the settled shards.
        fixed_calls: `(d, c)` whether settled shards take part in a call.
        fixed_links: `(d, 2)` ms of the settled shards' links, forward and backward.
        works: work of the blocks of all units.
    """

    arrays: PlacementArrays
    pricing: Pricing
    vectors: Floats
    calls: Bools
    links: Floats
    fixed_vectors: Floats
    fixed_calls: Bools
    fixed_links: Floats
    works: tuple[ShardWork, ...] = field(repr=False)

    @classmethod
    def of(cls, arrays: PlacementArrays, cost_model: CostModel) -> PricedTask:
        """Price the units of a task.

        Raises:
            ShardwrightError: the cost model predicted NaN or infinity.
        """
        task, units = arrays.task, arrays.units
        model = for_task(cost_model, task)
        blocks = [block for unit in units.free for block in unit.blocks]
        works = [shard_work(task, shard) for shard in (*blocks, *units.fixed)]
        own, encoded = len(blocks), EncodedBlocks.of(model, works)
        of_units, of_devices = encoded.ledger(len(arrays)), encoded.ledger(arrays.devices)
        of_units.add(arrays.unit_of, np.arange(own))
        settled_shard, device = np.nonzero(arrays.fixed_on)
        of_devices.add(device, own + settled_shard)
        vectors, fixed_vectors = (model.pricing.vectors(ledger.sums) for ledger in (of_units, of_devices))
        if not np.isfinite(vectors).all():
            raise ShardwrightError(f"cost model {model.name} predicted NaN or infinity; train it again")
        served = np.zeros((len(arrays), 2))
        for unit, work in zip(arrays.unit_of, works[:own], strict=True):
            served[unit] += served_bytes(task, work)
        prices, peers = prices_of(task), peers_of(task.topology)
        forward, backward = (
            float((peers * each).max()) for each in np.maximum([prices.forward, prices.backward], prices.mean)
        )
        settled = np.array(communication_ms(task, units.fixed)) if units.fixed else np.zeros((2, arrays.devices))
        return cls(
            arrays, model.pricing, vectors, of_units.present, served.take([0, 1, 0], axis=1) * [forward, forward, backward],
            fixed_vectors, of_devices.present, np.ascontiguousarray(settled.T), tuple(works[:own]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.arrays)

    def kernels(self, vectors: Floats, calls: Bools) -> Floats:
        """`(..., 2)` forward and backward ms of devices with `(..., c, q)` sums in these `(..., c)` calls."""
        times = np.where(calls[..., None], self.pricing.times(vectors), 0.0).sum(axis=-2)
        return np.asarray(times + calls.any(axis=-1, keepdims=True) * self.pricing.once)

    def on_links(self, links: Floats) -> Floats:
        """`(..., 2)` ms forward and backward of devices that serve `(..., 3)` of `links`, while the others serve an even share."""
        even = self.links.sum(axis=0) / self.arrays.devices
        values, ids, gradients = np.moveaxis(links, -1, 0)
        forward = np.maximum(values + even[1], even[0] + ids)
        return np.stack([forward, np.maximum(gradients, even[2])], axis=-1)

    def alone(self) -> Floats:
        """`(n, 4)` ms that one unit takes on a device of its own, by phase; on links, beside an even share of the traffic."""
        return np.hstack([self.kernels(self.vectors, self.calls), self.on_links(self.links)])

    def even(self) -> Floats:
        """`(4,)` ms of a device that holds an even share of everything, by phase."""
        total, devices = self.vectors.sum(axis=0) + self.fixed_vectors.sum(axis=0), self.arrays.devices
        made: Bools = np.logical_or(self.calls.any(axis=0), self.fixed_calls.any(axis=0))
        links = self.on_links(self.links.sum(axis=0) / devices) + self.fixed_links.mean(axis=0)
        return np.append(self.kernels(total / devices, made), links)

    def references(self) -> Floats:
        """`(4,)` ms that times are compared with, by phase: the even share, or the unit that takes longest; greater than 0."""
        largest = np.maximum(self.even(), self.alone().max(axis=0, initial=0.0))
        floored: Floats = np.maximum(largest, _LEAST_PART * largest.sum() + 1e-12)
        return floored

    def perturbed(self, rng: np.random.Generator) -> PricedTask:
        """The task at the prices of another, synthetic device.

        Kernels, phases and links take other parts of the step, single units cost more or less, and a model without gates may get some.
        """
        pricing, gates = self.pricing, self.pricing.gates
        counters = self.vectors.shape[2] - 2 - 3 * gates + 3 * np.arange(gates)
        dearer = np.exp(_UNITS * rng.standard_normal((len(self), 1, 1))) * np.ones_like(self.vectors)
        dearer[..., counters] = 1.0
        phases = np.exp(_PHASES * rng.standard_normal(2))
        of_phase = np.ones(self.vectors.shape[2])
        of_phase[-2:] = phases
        for phase in range(2):
            of_phase[counters + 1 + phase] = phases[phase]
        other = replace(
            pricing, mix=phases[:, None] * pricing.mix, bias=phases * pricing.bias, once=phases * pricing.once
        )
        changed = replace(
            self, pricing=other, vectors=self.vectors * dearer * of_phase, fixed_vectors=self.fixed_vectors * of_phase
        )
        if not gates and rng.random() < _GATED:
            changed = changed._gated(rng)
        even = changed.even()
        if even[2:].sum() > 0:
            scale = even[:2].sum() / even[2:].sum() * np.exp(rng.uniform(*np.log(_LINKS)))
            ids = np.array([1.0, np.exp(_IDS * rng.standard_normal()), 1.0])
            changed = replace(changed, links=changed.links * scale * ids, fixed_links=changed.fixed_links * scale)
        return changed

    def _gated(self, rng: np.random.Generator) -> PricedTask:
        """The task with gates as a GPU has them (`cost.model`): wide units raise the time of the narrower ones in their call."""
        works = WorkArrays.of(self.works)
        is_wider = wider(works)[..., None]
        work = np.stack([works.lookups, works.outputs], axis=1)[:, None] * 1e-7
        of_blocks = np.concatenate([is_wider, ~is_wider * work], axis=2)
        wide = np.zeros((len(self), *of_blocks.shape[1:]))
        np.add.at(wide, self.arrays.unit_of, of_blocks)
        gates = wide.shape[1]
        units = np.concatenate(
            [wide[..., :1], np.repeat(wide[..., 1:] @ [[1.0], [rng.uniform()]], 2, axis=-1)], axis=-1
        )
        total = units[..., 1:].sum(axis=0) / self.arrays.devices
        share = rng.dirichlet(np.ones(gates))[:, None] * rng.uniform(*_GATE_SHARES) * self.even()[:2]
        units[..., 1:] *= np.divide(share, total, out=np.zeros_like(total), where=total > 0)
        added = np.where(self.calls[..., None], units.reshape(len(self), 1, -1), 0.0)
        empty = np.zeros((*self.fixed_vectors.shape[:2], added.shape[2]))
        old = self.pricing
        pricing = replace(
            old,
            hidden=np.vstack([old.hidden, np.zeros((3 * gates, old.hidden.shape[1]))]),
            hidden_bias=np.append(old.hidden_bias, np.zeros(3 * gates)),
            mix=np.hstack([old.mix, np.zeros((2, 3 * gates))]),
            gates=gates,
        )
        vectors, fixed = (
            np.concatenate([of[..., :-2], more, of[..., -2:]], axis=-1)
            for of, more in ((self.vectors, added), (self.fixed_vectors, empty))
        )
        return replace(self, pricing=pricing, vectors=vectors, fixed_vectors=fixed)


_UNITS, _PHASES = 0.3, 0.3  # standard deviations of the logarithms of the factors on units and on the two kernel phases
_LINKS = 0.03, 2.0  # least and most time of links, in even shares of kernels
_IDS = 0.7  # standard deviation of the logarithm of the factor on the bytes of ids
_GATED, _GATE_SHARES = 0.5, (0.02, 0.6)  # how often gates are added, and how much they add to an even share
