"""How many devices does a model need? One task planned on several clusters, with the proven bound beside each plan.

If even the bound of a larger cluster is no better than the plan of a smaller one, no plan makes the larger cluster worthwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.solve import plan as find_plan
from shardwright.search.strategy import Strategy
from shardwright.sharding.costs import BoundScope
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import RunsOn
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_HOUR_S = 3600.0


@dataclass(frozen=True)
class DenseWork:
    """The dense part of a step.

    Attributes:
        ms: time of a step's dense layers.
        overlapped: whether embeddings and dense layers run side by side, so that the longer one counts; else they add up.
    """

    ms: float = 0.0
    overlapped: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.ms, bool) or not isinstance(self.ms, (int, float)) or not 0 <= self.ms < math.inf:
            raise InvalidInput(f"dense_ms is {self.ms!r}, must be a finite number of ms of at least 0")

    def step_ms(self, embedding_ms: float) -> float:
        """The step with the dense layers."""
        return max(embedding_ms, self.ms) if self.overlapped else embedding_ms + self.ms


@dataclass(frozen=True)
class ClusterSize:
    """A task on one cluster.

    Attributes:
        topology: the cluster.
        batch_size: samples of a step, over all devices.
        plan: the plan; None if there is none.
        why_not: why there is no plan.
        dense: the dense part of a step.
        price: price of a device for an hour; None if it was not given.
    """

    topology: Topology
    batch_size: int
    plan: Plan | None
    why_not: str
    dense: DenseWork
    price: float | None

    @property
    def step_ms(self) -> float:
        """Predicted step, dense layers included; infinite without a plan."""
        return self.dense.step_ms(self.plan.cost.step_ms) if self.plan is not None and self.plan.cost else math.inf

    @property
    def bound_ms(self) -> float | None:
        """Lower bound on the step of any plan on this cluster; None without a proof."""
        if self.plan is None or self.plan.bound_ms is None:
            return None
        return self.dense.step_ms(self.plan.bound_ms)

    @property
    def bound_scope(self) -> BoundScope | None:
        """The plans that the bound holds for; None without a bound."""
        return self.plan.bound_scope if self.plan is not None and self.plan.bound_ms is not None else None

    @property
    def throughput(self) -> float:
        """Samples a second; 0 without a plan."""
        return self.batch_size / self.step_ms * 1e3 if self.step_ms else math.inf

    @property
    def most_throughput(self) -> float:
        """Upper bound on the samples a second of any plan on this cluster; infinite without a proof."""
        if self.plan is None:
            return 0.0
        return self.batch_size / self.bound_ms * 1e3 if self.bound_ms else math.inf

    @property
    def cost(self) -> float | None:
        """Price of a million samples; None without a plan or a price."""
        return self._cost_at(self.throughput)

    @property
    def least_cost(self) -> float | None:
        """Lower bound on the price of a million samples on this cluster; 0 without a proof, None without a price."""
        return self._cost_at(self.most_throughput)

    def _cost_at(self, throughput: float) -> float | None:
        if self.price is None or self.plan is None or not throughput:
            return None
        return self.topology.devices * self.price / _HOUR_S / throughput * 1e6


@dataclass(frozen=True)
class Scaling:
    """A task on several clusters.

    Attributes:
        sizes: the clusters, in the order in which they were given.
    """

    sizes: tuple[ClusterSize, ...]

    @property
    def planned(self) -> tuple[ClusterSize, ...]:
        """The clusters that have a plan."""
        return tuple(size for size in self.sizes if size.plan is not None)

    def efficiency(self, size: ClusterSize) -> float | None:
        """Throughput per device, as a share of that on the first cluster with a plan and the same type of devices."""
        first = next((cluster for cluster in self.planned if cluster.topology.device == size.topology.device), None)
        if first is None or size.plan is None:
            return None
        return size.throughput / size.topology.devices / (first.throughput / first.topology.devices)

    @property
    def fast_enough(self) -> ClusterSize | None:
        """The smallest cluster that is provably enough: no plan on a larger cluster of `sizes` is faster than its plan."""
        return _settled(self.planned, lambda size: -size.throughput, lambda size: -size.most_throughput)

    @property
    def cheap_enough(self) -> ClusterSize | None:
        """As `fast_enough`, by price: no plan on a larger one is cheaper than its plan; only clusters that have a price count."""
        priced = [size for size in self.planned if size.price is not None]
        return _settled(priced, lambda size: size.cost or 0.0, lambda size: size.least_cost or 0.0)


def _settled(
    sizes: Sequence[ClusterSize], value: Callable[[ClusterSize], float], least: Callable[[ClusterSize], float]
) -> ClusterSize | None:
    """The smallest cluster whose value is no larger than the least that any larger cluster can have; None if there is none."""
    for cluster in sorted(sizes, key=lambda size: (size.topology.devices, value(size))):
        larger = [size for size in sizes if size.topology.devices > cluster.topology.devices]
        if larger and all(value(cluster) <= least(size) for size in larger):
            return cluster
    return None


def scale(
    task: Task,
    topologies: Sequence[Topology],
    *,
    batch_per_device: int | None = None,
    dense: DenseWork | None = None,
    prices: Mapping[str, float] | None = None,
    strategy: str | Strategy = "auto",
    cost_model: Callable[[Task], CostModel] | CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = 1.0,
    runs_on: RunsOn = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Scaling:
    """Plan a task on several clusters.

    Args:
        task: tables, batch size, optimizer, constraints and exchange; its own topology does not count. Its dense layers (`dense_ms`) take
            time in proportion to the samples of a device.
        topologies: the clusters.
        batch_per_device: samples of a step on each device; by default all devices of a cluster share out the task's batch.
        dense: the dense part of a step; none by default.
        prices: price of a device for an hour, by device type; clusters without a price get no costs.
        strategy: as for `plan`.
        cost_model: as for `plan`, or a function of the task; by default the model of each cluster's devices.
        seed: as for `plan`.
        time_limit: seconds of each search; None for no limit.
        runs_on: as for `plan`.
        progress: called after each cluster with the number of clusters done and of all.

    Raises:
        InvalidInput: there are no topologies, or an option breaks a rule.
    """
    if not topologies:
        raise InvalidInput("topologies is empty; name at least one cluster")
    for device, price in (prices or {}).items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
            raise InvalidInput(
                f"prices: {device} is {price!r}, must be a finite number of at least 0 for an hour of a device"
            )
    clusters = []
    for count, topology in enumerate(topologies, 1):
        batch = task.batch_size if batch_per_device is None else batch_per_device * topology.devices
        plan, why_not = None, ""
        try:
            resized = _resized(task, topology, batch)
            model = cost_model(resized) if callable(cost_model) else cost_model
            plan = find_plan(
                resized, strategy=strategy, cost_model=model, seed=seed, time_limit=time_limit, runs_on=runs_on
            )
        except InfeasibleTask as error:
            why_not = str(error)
        clusters.append(
            ClusterSize(topology, batch, plan, why_not, dense or DenseWork(), (prices or {}).get(topology.device))
        )
        if progress is not None:
            progress(count, len(topologies))
    return Scaling(tuple(clusters))


def _resized(task: Task, topology: Topology, batch_size: int) -> Task:
    try:
        samples = batch_size / topology.devices / (task.batch_size / task.topology.devices)
        exchange = replace(task.exchange, dense_ms=task.exchange.hidden.scaled(samples))
        return replace(task, topology=topology, batch_size=batch_size, exchange=exchange)
    except InvalidInput as error:  # constraints may name ranks that a smaller cluster lacks
        raise InfeasibleTask(str(error)) from None
