"""Worlds: sources of the true cost of placements during training. A cost model, or kernels measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from shardwright.cost.collectives import set_of, sets_of
from shardwright.cost.flows import ByKind, traffic_by_kind
from shardwright.cost.ledger import EncodedBlocks, Ledger
from shardwright.cost.model import CostModel
from shardwright.cost.score import communication_ms, served_bytes, traffic_of
from shardwright.learned.arrays import Floats, Ints, PlacementArrays
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import shard_work

if TYPE_CHECKING:
    from shardwright.measure.remote import Fleet

FORWARD, FORWARD_COMMUNICATION, BACKWARD_COMMUNICATION, BACKWARD = range(4)

Placed = tuple[PlacementArrays, Ints]
"""A placement: a task and the device of each of its units."""


class World(Protocol):
    """A source of the true cost of placements."""

    @property
    def name(self) -> str:
        """Source of the costs; written into saved policies."""
        ...

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        """For each placement, `(devices, 4)` ms of forward, forward communication, backward communication and backward."""
        ...


def step_ms(phases: Floats) -> float:
    """Step time from `(devices, 4)` phases: the slowest device of each phase, summed, as devices wait for each other after each phase."""
    return float(phases.max(axis=0).sum())


def compute_ms(phases: Floats) -> Floats:
    """`(devices,)` forward and backward kernel time from `(devices, 4)` phases."""
    return np.asarray(phases[:, FORWARD] + phases[:, BACKWARD])


@dataclass(eq=False)
class SimulatedWorld:
    """A world whose costs a cost model predicts; policies are saved with its name.

    Attributes:
        cost_model: prices sets of shards.
        others: further models; a policy that reads prices learns from all of them.
    """

    cost_model: CostModel
    others: tuple[CostModel, ...] = ()
    _known: WeakKeyDictionary[PlacementArrays, _Encoded] = field(default_factory=WeakKeyDictionary, repr=False)

    @property
    def name(self) -> str:
        """For example "simulated: cpu/convex"."""
        return f"simulated: {', '.join(model.name for model in self.cost_models)}"

    @property
    def cost_models(self) -> tuple[CostModel, ...]:
        """All models."""
        return (self.cost_model, *self.others)

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        """Predicted phases.

        Raises:
            ShardwrightError: the cost model predicted NaN.
        """
        return [self._cost(arrays, assignment) for arrays, assignment in placed]

    def _cost(self, arrays: PlacementArrays, assignment: Ints) -> Floats:
        if arrays not in self._known:
            self._known[arrays] = _encode(arrays, self.cost_model)
        known = self._known[arrays]
        ledger, held = known.fixed.copy(), np.zeros((2, arrays.devices))
        if (assignment < 0).any():
            raise ValueError("a unit has no device: its number is negative")
        ledger.add(assignment[arrays.unit_of], np.arange(len(arrays.unit_of)))
        np.add.at(held.T, assignment, known.served)
        compute = ledger.times()
        links = traffic_of(arrays.task, held, known.settled, known.sets).milliseconds(arrays.task)
        return np.stack([compute[:, 0], *links, compute[:, 1]], axis=1)


@dataclass(frozen=True, eq=False)
class _Encoded:
    """The additions of a task's units and settled shards to their devices.

    Attributes:
        fixed: the devices with the settled shards; its blocks are those of all units, then the settled shards.
        served: `(n, 2)` bytes of values and of ids that each unit serves.
        settled: traffic of the settled shards.
        sets: the sets of collectives that units and settled shards need.
    """

    fixed: Ledger
    served: Floats
    settled: ByKind
    sets: set[int]


def _encode(arrays: PlacementArrays, cost_model: CostModel) -> _Encoded:
    blocks = [block for unit in arrays.units.free for block in unit.blocks]
    works = [shard_work(arrays.task, shard) for shard in (*blocks, *arrays.units.fixed)]
    of_units = works[: len(blocks)]
    bytes_ = np.array([served_bytes(arrays.task, work) for work in of_units]).reshape(-1, 2)
    served, fixed = np.zeros((len(arrays), 2)), EncodedBlocks.of(cost_model, works).ledger(arrays.devices)
    for index, shard in enumerate(arrays.units.fixed, start=len(blocks)):
        fixed.add(np.array(shard.devices), np.full(len(shard.devices), index))
    np.add.at(served, arrays.unit_of, bytes_)
    return _Encoded(
        fixed,
        served,
        traffic_by_kind(arrays.task, arrays.units.fixed),
        sets_of(arrays.task, arrays.units.fixed) | {set_of("all_to_all", work.pooled) for work in of_units},
    )


@dataclass(frozen=True)
class MeasuredWorld:
    """A world that measures kernels on this machine, or on a cluster's, and derives communication from the topology.

    The costs and the name are the same with and without a cluster of such machines, so a training may continue with or without one.

    Attributes:
        device: "cpu" or "cuda".
        rounds: how often each device of each placement is visited.
        seed: seed of the lookups.
        fleet: the workers of a cluster; None for this machine.
    """

    device: str = "cpu"
    rounds: int = 2
    seed: int = 0
    fleet: Fleet | None = None

    @property
    def name(self) -> str:
        """For example "measured: fbgemm on AMD EPYC"; written into saved policies and checkpoints."""
        from shardwright.hardware import default_backend, fingerprint

        hardware = self.fleet.facts.hardware if self.fleet else fingerprint(self.device, default_backend())
        return f"measured: {', '.join(f'{key} {value}' for key, value in hardware.items())}"

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        """Phases of each placement, with measured kernels and analytic communication; one call for many placements is cheapest.

        Raises:
            MeasurementFailed: a device's shards do not fit the machine's memory, or a kernel cannot run.
            ClusterFailed: no worker of the cluster is left.
        """
        from shardwright.measure.measuring import measure_plans

        plans = [arrays.plan(assignment, "learning", self.seed) for arrays, assignment in placed]
        measured = measure_plans(plans, rounds=self.rounds, seed=self.seed, device=self.device, fleet=self.fleet)
        return [measured_phases(shards.plan, shards.forward_ms, shards.backward_ms) for shards in measured]


def measured_phases(plan: Plan, forward_ms: Floats, backward_ms: Floats) -> Floats:
    """`(devices, 4)` phases of a plan: measured kernels, communication from the topology."""
    forward, backward = communication_ms(plan.task, plan.shards)
    return np.stack([forward_ms, forward, backward, backward_ms], axis=1)
