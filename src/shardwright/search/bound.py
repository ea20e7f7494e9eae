r"""A proven lower bound on the step time of every plan.

What it holds for: devices of one type, and plans whose tables are each whole, cut into column blocks (of multiples of 4 columns where
the dim is one), cut into row blocks of equal size (to a row) over 2, 4, 8, … devices, as many as a host has, as a table is pinned to, or
all, or replicated on every device, as far as the table's constraints allow. Memory, pinning, colocation and separation only remove
plans, so the bound stays valid whatever they say; it does not see them otherwise.

Proof. With D devices, let z_d be the sum of vectors on device d, and F(z) = forward + backward time, convex. The step time is a sum
over phases of maxima over devices, and a maximum is at least a mean:

    step  ≥  mean_d F(z_d) + (mean bytes over links) / bandwidth + latency  ≥  F(Σ z_d / D) + …                  (Jensen)

A hidden unit of F costs m · max(0, a) = max over λ in [0, 1] of λ · m · a, so for every λ in [0, 1]^h

    F(Σ z_d / D)  ≥  Σ_h λ_h m_h b_h + linear bias + (1 / D) Σ over tables of price_λ(what the plan makes of the table)

and price_λ, linear in the vectors, is at least its minimum over the ways the table may be cut: for column blocks a shortest path
over widths. The bytes are linear in the blocks too, and join the price. The right side is a bound for any λ; Frank-Wolfe steps look
for a good one. Devices without a shard do not run the head's constant; where the priced sum is positive, as it always is in practice,
using all devices is the cheapest, and where it is not, the bound is taken as if one device did everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.cost.communication import served_bytes
from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.search.engine.items import UNIT, vectors_of
from shardwright.search.engine.shortest import cheapest_widths
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_ITERATIONS = 40


@dataclass(frozen=True)
class Bound:
    """A proven bound.

    Attributes:
        ms: no plan of the task has a smaller step time.
        blocks: `(tables,)` how many column blocks each table has in the cheapest ways behind the bound: a hint where splitting pays.
    """

    ms: float
    blocks: Ints


@dataclass(frozen=True, eq=False)
class _Ways:
    """What can be made of each table.

    Attributes:
        first: `(tables + 1,)` rows of `vectors` by table: its column blocks of 1, 2, … units; one row where it can only be whole.
        least: `(tables,)` fewest column blocks: 1, or 2 where the table may not be whole.
        most: `(tables,)` most column blocks.
        vectors: `(rows, h + 2)`.
        traffic: `(rows, 2)` bytes of values and ids.
        other_table: `(k,)` tables of the other ways: row blocks and replicas.
        other_vectors: `(k, h + 2)` summed over all devices.
        other_traffic: `(k, 2)` bytes of values and ids, summed likewise.
        other_reduced: `(k, 2)` mean bytes a device sends inside a host and between hosts to reduce gradients.
    """

    first: Ints
    least: Ints
    most: Ints
    vectors: Floats
    traffic: Floats
    other_table: Ints
    other_vectors: Floats
    other_traffic: Floats
    other_reduced: Floats


def lower_bound(task: Task, cost_model: CostModel) -> Bound | None:
    """A bound on the step time of every plan of the task; None where the cost model is not convex."""
    if not cost_model.pricing.convex:
        return None
    ways = _ways(task, cost_model)
    best = max(
        (_ascend(task, cost_model, ways, links) for links in product(_links(task.topology), _links(task.topology))),
        key=lambda b: b.ms,
    )
    return replace(best, ms=min(best.ms, _all_replicated(task, cost_model)))


def _all_replicated(task: Task, cost_model: CostModel) -> float:
    """What the one plan costs in which nothing is looked up elsewhere, so that no latency is paid for; infinite where it is not allowed."""
    devices = range(task.topology.devices)
    if len(devices) < 2 or not all(task.constraints.of(table.name).allows("data_parallel") for table in task.tables):
        return float("inf")
    return score(task, [Shard.whole(table, *devices) for table in task.tables], cost_model).step_ms


def _ascend(task: Task, cost_model: CostModel, ways: _Ways, links: tuple[int, int]) -> Bound:
    """Frank-Wolfe on the relaxed problem, counting the links `links` of the forward and the backward pass."""
    pricing, devices = cost_model.pricing, task.topology.devices
    mix = pricing.mix.sum(axis=0)
    column_ms, other_ms, latency = _link_prices(task.topology, ways, links)
    mean = np.zeros(mix.size)  # pre-activations of the mean device, without the bias
    best = Bound(0.0, np.ones(len(task.tables), dtype=np.int64))
    for iteration in range(_ITERATIONS):
        weight = np.append(mix * (mean + pricing.hidden_bias > 0), [1.0, 1.0])
        total, blocks, chosen = _cheapest(
            ways, ways.vectors @ weight + column_ms, ways.other_vectors @ weight + other_ms
        )
        constant = weight[:-2] @ pricing.hidden_bias + pricing.bias.sum()
        kernels = float(weight @ chosen)
        ms = float(constant + kernels / (devices if kernels > 0 else 1) + (total - kernels) / devices + latency)
        if ms > best.ms:
            best = Bound(ms, blocks)
        mean += (chosen[:-2] / devices - mean) * 2 / (iteration + 2)
    return best


def _cheapest(ways: _Ways, column_price: Floats, other_price: Floats) -> tuple[float, Ints, Floats]:
    """The sum of the tables' cheapest ways, column blocks in each (1 for other ways), and the sum of their vectors."""
    price, uses, blocks = cheapest_widths(ways.first, ways.least, ways.most, column_price)
    best_other = np.full(price.size, np.inf)
    np.minimum.at(best_other, ways.other_table, other_price)
    other = best_other < price
    uses[np.repeat(other, np.diff(ways.first))] = 0
    chosen = uses @ ways.vectors
    taken = np.flatnonzero(other[ways.other_table] & (other_price == best_other[ways.other_table]))
    _, once = np.unique(ways.other_table[taken], return_index=True)
    chosen += ways.other_vectors[taken[once]].sum(axis=0)
    blocks[other] = 1
    return float(np.minimum(price, best_other).sum()), blocks, chosen


def _links(topology: Topology) -> list[int]:
    """Link classes that exist: 0 inside a host, 1 between hosts; a single device counts as class 0 with nothing to send."""
    present = [link for link, peers in enumerate(_peers(topology)) if peers > 0]
    return present or [0]


def _peers(topology: Topology) -> tuple[int, int]:
    return topology.devices_per_host - 1, topology.devices - topology.devices_per_host


def _link_prices(topology: Topology, ways: _Ways, links: tuple[int, int]) -> tuple[Floats, Floats, float]:
    """Ms that each way adds to the mean device's links, times the number of devices; and the latency of both passes.

    All devices together send `peers / D` of the bytes of values and ids in the forward pass, and of the values in the backward pass.
    Every plan pays the latency in which some table is not replicated everywhere.
    """
    devices = topology.devices
    share = [_peers(topology)[link] / devices / topology.link_bandwidth[link] * 1e3 for link in links]
    column = ways.traffic.sum(axis=1) * share[0] + ways.traffic[:, 0] * share[1]
    other = ways.other_traffic.sum(axis=1) * share[0] + ways.other_traffic[:, 0] * share[1]
    other += devices * ways.other_reduced[:, links[1]] / topology.link_bandwidth[links[1]] * 1e3
    waits = (topology.intra_latency_ms, topology.inter_latency_ms)
    return column, other, sum(waits[link] for link in links) if devices > 1 else 0.0


def _ways(task: Task, cost_model: CostModel) -> _Ways:
    """All ways of all tables, encoded at once."""
    columns: list[list[ShardWork]] = []
    least, most = [], []
    others: list[tuple[int, ShardWork, int, int]] = []  # table, work of a block, blocks, replicas
    for index, table in enumerate(task.tables):
        limits = task.constraints.of(table.name)
        unit = (
            UNIT if table.dim % UNIT == 0 and table.dim >= 2 * UNIT else 1
        )  # as `search.units` cuts narrow and odd dims
        units = table.dim // unit if limits.allows("column_wise") else 1
        columns.append([_work(task, table, (0, table.rows), table.dim * n // units) for n in range(1, units + 1)])
        least.append(1 if limits.allows("table_wise") else 2)
        most.append(min(units, limits.max_shards or units))
        others += [(index, *other) for other in _other_ways(task, table)]
    flat = [work for works in columns for work in works]
    works = flat + [work for _, work, _, _ in others]
    vectors = vectors_of(cost_model, cost_model.encode(works))
    served = np.array([served_bytes(work) for work in works]).reshape(-1, 2)
    count = np.array([blocks * replicas for _, _, blocks, replicas in others]).reshape(-1, 1)
    alone = np.array([replicas == 1 for *_, replicas in others]).reshape(-1, 1)
    reduced = [_reduced(task.topology, work, replicas) for _, work, _, replicas in others]
    return _Ways(
        first=np.concatenate([[0], np.cumsum([len(works) for works in columns])]).astype(np.int64),
        least=np.array(least, dtype=np.int64),
        most=np.array(most, dtype=np.int64),
        vectors=vectors[: len(flat)],
        traffic=served[: len(flat)],
        other_table=np.array([index for index, *_ in others], dtype=np.int64),
        other_vectors=vectors[len(flat) :] * count,
        other_traffic=served[len(flat) :] * count * alone,
        other_reduced=np.array(reduced).reshape(-1, 2),
    )


def _work(task: Task, table: Table, rows: tuple[int, int], dim: int, replicas: int = 1) -> ShardWork:
    return shard_work(task, Shard(table.name, rows, (0, dim), tuple(range(replicas))))


def _other_ways(task: Task, table: Table) -> list[tuple[ShardWork, int, int]]:
    """Row blocks and a replica everywhere: the work of a block, how many blocks, how many replicas of each."""
    limits, devices = task.constraints.of(table.name), task.topology.devices
    found = []
    if limits.allows("row_wise") or limits.allows("table_row_wise"):
        most = min(devices, table.rows, limits.max_shards or devices)
        counts = {2**power for power in range(1, most.bit_length())}
        counts |= {min(most, wide) for wide in (devices, task.topology.devices_per_host, len(limits.devices or ()))}
        for count in sorted(count for count in counts if 2 <= count <= most):
            # Blocks differ by one row at most; the price of such a mix is no less than that of all shorter or all longer ones.
            sizes = {table.rows // count, -(-table.rows // count)}
            found += [(_work(task, table, (0, size), table.dim), count, 1) for size in sorted(sizes)]
    if limits.allows("data_parallel") and devices > 1:
        found.append((_work(task, table, (0, table.rows), table.dim, devices), 1, devices))
    return found


def _reduced(topology: Topology, work: ShardWork, replicas: int) -> tuple[float, float]:
    """Bytes that each replica sends inside its host and between hosts to reduce its gradients; see `cost.communication`."""
    if replicas == 1:
        return 0.0, 0.0
    gradient, near, hosts = 4.0 * work.rows * work.dim, topology.devices_per_host, topology.hosts
    return 2 * (near - 1) / near * gradient, 2 * (hosts - 1) / hosts * gradient / near
