"""The time of a step's collectives, by the way in which a table's blocks lie.

The cluster has H hosts of P devices, D = H P. B samples of a step look up in a block of C columns for F
features; a value takes v bytes on the wire, and V = B F C v.

    blocks on single devices      all-to-all of outputs: their holder sends V (D - 1) / D
    rows dealt to all devices     reduce-scatter of V over all devices; an all-gather of the gradients
    rows dealt to one host        reduce-scatter of V inside the host, then an all-to-all across hosts of V / P from each of its devices
    a replica on every device     all-reduce of the block's gradient

Before the lookups, ids and lengths go to the holders by all-to-alls. A collective takes `latency + bytes / bandwidth` of its slower link
class. A device sends

    reduce-scatter, all-gather    inside its host V (n - 1) / n among n devices, and between hosts V (D - 1) / D / P: the P rings of a host
                                  share the crossing
    all-reduce                    inside 2 G (P - 1) / P, and between hosts 2 G (H - 1) / H / P, of a gradient of G bytes

All-to-alls share the links of a pass, so a device waits for the busier direction of the slower link class. The other collectives follow one
another. If links carry more for a device that sends alone than for all at once (`LinkSpeed.alone`), a link class takes

    max(bytes of the device / bandwidth alone, mean bytes of the devices / bandwidth of all at once)

in an all-to-all, each in the busier direction. The mean is over the devices of the host, which share its links. If hosts have one device,
it is over all devices, since receivers share links as well.
Rows count as dealt if each device of the place has a block, and no block is larger than equal ones must be, as in TorchRec. Other row
blocks of pooled tables send partial sums to every device, as whole tables do. Rows of a sequence table that are dealt to all devices travel
by all-to-alls too, but by a set of their own.

*Shared collectives* (`Exchange.collectives`): all tables of a step travel in the same messages, so that there is one set: two messages of
counts and ids, one of values, one of gradients. Each holder sends its partial sums to every device; nothing is reduced on the way. Ids of
pooled tables take 4 bytes, and no lengths travel.

*Sets.* Each sharding type that a module uses calls its own collectives, whose latencies every device pays: three for the input (four if a
table is weighted), one or two forward and as many backward. The input collectives follow one another at once, so that each may cost less
than its full latency. Whole tables and column blocks count as one type, since TorchRec takes a whole table as `column_wise` too. Sequence
tables of each dim are a module, because an `EmbeddingCollection` has one dim, and every module calls its own collectives.

Source: `torchrec.distributed.sharding`, TorchRec 1.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.sharding.shard import Shard
from shardwright.task.links import Collective
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES, Topology

Way: TypeAlias = Literal["all_to_all", "row_wise", "table_row_wise", "sequence_rows", "data_parallel"]
WAYS: tuple[Way, ...] = ("all_to_all", "row_wise", "table_row_wise", "sequence_rows", "data_parallel")
"""How the outputs of a block reach the devices: see the module."""

SETS = 2 * len(WAYS)
"""Kinds of sets: the ways of pooled tables, then those of sequence tables, which have modules of their own."""


@dataclass(frozen=True, eq=False)
class CollectivePrices:
    """Prices in ms, of a task.

    Attributes:
        forward: `(2,)` of a byte that a device sends in an all-to-all of the forward pass, inside a host and between hosts.
        backward: `(2,)` of the gradient of a byte of values.
        mean: `(2, 2)` the same of a byte of the mean device, by pass; 0 where links are not faster for a device alone.
        dealt: `(2, 2)` of a byte of V on every device of the place: rows dealt to all devices, then to one host; forward and backward.
        replicas: of a byte of gradient that every device has.
        sets: `(SETS, 2)` latencies of the collectives of each set, forward and backward, in all modules.
        inputs: `(SETS,)` part of the forward latencies that belongs to the exchange of ids.
    """

    forward: Floats
    backward: Floats
    mean: Floats
    dealt: Floats
    replicas: float
    sets: Floats
    inputs: Floats


def sequence_dims(task: Task) -> set[int]:
    """The dims of a task's sequence tables, each of which TorchRec looks up in a module of its own."""
    return {table.dim for table in task.tables if not table.pooled}


def prices_of(task: Task) -> CollectivePrices:
    """The prices of a task's collectives."""
    exchange = task.exchange
    shared = exchange.collectives == "shared"
    both = shared and len({table.pooled for table in task.tables}) > 1
    inputs = (1, 1) if shared else tuple(2 + weighted for weighted in task.weighted)
    narrower = VALUE_BYTES[exchange.gradients] / VALUE_BYTES[exchange.values]
    modules = 1 if shared or not exchange.as_torchrec else len(sequence_dims(task))
    return _prices(task.topology, exchange.collective, narrower, inputs, modules, both)


@lru_cache(maxsize=64)
def _prices(
    topology: Topology, collective: Collective, narrower: float, following: tuple[int, ...], modules: int, both: bool
) -> CollectivePrices:
    hosts, per_host, devices = topology.hosts, topology.devices_per_host, topology.devices
    each, of_mean = (1e3 / np.array(of(collective)) for of in (topology.alone_of, topology.bandwidth_of))
    of_mean = np.where(of_mean > each, of_mean, 0.0)
    passes = np.array([1.0, narrower])
    across = (devices - 1) / devices, (devices - 1) / devices / per_host * (hosts > 1)
    inside = (per_host - 1) / per_host, 0.0
    directions: tuple[Collective, Collective] = ("reduce_scatter", "all_gather")
    dealt = np.array([[_slower(topology, direction, share) for direction in directions] for share in (across, inside)])
    reduced = 2 * (per_host - 1) / per_host, 2 * (hosts - 1) / hosts / per_host
    return CollectivePrices(
        each,
        each * narrower,
        np.outer(passes, of_mean),
        dealt * passes,
        _slower(topology, "all_reduce", reduced),
        *_sets(topology, collective, following, modules, both),
    )


def _slower(topology: Topology, collective: Collective, shares: tuple[float, float]) -> float:
    """Ms of a byte if a device sends `shares` of it over the two link classes."""
    return 1e3 * max(share / speed for share, speed in zip(shares, topology.bandwidth_of(collective), strict=True))


def _sets(
    topology: Topology, collective: Collective, following: tuple[int, ...], modules: int, both: bool
) -> tuple[Floats, Floats]:
    """Latencies of the sets.

    Args:
        topology: the cluster.
        collective: the collective of ids, values and gradients.
        following: input collectives after the first one, of pooled tables and of sequence tables.
        modules: modules of sequence tables.
        both: whether sequence tables travel in the messages of the pooled ones.
    """
    waits, inputs = np.zeros((2, len(WAYS), 2)), np.zeros((2, len(WAYS)))
    if topology.devices == 1:
        return waits.reshape(SETS, 2), inputs.reshape(SETS)

    def slower(intra: float, inter: float, across: bool = True) -> float:
        return max(intra * (topology.devices_per_host > 1), inter * (across and topology.hosts > 1))

    def latency(name: Collective, across: bool = True) -> float:
        return slower(*topology.latency_of(name), across)

    follows = slower(*topology.following_of(collective))
    exchanged, scattered, gathered = (latency(name) for name in (collective, "reduce_scatter", "all_gather"))
    for kind, more in enumerate(following):
        inputs[kind, : WAYS.index("data_parallel")] = exchanged + more * follows
        waits[kind, :, 0] = exchanged + more * follows
        waits[kind, 0] += exchanged
        waits[kind, 1] += scattered, gathered
        waits[kind, 2] += latency("reduce_scatter", False) + exchanged, latency("all_gather", False) + exchanged
        waits[kind, 3] += exchanged
        waits[kind, -1] = 0.0, latency("all_reduce")
    waits[1, :-1] *= modules  # all modules together reduce the gradients of replicas
    inputs[1] *= modules
    if both:
        waits[1, :-1], inputs[1] = 0.0, 0.0
    return waits.reshape(SETS, 2), inputs.reshape(SETS)


class LinkFacts(NamedTuple):
    """A topology's links as the engine prices them; `LinkFacts` in `native/pricing.hpp`.

    Attributes:
        devices: number of devices.
        per_host: devices a host.
        forward: `(2,)` ms a byte that a device sends in all-to-alls inside and between hosts in the forward pass.
        backward: `(2,)` the same of the backward pass.
        mean: `(4,)` ms a byte of the mean device, of the forward and then of the backward pass; see `CollectivePrices`.
        hidden: `(3,)` ms for which values, ids and gradients travel behind dense layers.
    """

    devices: int
    per_host: int
    forward: Floats
    backward: Floats
    mean: Floats
    hidden: Floats

    @classmethod
    def of(cls, task: Task) -> LinkFacts:
        """The links of a task's topology."""
        topology, prices = task.topology, prices_of(task)
        hidden = np.array(astuple(task.exchange.hidden), dtype=np.float64)
        mean = prices.mean.ravel()
        return cls(topology.devices, topology.devices_per_host, prices.forward, prices.backward, mean, hidden)


def set_ms(task: Task, weights: Floats | None = None) -> Floats:
    """`(SETS,)` ms of the latencies of each set in a step, for the engine, which does not model how far dense layers hide latencies.

    Args:
        task: the task.
        weights: `(3,)` weights of values, gradients and ids that dense layers hide, at least in part; 0 by default. Others count fully.
    """
    prices, hidden = prices_of(task), task.exchange.hidden
    is_hidden = np.array([hidden.values, hidden.gradients, hidden.ids]) > 0
    values, gradients, ids = np.where(is_hidden, 0.0 if weights is None else weights, 1.0)
    ms = prices.sets * [values, gradients] + np.outer(prices.inputs, [ids - values, 0.0])
    return np.array(ms.sum(axis=1))


def set_of(way: Way, pooled: bool) -> int:
    """Index of the set that a block of a pooled table, or of a sequence table, needs."""
    return WAYS.index(way) + (0 if pooled else len(WAYS))


def waits_of(prices: CollectivePrices, sets: Iterable[int]) -> Floats:
    """`(2,)` ms of the latencies of some sets, forward and backward."""
    waits: Floats = prices.sets[sorted(set(sets))].sum(axis=0)
    return waits


def way_of(task: Task, blocks: Sequence[Shard]) -> Way:
    """The way of the blocks of one table that have the same columns, each on one device."""
    ranks = {block.devices[0] for block in blocks}
    if len(ranks) < 2 or len(ranks) != len(blocks):
        return "all_to_all"
    table = task.table_by_name[blocks[0].table]
    by_id = all(len(block.devices) == 1 and block.row_order == "id" for block in blocks)
    sizes = [block.row_count for block in blocks]
    equal = max(sizes) <= -(-table.rows // len(ranks)) and sum(sizes) == table.rows
    return dealt_way(task, table, sorted(ranks)) if by_id and equal else "all_to_all"


def dealt_way(task: Task, table: Table, ranks: Sequence[int]) -> Way:
    """The way of a table's equal row blocks on different devices, ascending."""
    ways, topology = row_ways(task, table, len(ranks)), task.topology
    one_host = topology.host_of(ranks[0]) == topology.host_of(ranks[-1])
    return ways[-1] if ways[0] == "table_row_wise" and not one_host else ways[0]


def row_ways(task: Task, table: Table, count: int) -> tuple[Way, ...]:
    """The ways that `count` equal row blocks of a table may have: on the devices of one host if these are as many, then elsewhere."""
    topology, exchange = task.topology, task.exchange
    if count < 2 or exchange.collectives == "shared" or not (table.pooled or exchange.as_torchrec):
        return ("all_to_all",)
    if count == topology.devices:
        return ("row_wise" if table.pooled else "sequence_rows",)
    return ("table_row_wise", "all_to_all") if table.pooled and count == topology.devices_per_host else ("all_to_all",)


def by_columns(shards: Iterable[Shard]) -> dict[tuple[str, tuple[int, int]], list[Shard]]:
    """The shards of each table that have the same columns."""
    of_columns: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in shards:
        of_columns.setdefault((shard.table, shard.columns), []).append(shard)
    return of_columns


def sets_of(task: Task, shards: Iterable[Shard]) -> set[int]:
    """The sets that the shards of a plan need.

    Replicas on only some of the devices also serve the others, so they need the all-to-alls as well as the all-reduce.
    """
    sets, devices = set(), task.topology.devices
    for (name, _), blocks in by_columns(shards).items():
        pooled, holders = task.table_by_name[name].pooled, {len(block.devices) for block in blocks}
        if min(holders) < devices or devices == 1:
            sets.add(set_of(way_of(task, blocks), pooled))
        if max(holders) > 1:
            sets.add(set_of("data_parallel", pooled))
    return sets
