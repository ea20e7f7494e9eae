"""The costs of rows in every tier, the cheapest mixture of tiers, and a proven bound on the communication of every plan.

*Coefficients.* The rows between two points of an access profile are alike: a *segment*. For each segment of each sequence table and each
*way* to hold a row, `cost.flows` gives the bytes that all devices together send, linear in the rows. A way is k copies on h hosts.
The four extremes are enough (see there); with "cheaper" gradients, each of them twice.

*The relaxed problem* covers all tables together. Let x be the rows of each segment held in each way. Minimise T_f + T_b + T_r: the forward
all-to-alls, the backward ones and the exchange of replicas. Here T_f ≥ wait_l + ms_l(x) for both link classes l, the others likewise, and
bytes(x) ≤ the memory of all devices: a linear program. Its Lagrangian at prices λ of the link classes (which sum to 1 for each collective)
and μ of a byte separates into segments:

    L(λ, μ) = Σ_l λ_l wait_l - μ memory + Σ over segments of min over ways of (λ · ms + μ bytes)

L is a bound for any prices. The best prices are the dual solution of the program over mixtures of the answers so far. The segments'
cheapest ways at those prices are the next answer. It ends when both meet. A mixture can be carried out exactly: rows of a segment are
alike, so the segment is cut.

*The bound.* Any plan holds each row, or each column block of it, in some places: k copies on h hosts. Its bytes are at least linear in h
and k (`cost.flows`), so it costs at least its cheapest extreme at the prices of the relaxed problem. A column block costs its part of that:
column blocks share values, gradients and weights, but not ids and row-wise states. A pass lasts at least as long as the mean device's bytes
take on either link, after the latency of a link that carries any. Memory is that of all devices together, less the least that buffers of
all tables, and pooled tables themselves, can take. The traffic of pooled tables is left out. The most that dense layers may hide is
subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import prices_of, set_of
from shardwright.cost.flows import GRADIENT_BYTES
from shardwright.cost.model import CostModel
from shardwright.linear_programs import Program
from shardwright.sharding.costs import BoundScope
from shardwright.sharding.memory import gradient_size, optimizer_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ID_BYTES, shard_work
from shardwright.task.table import Table, row_bytes
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES

Tier: TypeAlias = Literal["hot", "warm", "host", "cold"]


@dataclass(frozen=True)
class RowWay:
    """One way to hold a row.

    Attributes:
        tier: its name; "host" means on all devices of one host.
        hosts: hosts with a copy.
        copies: copies on all devices together.
        touched: whether the copies exchange touched rows only.
    """

    tier: Tier
    hosts: int
    copies: int
    touched: bool = False


@dataclass(frozen=True, eq=False)
class Rates:
    """Coefficients of n segments and w ways.

    Attributes:
        tables: the sequence tables.
        ways: the ways.
        table: `(n,)` table of each segment; those of a table lie side by side, hottest first.
        rows: `(n,)` rows of each segment.
        ms: `(w, n, 6)` ms that a segment held this way adds to the mean device's links: forward inside and between hosts, backward
            likewise, and the exchange of replicas likewise.
        bytes: `(w, n)` memory that it takes on all devices together.
        each: `(w, n)` memory that it takes on every single device.
    """

    tables: tuple[Table, ...]
    ways: tuple[RowWay, ...]
    table: Ints
    rows: Floats
    ms: Floats
    bytes: Floats
    each: Floats

    def of_tier(self, tier: Tier) -> list[int]:
        """Indices of the ways of a tier."""
        return [index for index, way in enumerate(self.ways) if way.tier == tier]


def row_memory(task: Task, table: Table) -> int:
    """Bytes of weights and optimizer state of a row of a table that is not cut into columns."""
    return row_bytes(table.dtype, table.dim) + optimizer_bytes(task.optimizer, 1, table.dim)


def gradient_memory(task: Task, table: Table) -> int:
    """Bytes of a row's gradient on each of several copies that reduce it whole."""
    return gradient_size(task, table.pooled, table.dtype) * table.dim


def ways_of(task: Task, tiers: Sequence[Tier]) -> tuple[RowWay, ...]:
    """The ways to hold a row in these tiers on the task's cluster, each once."""
    hosts, per_host = task.topology.hosts, task.topology.devices_per_host
    copies: dict[Tier, tuple[int, int]] = {
        "cold": (1, 1), "host": (1, per_host), "warm": (hosts, hosts), "hot": (hosts, hosts * per_host)
    }  # fmt: skip
    places: dict[tuple[int, int], Tier] = {}
    for tier in tiers:  # if tiers share a place, the first name counts
        places.setdefault(copies[tier], tier)
    kinds = {"whole": (False,), "touched": (True,), "cheaper": (False, True)}[task.exchange.replica_gradients]
    return tuple(
        RowWay(tier, h, k, touched) for (h, k), tier in places.items() for touched in (kinds if k > 1 else (False,))
    )


def rates_of(task: Task, tables: Sequence[Table], tiers: Sequence[Tier] = ("cold", "hot", "warm")) -> Rates:
    """The coefficients of some sequence tables of a task in some tiers."""
    ways = ways_of(task, tiers)
    rows = np.concatenate([np.diff(table.access.rows) for table in tables])
    share = np.concatenate([np.diff(table.access.share) for table in tables])
    index = np.repeat(np.arange(len(tables)), [table.access.rows.size - 1 for table in tables])
    lookups = np.array([table.pooling for table in tables])[index] * task.batch_size / task.topology.devices
    dim = np.array([table.dim for table in tables], dtype=np.float64)[index]
    memory = rows * np.array([row_memory(task, table) for table in tables])[index]
    gradient = rows * np.array([gradient_memory(task, table) for table in tables])[index]
    copy = [memory + gradient if way.copies > 1 else memory for way in ways]
    asks = _Asks.of(task, rows, lookups * share / rows)
    ms = np.stack([_link_ms(task, asks, way, dim) for way in ways])
    per_device = {"hot": 1.0, "warm": 1 / task.topology.devices_per_host}
    return Rates(
        tuple(tables), ways, index, rows, ms,
        np.stack([way.copies * held for way, held in zip(ways, copy, strict=True)]),
        np.stack([per_device.get(way.tier, 0.0) * held for way, held in zip(ways, copy, strict=True)]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Asks:
    """Looked-up rows of each segment, `(n,)` each: those that a device asks for, and the distinct ones of a device, a host and all.

    Attributes:
        each: rows that a device asks another one for.
        far: rows that a device asks for between hosts; through proxies, rows that its host asks for.
        proxies: whether a host asks as one.
        rows: all rows of the segment.
        device: distinct rows of the samples of one device.
        host: distinct rows of the samples of one host.
        all: distinct rows of all samples.
    """

    each: Floats
    far: Floats
    proxies: bool
    rows: Floats
    device: Floats
    host: Floats
    all: Floats

    @classmethod
    def of(cls, task: Task, rows: Floats, mean: Floats) -> _Asks:
        per_host, devices = task.topology.devices_per_host, task.topology.devices
        device, host, everyone = (-rows * np.expm1(-count * mean) for count in (1, per_host, devices))
        none, proxies = task.exchange.deduplicate == "none", task.exchange.deduplicate == "host"
        each = rows * mean if none else device
        return cls(each, host if proxies else each, proxies, rows, device, host, everyone)


def _link_ms(task: Task, asks: _Asks, way: RowWay, dim: Floats) -> Floats:
    """`(n, 6)` ms of the mean device; see `cost.flows`."""
    topology, prices = task.topology, prices_of(task)
    hosts, per_host, (h, k) = topology.hosts, topology.devices_per_host, (way.hosts, way.copies)
    value, gradient = VALUE_BYTES[task.exchange.values] * dim, GRADIENT_BYTES * dim
    inside = (h * per_host - k + (hosts - h) * (per_host - 1) * asks.proxies) * asks.each
    between = (hosts - h) * (1 if asks.proxies else per_host) * asks.far
    if way.touched:
        row = ID_BYTES + gradient
        agree = (k - h) * row * (asks.device + asks.all), (h - 1) * row * (asks.host + asks.all)
    else:
        agree = 2 * (k - h) * gradient * asks.rows, 2 * (h - 1) * gradient * asks.rows
    flows = [
        (value + ID_BYTES) * inside,
        (value + ID_BYTES) * between,
        value * inside,
        value * between,
        *agree,
    ]
    reduced = 1e3 / np.array(topology.bandwidth_of("all_reduce"))
    asked = np.maximum([prices.forward, prices.backward], prices.mean).ravel()
    each: Floats = np.concatenate([asked, reduced]) / topology.devices
    return np.stack(flows, axis=1) * each


_LINKS = 6  # terms of the links: three collectives, two link classes each
_ROUNDS = 60
_EXACT = 1e-4  # share of the optimum: how close the mixture and the bound have to come
_FIRST_PRICES = 2.0 ** np.arange(
    -8, 9, 4
)  # of a byte, in units of the cold plan's communication per byte of memory that it leaves free


@dataclass(frozen=True, eq=False)
class Limits:
    """The constraints of the mixture.

    Attributes:
        memory: bytes of all devices together.
        each: bytes that every single device has for the rows that lie on all devices; None if the total is limit enough.
        waits: `(6,)` further ms of each link class: latency, and the traffic of other tables.
    """

    memory: float
    each: float | None
    waits: Floats


@dataclass(frozen=True, eq=False)
class Mixture:
    """The best mixture.

    Attributes:
        ms: its forward plus backward communication.
        bound_ms: the least that any mixture takes.
        rows: `(w, n)` rows of each segment in each way.
    """

    ms: float
    bound_ms: float
    rows: Floats


@dataclass(frozen=True, eq=False)
class _Answer:
    """A way for every segment: `(n,)` chosen ways; `(8,)` sums of ms on the links, of memory in all and on every device."""

    chosen: Ints
    sums: Floats


class TierRelaxation:
    """The linear program of some tables' tiers; answers found under some limits serve under others too."""

    def __init__(self, rates: Rates, known: TierRelaxation | None = None) -> None:
        """Begin with the answers of `known` that still apply, if given; its ways are those of `rates` and maybe more."""
        self.rates = rates
        memory = np.stack([rates.bytes, rates.each], axis=2)
        self._terms = np.concatenate([rates.ms, memory], axis=2)
        answers: list[_Answer] = known._answers if known else []
        self._answers: list[_Answer] = [
            self._of(answer.chosen) for answer in answers if answer.chosen.max() < len(rates.ways)
        ]

    def solve(self, limits: Limits) -> Mixture | None:
        """The best mixture under the limits; None if even the way of fewest bytes breaks them."""
        if not self._answers:
            self._first()
        if self._answers[0].sums[_LINKS] > limits.memory:
            return None
        self._scan(limits)
        bound, ms = -np.inf, np.inf
        for _ in range(_ROUNDS):
            ms, weights, prices = _programme([answer.sums for answer in self._answers], limits)
            answer = self._cheapest(prices)
            paid = float(prices[_LINKS]) * limits.memory + float(prices[_LINKS + 1]) * (limits.each or 0.0)
            bound = max(bound, float(answer.sums @ prices + prices[:_LINKS] @ limits.waits - paid))
            if ms - bound <= _EXACT * max(ms, 0.0):
                break
            self._answers.append(answer)
        rows = np.zeros_like(self.rates.bytes)
        every = np.arange(self.rates.rows.size)
        for weight, answer in zip(weights, self._answers, strict=False):
            if weight > 0:
                rows[answer.chosen, every] += weight * self.rates.rows
        return Mixture(ms, min(bound, ms), rows)

    def _first(self) -> None:
        """Add the answer that holds all rows in the way of fewest bytes."""
        least = int(np.argmin(self.rates.bytes.sum(axis=1)))
        self._answers.append(self._of(np.full(self.rates.rows.size, least)))

    def _scan(self, limits: Limits) -> None:
        """Add answers at a few prices of a byte; the best price lies between these."""
        cold = self._answers[0].sums
        times = (cold[:_LINKS] + limits.waits).reshape(-1, 2)
        slowest, free = times.max(axis=1, keepdims=True), limits.memory - float(cold[_LINKS])
        if len(self._answers) > 1 or free <= 0:
            return
        links = (times == slowest) / (times == slowest).sum(axis=1, keepdims=True)
        for factor in _FIRST_PRICES:
            price = factor * float(slowest.sum()) / free
            self._answers.append(self._cheapest(np.concatenate([links.ravel(), [price, 0.0]])))

    def _cheapest(self, prices: Floats) -> _Answer:
        return self._of((self._terms @ prices).argmin(axis=0))

    def _of(self, chosen: Ints) -> _Answer:
        sums: Floats = self._terms[chosen, np.arange(chosen.size)].sum(axis=0)
        return _Answer(chosen, sums)


def _programme(sums: list[Floats], limits: Limits) -> tuple[float, Floats, Floats]:
    """The best mixture of some answers: its ms, `(answers,)` weights, and `(8,)` prices of link classes and bytes."""
    columns = np.array(sums).T
    unit = float(columns[:_LINKS, 0].max() + limits.waits.max()) or 1.0  # the solver's tolerances are absolute
    scale = np.array([limits.memory or 1.0, limits.each or 1.0])
    program = Program()
    weights = program.variables(np.full(len(sums), np.inf))
    passes = program.variables(np.full(_LINKS // 2, np.inf), low=-np.inf, cost=1.0)
    program.row(weights, 1.0, 1.0, 1.0)
    for link, wait in enumerate(limits.waits):
        program.row([*weights, passes[link // 2]], [*columns[link] / unit, -1.0], high=-wait / unit)
    program.row(weights, columns[_LINKS] / scale[0], high=1.0)
    program.row(weights, columns[_LINKS + 1] / scale[1], high=1.0 if limits.each is not None else np.inf)
    solution = program.relaxed()
    if solution.values is None or solution.duals is None:
        return np.inf, np.zeros(len(sums)), np.concatenate([np.full(_LINKS, 0.5), 1.0 / scale])
    marginals = np.maximum(-solution.duals[1:], 0.0)
    prices = np.concatenate([marginals[:_LINKS], marginals[_LINKS:] * unit / scale])
    prices[:_LINKS] /= np.repeat(np.maximum(marginals[:_LINKS].reshape(-1, 2).sum(axis=1), 1e-300), 2)
    return solution.objective * unit, solution.values[weights], prices


_EVERY_WAY: tuple[Tier, ...] = ("cold", "hot", "warm", "host")


def communication_bound(task: Task) -> tuple[float, TierRelaxation | None]:
    """Lower bound in ms on any plan's forward plus backward communication, and its program; 0 if nothing need be sent."""
    sequences = [table for table in task.tables if not table.pooled]
    if not sequences or task.topology.devices == 1:
        return 0.0, None
    relaxation = TierRelaxation(rates_of(task, sequences, _EVERY_WAY))
    memory = float(sum(task.topology.memory_bytes)) - sum(_least_besides(task, table) for table in task.tables)
    rows = sum(_looked_up(table) * row_memory(task, table) for table in sequences)
    mixture = relaxation.solve(Limits(memory, None, _least_waits(task, rows, memory)))
    return max(0.0, mixture.bound_ms - task.exchange.hidden.total_ms) if mixture else 0.0, relaxation


def plans_bound(task: Task, cost_model: CostModel) -> tuple[float, BoundScope]:
    """Lower bound in ms on the step of any plan of a task with sequence tables, tiers and all blocks included; and its scope.

    Kernels count only if the cost model has a `superadditive` one below it, by which no cutting makes a table cheaper. Then the busiest
    device takes at least an even share of the time of all tables whole.
    """
    links = communication_bound(task)[0]
    least = cost_model.superadditive
    if least is None or least.pricing.hidden.size or (least.pricing.linear < 0).any():
        return links, "links"
    pricing = least.pricing
    whole = least.encode([shard_work(task, Shard.whole(table, 0)) for table in task.tables])
    kernels = float(pricing.price(whole.sum(axis=0) / task.topology.devices).sum())
    return kernels + links, "all"


def tier_bound(task: Task, memory: Ints, relaxation: TierRelaxation) -> float:
    """Lower bound in ms on the communication of any tiers of some tables.

    Cold rows lie on all devices, so each device takes the offsets of a whole batch. Each cold row is charged a part of these offsets, and
    all cold rows at most the whole. If memories are unequal, cold rows may lie on the roomier devices only, so no more than one block of
    them is charged.

    Args:
        task: the task.
        memory: `(devices,)` bytes for the tables.
        relaxation: the program of the tables' tiers.
    """
    if task.topology.devices == 1:
        return 0.0
    rates = relaxation.rates
    if np.ptp(memory) == 0:
        total = np.array([table.rows for table in rates.tables], dtype=np.float64)[rates.table]
        bags = task.batch_size * np.array([len(table.poolings) for table in rates.tables])[rates.table]
        offsets = 8 * bags * (np.minimum(total, task.topology.devices) - 1) * rates.rows / total
        cold = np.array([way.tier == "cold" for way in rates.ways])
        relaxation = TierRelaxation(replace(rates, bytes=rates.bytes + np.outer(cold, offsets)), relaxation)
    free = float(memory.sum()) - sum(_least_besides(task, table) for table in rates.tables)
    looked_up = sum(_looked_up(table) * row_memory(task, table) for table in rates.tables)
    mixture = relaxation.solve(Limits(free, None, _least_waits(task, looked_up, free)))
    return max(0.0, mixture.bound_ms - task.exchange.hidden.total_ms) if mixture else 0.0


def _looked_up(table: Table) -> float:
    """Number of rows of a table that samples look up at all."""
    return float(np.diff(table.access.rows)[np.diff(table.access.share) > 0].sum())


def _least_besides(task: Task, table: Table) -> float:
    """Least bytes that a table takes; the rows of a sequence table are left out."""
    lookups, bags = table.pooling * task.batch_size, len(table.poolings) * task.batch_size
    if not table.pooled:
        return 8 * (lookups + bags) + 8 * table.dim * lookups
    values = 8 * table.dim * bags
    return table.rows * row_memory(task, table) + 8 * (lookups + bags) + values


def _least_waits(task: Task, rows: float, memory: float) -> Floats:
    """`(6,)` ms of latency that can be charged to each collective, alike for both link classes.

    Devices ask for rows unless all rows lie on all devices. If memory allows that, a plan needs either all-to-alls or the exchange of
    replicas.

    Args:
        task: the task.
        rows: bytes of all rows that samples look up.
        memory: bytes that all devices together have for rows.
    """
    sets = prices_of(task).sets
    forward, backward = sets[set_of("all_to_all", False)]
    if rows * task.topology.devices <= memory:
        reduced = sets[set_of("data_parallel", False)].sum()
        return np.array([0.0, 0.0, 0.0, 0.0, *[min(float(reduced), float(forward + backward))] * 2])
    return np.array([forward, forward, backward, backward, 0.0, 0.0])
