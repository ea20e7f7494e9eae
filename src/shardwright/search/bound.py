r"""A proven lower bound on the step time of every plan.

What it holds for: devices of one type, and plans whose tables are each whole, cut into column blocks (of multiples of 4 columns where
the dim is one, or of the multiples that a constraint asks for), into row blocks whose borders lie on a grid of 16 parts of the table (from
1,024 rows on; on several hosts only where a table may be both row_wise and table_row_wise), into row blocks of equal size (to a row) over
2, 4, 8, … devices, as many as a host has, as a table is pinned to, or all, or replicated on every device, as far as the table's constraints
and the memory of single devices allow. Memory filled by several tables, pinning, colocation and separation only remove plans, so the bound
stays valid whatever they say; it does not see them otherwise.

Proof. A device makes one or several fused calls of K kinds that the task's tables and their ways allow. With f the forward + backward
time of a call, convex in its sum of vectors z_k, a device in use takes the sum of f(z_k) over the calls that it makes, at least one. Where
f(0) ≥ 0, the cost of a call with nothing in it, that is at least

    F(z) = f(0) + Σ_k (f(z_k) - f(0)),    z = (z_1 … z_K), z_k = 0 for a call that is not made

which is convex, too: K heads beside each other, less what K - 1 empty ones cost. (Of a phase with f(0) < 0, the constant is K f(0): no
device makes more calls. Times are at least 0, so f without its floor at 0 is no more.) With D devices, let z_d be the sums of device d.
The step time is a sum over phases of maxima over devices, and a maximum is at least a mean:

    step  ≥  mean_d F(z_d) + (mean bytes over links) / bandwidth + latency  ≥  F(Σ z_d / D) + …                  (Jensen)

A hidden unit of F costs m · max(0, a) = max over λ in [0, 1] of λ · m · a, and of two link classes the slower counts, so for every λ in
[0, 1]^(K h) and every mix of the link classes

    F(Σ z_d / D) + …  ≥  Σ_kh λ_kh m_h b_h + constant + latency + (1 / D) Σ over tables of price_λ(what the plan makes of the table)

and price_λ, linear in the vectors and bytes, is at least its minimum over the ways the table may be cut: a shortest path over widths. The
right side is a bound for any λ. The best λ is the dual solution of a linear programme over mixtures of ways, which is solved by column
generation: the tables' cheapest ways at the λ so far are the columns of the next programme (a few groups of tables have a column each).
Devices without a shard make no call, so the mean is over the devices in use; where the priced sum of a plan's kernels is
positive that costs most on few devices. Where the least such sum over all plans is negative (prices of small pieces can be; of whole
models they were not in practice), the bound is no more than what that least sum costs on one device.

Tightening. Take a plan of step time U that is known, a piece p, and a set Q of phases. The step time of any plan that holds p is at
least what p's device spends on the phases in Q, plus the mean over devices of the other phases, which the same programme bounds from
below with these phases alone. On the phases in Q the device spends at least, for every λ, (constant) + price_λ(p) + Σ over tables of
min(0, the least that any part of it can add), and p's own bytes on the links. A piece for which that exceeds U is in no better plan: it
is struck out, and the bound of what is left, or U if that is lower, holds for all plans. And every table must be cut somehow: the
smallest, over its ways, of the largest of these figures over the way's pieces is a bound too. It binds where one table dominates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from shardwright.cost.model import CostModel
from shardwright.cost.pricing import Pricing
from shardwright.search.engine.catalog import Catalog, make_catalog
from shardwright.search.relaxation import Choice, Loads, Prices, Relaxation, ms_per_byte
from shardwright.task.task import Task

Floats = npt.NDArray[np.float64]

_ROUNDS = 40
_EXACT = 1e-4  # of the bound: how close the programme and the bound have to come
_GROUPS = 50
_STALLED = 2
_PROBES = 8
ALL_PHASES = np.ones(4)  # forward, backward, forward links, backward links
_OWN_PHASES = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]], dtype=np.float64)


@dataclass(frozen=True)
class Bound:
    """A proven bound.

    Attributes:
        ms: no plan of the task has a smaller step time.
        prices: the prices behind it.
        choice: what every table chooses at these prices: a hint where cutting and replicating pay.
    """

    ms: float
    prices: Prices
    choice: Choice


def lower_bound(task: Task, cost_model: CostModel) -> Bound | None:
    """A bound on the step time of every plan of the task; None where the cost model is not convex."""
    if not cost_model.pricing.convex:
        return None
    return BoundProof(make_catalog(task, cost_model), cost_model).solve()


class BoundProof:
    """The bound of a task, tightened as better plans are found.

    Args:
        catalog: what can be made of the task's tables.
        cost_model: a convex one.
    """

    def __init__(self, catalog: Catalog, cost_model: CostModel) -> None:
        self._task, self._pricing = catalog.task, cost_model.pricing
        self._relaxation = Relaxation(catalog)
        self._constants = _constants(self._pricing, self._relaxation.calls)
        self._replicated = _all_replicated(catalog, cost_model.pricing)
        self._mix = self._pricing.mix.sum(axis=0)

    def solve(self, phases: Floats = ALL_PHASES, deadline: float | None = None) -> Bound:
        """The best bound over the pieces that are left.

        Args:
            phases: `(4,)` 0 for phases that do not count.
            deadline: `time.monotonic()` at which the bound so far has to do; None for no limit.
        """
        tables = self._relaxation.tables
        group = np.arange(tables) % min(tables, _GROUPS)
        prices = first_prices(self._task, self._pricing.mix, self._relaxation.calls, phases)
        columns: list[Loads] = []
        best: Bound | None = None
        before = stalled = 0.0
        for _ in range(_ROUNDS):
            choice = self._relaxation.cheapest(prices)
            value = self._value(prices, choice, phases)
            if best is None or value > best.ms:
                best = Bound(value, prices, choice)
            if not np.isfinite(best.ms) or (deadline is not None and time.monotonic() >= deadline):
                break
            columns.append(self._relaxation.sums(choice, group, group.max() + 1))
            least, prices = _programme(self._task, self._pricing, self._constants, columns, phases)
            # Where numbers span many decades the solver's own tolerance keeps the two apart, and rounds bring nothing more.
            stalled = stalled + 1 if abs(least - best.ms - before) <= _EXACT * abs(before) else 0
            before = least - best.ms
            if least - best.ms <= _EXACT * max(least, 0.0) or stalled == _STALLED:
                break
        assert best is not None
        proven = min(best.ms, self._replicated, self._on_one_device(best.prices, phases))
        return Bound(proven, best.prices, best.choice)

    def tightened(self, bound: Bound, step_ms: float) -> Bound:
        """The bound with the knowledge that a plan of `step_ms` exists; at most that."""
        of_phases = [self._least_step_with(bound.prices, own) for own in _OWN_PHASES]
        pieces, others = (np.max([found[kind] for found in of_phases], axis=0) for kind in range(2))
        binding = self._relaxation.least_binding(pieces, others)
        doomed = self._relaxation.legal & (pieces > step_ms)
        if doomed.any():
            self._relaxation.legal[doomed] = False
            found = self.solve()
            bound = found if np.isfinite(found.ms) and found.ms > bound.ms else bound
            binding = max(binding, found.ms)
        return Bound(min(max(bound.ms, binding), step_ms, self._replicated), bound.prices, bound.choice)

    def _value(self, prices: Prices, choice: Choice, phases: Floats) -> float:
        """What prices prove of plans that use all devices, or whose kernels have a positive price."""
        shared = float(choice.price.sum()) / self._task.topology.devices
        return self._constant(prices, phases) + shared + self._waits(prices)

    def _on_one_device(self, prices: Prices, phases: Floats) -> float:
        """What prices prove of plans whose kernels have a negative price: infinite if there is no such plan."""
        least = float(self._relaxation.cheapest(Prices(prices.vector, np.zeros_like(prices.links))).price.sum())
        return np.inf if least >= 0 else self._constant(prices, phases) + least + self._waits(prices)

    def _waits(self, prices: Prices) -> float:
        return float((prices.links * _latency(self._task)).sum())

    def _constant(self, prices: Prices, phases: Floats) -> float:
        return float((prices.vector[:, :-2] @ self._pricing.hidden_bias).sum() + self._constants @ phases[:2])

    def _least_step_with(self, prices: Prices, own: Floats) -> tuple[Floats, Floats]:
        """What a plan costs at least in which some device holds a piece `(pieces,)`, or a part of another way `(others,)`.

        The phases that `own` `(4,)` counts are those of that device, the others those of the mean device.
        """
        costs, mix = self._relaxation.catalog.forms.costs, own[:2] @ self._pricing.mix
        rest = 0.0 if own.all() else max(0.0, self.solve(ALL_PHASES - own).ms)
        pieces, others = np.zeros(len(costs.vectors)), np.zeros(self._relaxation.other_tables.size)
        if own[:2].any():
            bias, calls = self._pricing.hidden_bias, len(prices.vector)
            hidden = costs.vectors[:, :-2] + bias
            largest = np.argsort(-(np.maximum(hidden, 0) @ mix), kind="stable")
            probes = largest[: max(1, largest.size // 8) : max(1, largest.size // (8 * _PROBES))]
            active = np.divide(prices.vector[:, :-2], self._mix, out=np.zeros((calls, mix.size)), where=self._mix > 0)
            idle = np.tile(bias > 0, (calls, 1)).astype(np.float64)
            alone = [np.where(np.arange(calls)[:, None] == costs.call[row], hidden[row] > 0, idle) for row in probes]
            for share in (active, *alone):
                found = self._least_device_with(np.hstack([mix * share, np.tile(own[:2], (calls, 1))]), own)
                pieces, others = np.maximum(pieces, found[0]), np.maximum(others, found[1])
        return rest + pieces + self._own_links(costs.served, own), rest + others

    def _least_device_with(self, vector: Floats, phases: Floats) -> tuple[Floats, Floats]:
        """Ms of kernels of a device with a piece `(pieces,)`, or with its part of another way `(others,)`, whatever else lies on it."""
        forms = self._relaxation.catalog.forms
        prices = Prices(vector, np.zeros((2, 2)))
        price, other_price = self._relaxation.piece_prices(prices), self._relaxation.other_prices(prices)
        width = np.arange(price.size) - np.repeat(forms.first[:-1], forms.units) + 1
        discount = np.zeros(self._relaxation.tables)
        np.minimum.at(discount, self._relaxation.table_of_row, price / width * np.repeat(forms.units, forms.units))
        np.minimum.at(discount, self._relaxation.other_tables, other_price)
        base = self._constant(prices, phases) + discount.sum()
        return base + price, base + other_price

    def _own_links(self, served: Floats, own: Floats) -> Floats:
        """`(pieces,)` ms that the holder of a piece spends on links at least, in the passes that `own` counts."""
        latency, each = _latency(self._task), ms_per_byte(self._task.topology)
        present = [link for link in range(2) if each[link] > 0]
        if not present:
            return np.zeros(len(served))
        forward = np.max([latency[link] + np.max(served, axis=1) * each[link] for link in present], axis=0)
        backward = np.max([latency[link] + served[:, 0] * each[link] for link in present], axis=0)
        both: Floats = own[2] * forward + own[3] * backward
        return both


def _latency(task: Task) -> Floats:
    """`(2,)` ms by link class; every plan pays it in which some table is not replicated everywhere."""
    return np.array([task.topology.intra_latency_ms, task.topology.inter_latency_ms])


def first_prices(task: Task, mix: Floats, calls: int, phases: Floats = ALL_PHASES) -> Prices:
    """Prices to begin with: half of every hidden unit, all link classes alike."""
    present = (ms_per_byte(task.topology) > 0).astype(float)
    links = np.tile(present / max(1.0, present.sum()), (2, 1)) * phases[2:, None]
    return Prices(np.tile(np.append(phases[:2] @ mix / 2, phases[:2]), (calls, 1)), links)


def _constants(pricing: Pricing, calls: int) -> Floats:
    """`(2,)` forward and backward ms of a device in use, hidden units and vectors aside; see the proof.

    That is the head's constant, less for every further kind of call what one with nothing in it costs beyond that constant.
    """
    empty = pricing.bias + pricing.mix @ np.maximum(pricing.hidden_bias, 0.0)
    constants: Floats = pricing.bias + (calls - 1) * (pricing.bias - np.maximum(empty, 0.0)) + pricing.once
    return constants


def _programme(
    task: Task, pricing: Pricing, constants: Floats, columns: list[Loads], phases: Floats
) -> tuple[float, Prices]:
    """Mix the columns so that the mean device costs least; returns what it costs, and the prices at which that is so.

    Args:
        task: the task.
        pricing: the cost model's head.
        constants: `(2,)` see `_constants`.
        columns: a row a group of tables; each group takes a mixture of its rows.
        phases: `(4,)` 1 for phases that count.
    """
    devices, mix, bias = task.topology.devices, phases[:2] @ pricing.mix, pricing.hidden_bias
    vectors = np.concatenate([column.vectors for column in columns]) / devices
    served, reduced = np.split(np.concatenate([column.links for column in columns]) / devices, 2, axis=1)
    count, groups, units = len(vectors), len(columns[0].vectors), np.flatnonzero(mix > 0)
    links = [link for link in range(2) if ms_per_byte(task.topology)[link] > 0]
    each = ms_per_byte(task.topology)
    forward = [served.sum(axis=1) * each[link] for link in links]
    backward = [
        served[:, 0] * each[link] + reduced[:, link] / task.topology.link_bandwidth[link] * 1e3 for link in links
    ]
    # A call that no column has anything in costs what an empty one does; its hidden units need no variables.
    seen = np.flatnonzero(vectors.any(axis=(0, 2)))
    hidden = seen.size * units.size
    # Variables: shares of the columns, cost of each hidden unit of each call, ms of the forward and of the backward links.
    loads = (vectors[:, seen[:, None], units] * mix[units]).reshape(count, hidden)
    passes = [
        np.concatenate([loads_of, np.zeros(hidden), slack])
        for of_pass, slack in ((forward, (-1.0, 0.0)), (backward, (0.0, -1.0)))
        for loads_of in of_pass
    ]
    limits = np.concatenate([np.tile(-mix[units] * bias[units], seen.size), np.tile(-_latency(task)[links], 2)])
    costs = np.hstack([loads.T, -np.eye(hidden), np.zeros((hidden, 2))])
    one_each = np.zeros((groups, count + hidden + 2))
    one_each[np.arange(count) % groups, np.arange(count)] = 1.0
    found = linprog(
        np.concatenate([vectors[:, :, -2:].sum(axis=1) @ phases[:2], np.ones(hidden), phases[2:]]),
        A_ub=np.vstack([costs, *passes]) if limits.size else None,
        b_ub=limits if limits.size else None,
        A_eq=one_each,
        b_eq=np.ones(groups),
        bounds=[(0, None)] * (count + hidden + 2),
        method="highs",
    )
    calls = vectors.shape[1]
    if found.x is None:  # numbers beyond the solver's reach: the bound so far stands
        return -np.inf, first_prices(task, pricing.mix, calls, phases)
    duals = -np.asarray(found.ineqlin.marginals) if limits.size else np.zeros(0)
    weight = np.tile(bias > 0, (calls, 1)).astype(np.float64)
    weight[seen[:, None], units] = np.clip(duals[:hidden], 0.0, 1.0).reshape(seen.size, units.size)
    shares = np.zeros((2, 2))
    shares[:, links] = np.maximum(duals[hidden:].reshape(2, -1), 0.0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    if links:
        shares[shares.sum(axis=1) < 0.5, links[0]] = 1.0
    idle = (calls - seen.size) * float(mix @ np.maximum(bias, 0.0))
    least = float(found.fun or 0.0) + idle + float(constants @ phases[:2])
    return least, Prices(np.hstack([mix * weight, np.tile(phases[:2], (calls, 1))]), shares * phases[2:, None])


def _all_replicated(catalog: Catalog, pricing: Pricing) -> float:
    """What the one plan costs in which nothing is looked up elsewhere, so that no latency is paid for; infinite where it is not allowed."""
    spreads, task = catalog.spreads, catalog.task
    copies = np.flatnonzero(spreads.replicated)
    if copies.size < len(task.tables):
        return float("inf")
    calls, call = np.unique(spreads.costs.call[copies], return_inverse=True)
    sums = np.zeros((calls.size, spreads.costs.vectors.shape[1]))
    np.add.at(sums, call, spreads.costs.vectors[copies])
    active = np.maximum(sums[:, :-2] + pricing.hidden_bias, 0.0)
    kernels = np.maximum(active @ pricing.mix.T + sums[:, -2:] + pricing.bias, 0.0).sum(axis=0) + pricing.once
    reduced = spreads.reduced[copies].sum(axis=0)
    links = np.where(reduced > 0, _latency(task) + reduced / np.array(task.topology.link_bandwidth) * 1e3, 0.0)
    return float(kernels.sum() + links.max())
