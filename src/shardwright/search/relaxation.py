"""The relaxed problem behind the bound: what each table would choose at given prices, and the linear program that finds the prices.

A table's ways (see `engine.catalog`) are single column blocks and single row blocks of its forms; equal row blocks over 2, 4, 8, … devices,
over as many as a host has, over those the table is pinned to, or over all; and replicas on all devices.

The program mixes the tables' ways so that the mean device costs least; its duals are the prices. Its variables are the cost of each
hidden unit of each call, the share of devices that make each call, the ms of the forward and of the backward links, and the share of each
column. A column is what a group of tables would choose at some prices. Columns are added as they are found, and the solver continues
from its last solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from shardwright._engine import cheapest_widths, least_bottlenecks
from shardwright.arrays import Floats, Ints
from shardwright.cost.blocks import BlockCosts, Blocks, priced, priced_at_all, reduced_bytes
from shardwright.cost.model import Pricing
from shardwright.linear_programs import INFINITE, quiet_solver
from shardwright.search.engine.catalog import Catalog, largest_memory
from shardwright.search.units import row_block_sizes, row_counts, row_units
from shardwright.sharding.costs import KERNELS, LINKS
from shardwright.task.task import Task
from shardwright.task.topology import Topology

ALL_PHASES = np.ones(4)  # in the order of `sharding.costs.PHASES`


@dataclass(frozen=True)
class Prices:
    """Prices of what a plan uses on the mean device.

    Attributes:
        vector: `(calls, h + 2)` ms a unit of each sum of each fused call.
        links: `(2, 2)` weight of each link class (columns) in the forward and the backward pass (rows); each row sums to 1, or to 0
            without links.
    """

    vector: Floats
    links: Floats


def first_prices(task: Task, mix: Floats, calls: int, phases: Floats = ALL_PHASES) -> Prices:
    """Prices to begin with: half of every hidden unit, all link classes alike."""
    present = (ms_per_byte(task.topology) > 0).astype(float)
    links = np.tile(present / max(1.0, present.sum()), (2, 1)) * phases[LINKS, None]
    return Prices(np.tile(np.append(phases[KERNELS] @ mix / 2, phases[KERNELS]), (calls, 1)), links)


def tangents(pricing: Pricing, prices: Prices) -> tuple[Floats, Floats]:
    """`(2, calls, h + 2)` slopes and `(calls, 2)` intercepts of forward and backward time, with hidden units as active as in `prices`."""
    mix = pricing.mix.sum(axis=0)
    active = np.divide(prices.vector[:, :-2], mix, out=np.zeros_like(prices.vector[:, :-2]), where=mix > 0)
    ones = np.ones((len(active), 1))
    slopes = np.stack([np.hstack([pricing.mix[phase] * active, ones * np.eye(2)[phase]]) for phase in range(2)])
    return slopes, active @ (pricing.mix * pricing.hidden_bias).T + pricing.bias


@dataclass(frozen=True, eq=False)
class Choice:
    """The way that every table chooses.

    Attributes:
        everywhere: fused calls that hold only replicas and that pay, and so are made on all devices.
        price: `(tables,)` ms times devices of kernels and links; infinite if a table has no way left.
        rows: piece rows in use, each once.
        uses: how often each of these rows is used.
        others: spreads and equal row blocks in use.
    """

    everywhere: Ints
    price: Floats
    rows: Ints
    uses: Ints
    others: Ints


class Relaxation:
    """The ways of all tables, and the cheapest of them for any prices.

    Attributes:
        catalog: what can be made of every table.
        legal: `(pieces,)` whether each piece may be used.
        other_legal: `(others,)` whether each of the other ways may be used.
        low_rows: pieces that may be a row shorter than the catalog says.
        low: what these pieces cost if they are a row shorter.
        other: the ways that use several devices at once.
        everywhere: calls that hold only replicas, which all devices make or none.
        copied: `(others,)` which of the other ways are in these calls.
        least_made: least mean number of calls outside `everywhere` that a device in use makes.
    """

    def __init__(self, catalog: Catalog) -> None:
        task, forms = catalog.task, catalog.forms
        self.catalog, self.legal = catalog, forms.legal.copy()
        self.topology = task.topology
        self.low_rows, self.low = _row_pieces_with_fewest_rows(catalog)
        self.legal[self.low_rows] |= self.low.bytes <= largest_memory(task)[forms.pieces.table[self.low_rows]]
        self.other = _other_ways(catalog)
        self.other_legal = np.ones(self.other.table.size, dtype=bool)
        copies = self.other.parts == task.topology.devices
        copies &= self.other.links[:, :2].sum(axis=1) == 0
        self.everywhere = np.setdiff1d(
            self.other.call[copies], np.concatenate([forms.costs.call, self.other.call[~copies]])
        )
        self.copied = np.isin(self.other.call, self.everywhere)
        self.least_made = self._least_made()

    @property
    def tables(self) -> int:
        """How many tables there are."""
        return len(self.catalog.task.tables)

    @property
    def calls(self) -> int:
        """How many kinds of fused calls serve the ways."""
        return self.catalog.tables.calls

    def _least_made(self) -> float:
        """1 or more, or 0 if there are no calls outside `everywhere`.

        Tables whose ways have no call in common, directly or through other tables, each need a call of their own on some device.
        """
        if self.everywhere.size == self.calls:
            return 0.0
        of_table: dict[int, set[int]] = {}
        forms = self.catalog.forms
        pairs = [(forms.pieces.table, forms.costs.call), (self.other.table, self.other.call)]
        for pair in np.unique(np.concatenate([table * self.calls + call for table, call in pairs])).tolist():
            of_table.setdefault(pair // self.calls, set()).add(pair % self.calls)
        kinds: list[set[int]] = []
        for calls in {frozenset(calls) for calls in of_table.values()}:
            if calls.isdisjoint(self.everywhere.tolist()):
                joined = [kind for kind in kinds if kind & calls]
                kinds = [kind for kind in kinds if not kind & calls] + [set(calls).union(*joined)]
        return max(1.0, len(kinds) / self.topology.devices)

    def cheapest(self, prices: Prices, made: Floats, weight: float = 1.0) -> Choice:
        """Every table's cheapest way.

        Args:
            prices: ms of what the ways need.
            made: `(calls,)` ms times devices that making each call of `everywhere` costs.
            weight: factor on the kernels of all ways except those in the calls of `everywhere`.
        """
        forms, costs = self.catalog.forms, self.catalog.forms.costs
        price = self._priced(costs, prices, weight)
        if self.low_rows.size:  # a piece of so many units may have a row less than the catalog says
            price[self.low_rows] = np.minimum(price[self.low_rows], self._priced(self.low, prices, weight))
        price[~self.legal] = np.inf
        of_form, uses = cheapest_widths(forms.first, price)
        of_other = self.other.priced(prices, self.topology, np.where(self.copied, 1.0, weight))
        of_other[~self.other_legal] = np.inf
        best, worth, form, other = self.settled(of_form, of_other, made)
        in_use = np.zeros(forms.table.size, dtype=bool)
        in_use[form] = True
        rows = np.flatnonzero(uses * in_use[forms.form])
        return Choice(worth, best, rows, uses[rows], other)

    def settled(self, of_form: Floats, of_other: Floats, made: Floats) -> tuple[Floats, Ints, Ints, Ints]:
        """Every table's cheapest way, given the price of each; replicas count where they gain more than making their call costs.

        Args:
            of_form: `(forms,)` least price of each form.
            of_other: `(others,)` prices of the other ways; infinite afterwards for replicas that do not pay.
            made: `(calls,)` what making each call of `everywhere` costs.

        Returns:
            `(tables,)` prices, the calls of `everywhere` that pay, and the forms and the other ways in use.
        """
        table, best = self.catalog.forms.table, np.full(self.tables, np.inf)
        np.minimum.at(best, table, of_form)
        np.minimum.at(best, self.other.table[~self.copied], of_other[~self.copied])
        worth: list[int] = []
        for call in self.everywhere:  # a table's replicas are in one call
            these = (self.other.call == call) & np.isfinite(of_other)
            gain = np.maximum(best[self.other.table[these]] - of_other[these], 0.0).sum()
            if gain > made[call]:
                worth.append(call)
            else:
                of_other[these] = np.inf
        np.minimum.at(best, self.other.table, of_other)
        form, other = _first_at(best, table, of_form), _first_at(best, self.other.table, of_other)
        other = other[~np.isin(self.other.table[other], table[form])]
        return best, np.array(worth, dtype=np.int64), form, other

    def sums(self, choice: Choice, group: Ints, groups: int) -> tuple[Floats, Floats]:
        """What the tables' choices add to all devices together, summed by group of tables.

        Args:
            choice: the way of every table.
            group: `(tables,)` the group of each table.
            groups: how many groups there are.

        Returns:
            `(groups, calls, h + 2)` vectors by fused call, and `(groups, 4)` bytes of values and ids served, and reduced inside a host and
            between hosts.
        """
        costs, others, rows = self.catalog.forms.costs, self.other, choice.rows
        tables = self.catalog.forms.pieces.table[rows]
        vectors, links = np.zeros((groups, self.calls, costs.vectors.shape[1])), np.zeros((groups, 4))
        of_row, of_other = group[tables], group[others.table[choice.others]]
        np.add.at(vectors, (of_row, costs.call[rows]), costs.vectors[rows] * choice.uses[:, None])
        np.add.at(vectors, (of_other, others.call[choice.others]), others.vectors[choice.others])
        np.add.at(links[:, :2], of_row, costs.served[rows] * choice.uses[:, None])
        np.add.at(links, of_other, others.links[choice.others])
        return vectors, links

    def piece_prices(self, slopes: Floats) -> Floats:
        """`(k, pieces)` kernel ms of every piece, at k sets of `(calls, h + 2)` prices in ms a unit of each sum."""
        costs = self.catalog.forms.costs
        price = priced_at_all(costs.vectors, costs.call, slopes)
        if self.low_rows.size:  # as in `cheapest`
            low = priced_at_all(self.low.vectors, self.low.call, slopes)
            price[:, self.low_rows] = np.minimum(price[:, self.low_rows], low)
        return price

    def least_served(self) -> Floats:
        """`(pieces, 2)` least bytes of values and of ids that the holder of each piece serves."""
        served = self.catalog.forms.costs.served.copy()
        served[self.low_rows] = np.minimum(served[self.low_rows], self.low.served)
        return served

    def other_prices(self, slope: Floats) -> Floats:
        """`(2, others)` ms of kernels of a larger and a smaller part of every other way, at `(calls, h + 2)` ms a unit of each sum."""
        return np.stack([priced(vectors, self.other.call, slope) for vectors in self.other.part_vectors])

    def least_binding(self, pieces: Floats, others: Floats) -> float:
        """The largest figure over tables: a table has the smallest of its ways, a way the largest of its pieces.

        Args:
            pieces: `(pieces,)` figures of single pieces.
            others: `(others,)` figures of the other ways.
        """
        forms = self.catalog.forms
        best = np.full(self.tables, np.inf)
        np.minimum.at(best, forms.table, least_bottlenecks(forms.first, np.where(self.legal, pieces, np.inf)))
        np.minimum.at(best, self.other.table, others)
        return float(best.max())

    def _priced(self, costs: BlockCosts, prices: Prices, weight: float) -> Floats:
        found: Floats = priced(costs.vectors, costs.call, prices.vector) * weight
        found += costs.served @ served_price(self.topology, prices)
        return found


@dataclass(frozen=True, eq=False)
class OtherWays:
    """Ways that use several devices at once: equal row blocks and replicas.

    Attributes:
        table: `(k,)`.
        parts: `(k,)` devices that hold a part.
        call: `(k,)` the kind of fused call that serves each part.
        vectors: `(k, h + 2)` sums of vectors over all devices.
        links: `(k, 4)` bytes of values and ids served, and reduced inside a host and between hosts, over all devices.
        part_vectors: `(2, k, h + 2)` what one part adds, of the larger ones and of the smaller ones.
        part_links: `(2, k, 4)` likewise.
    """

    table: Ints
    parts: Ints
    call: Ints
    vectors: Floats
    links: Floats
    part_vectors: Floats
    part_links: Floats

    def priced(self, prices: Prices, topology: Topology, weight: Floats) -> Floats:
        """`(k,)` ms of kernels, times a `(k,)` weight, and of links."""
        kernels = priced(self.vectors, self.call, prices.vector) * weight
        reduced = prices.links[1] / np.array(topology.link_bandwidth) * 1e3
        links = self.links[:, :2] @ served_price(topology, prices) + self.links[:, 2:] @ reduced
        total: Floats = kernels + links
        return total


def least_calls(intercepts: Floats, calls: float) -> float:
    """The least sum of the intercepts of `calls` calls or more; a fraction of a call counts in part."""
    made, share = np.sort(intercepts), np.clip(calls - np.arange(intercepts.size), 0.0, 1.0)
    return float((made * np.where(made < 0, 1.0, share)).sum())


def served_price(topology: Topology, prices: Prices) -> Floats:
    """`(2,)` ms times devices that a byte of values, and of ids, adds to the mean device's links.

    All devices together send `peers / D` of the bytes of values and ids in the forward pass, and of the values in the backward pass.
    """
    forward, backward = prices.links @ ms_per_byte(topology)
    return np.array([forward + backward, forward])


def ms_per_byte(topology: Topology) -> Floats:
    """`(2,)` ms that a served byte adds to the links of all devices together, by link class."""
    peers = np.array([topology.devices_per_host - 1, topology.devices - topology.devices_per_host])
    result: Floats = peers / topology.devices / np.array(topology.link_bandwidth) * 1e3
    return result


def _first_at(best: Floats, table: Ints, price: Floats) -> Ints:
    """The first way of each table that reaches the table's best price; no way of a table that none reaches."""
    hits = np.flatnonzero((price == best[table]) & np.isfinite(price))
    _, first = np.unique(table[hits], return_index=True)
    return hits[first]


def _row_pieces_with_fewest_rows(catalog: Catalog) -> tuple[Ints, BlockCosts]:
    """Rows of the pieces that may be a row shorter than the catalog says, and what the shorter ones cost."""
    pieces, rows = catalog.forms.pieces, catalog.tables.rows
    forms = catalog.forms
    fewest = rows[pieces.table] * forms.width // forms.units[forms.form]
    shorter = np.flatnonzero(forms.rows[forms.form] & (fewest < pieces.rows))
    blocks = Blocks(pieces.table[shorter], fewest[shorter], pieces.dim[shorter], pieces.replicas[shorter])
    return shorter, catalog.tables.costs(blocks)


def _other_ways(catalog: Catalog) -> OtherWays:
    task, tables, spreads = catalog.task, catalog.tables, catalog.spreads
    cuts = np.array(_equal_row_blocks(catalog), dtype=np.int64).reshape(-1, 5)
    table, sizes, counts = cuts[:, 0], cuts[:, 1::2].T, cuts[:, 2::2].T[..., None]
    of_size = [tables.costs(Blocks(table, rows, tables.dim[table], np.ones_like(table))) for rows in sizes]
    fits = of_size[0].bytes <= largest_memory(task)[table]
    vectors = np.stack([costs.vectors for costs in of_size])[:, fits]
    links = np.stack([np.hstack([costs.served, np.zeros_like(costs.served)]) for costs in of_size])[:, fits]
    counts = counts[:, fits]
    copies = np.flatnonzero(spreads.replicated)
    devices = task.topology.devices
    reduced = reduced_bytes(task, spreads.blocks.rows[copies] * spreads.blocks.dim[copies])
    copied = np.hstack([np.zeros((copies.size, 2)), reduced])
    of_copies = spreads.costs.vectors[copies]
    return OtherWays(
        np.concatenate([table[fits], spreads.table[copies]]),
        np.concatenate([counts.sum(axis=0)[:, 0], np.full(copies.size, devices)]),
        np.concatenate([of_size[0].call[fits], spreads.costs.call[copies]]),
        np.vstack([(vectors * counts).sum(axis=0), of_copies * devices]),
        np.vstack([(links * counts).sum(axis=0), copied * devices]),
        np.concatenate([vectors, np.stack([of_copies, of_copies])], axis=1),
        np.concatenate([links, np.stack([copied, copied])], axis=1),
    )


def _equal_row_blocks(catalog: Catalog) -> list[tuple[int, int, int, int, int]]:
    """Table, then rows and number of the larger blocks, and of the smaller ones."""
    task = catalog.task
    gridded = set(catalog.forms.table[catalog.forms.rows].tolist())
    found: list[tuple[int, int, int, int, int]] = []
    for index, table in enumerate(task.tables):
        equal_rows = task.constraints.of(table.name).equal_rows
        for count in _block_counts(task, index):
            if index not in gridded or row_units(table.rows) % count:
                found += [(index, *sizes) for sizes in row_block_sizes(table.rows, count, equal_rows)]
    return found


def _block_counts(task: Task, index: int) -> list[int]:
    table, devices = task.tables[index], task.topology.devices
    limits = task.constraints.of(table.name)
    if not (limits.allows("row_wise") or limits.allows("table_row_wise")):
        return []
    if limits.equal_rows:
        most = min(devices, table.rows, limits.max_shards or devices)
        return sorted({min(most, wide) for wide in (devices, task.topology.devices_per_host)} - {1})
    return row_counts(task, table, limits)


_PRIMAL_SIMPLEX = 4  # new columns leave the basis primal feasible


class MasterProgram:
    """The linear program over mixtures of the tables' ways.

    The share of devices that make a call which holds only replicas is at least that of any table in it.

    Args:
        relaxation: the ways.
        pricing: the cost model's head.
        groups: how many groups of tables there are; each takes a mixture of its columns.
        phases: `(4,)` 1 for phases that count.
    """

    def __init__(self, relaxation: Relaxation, pricing: Pricing, groups: int, phases: Floats) -> None:
        self.groups, self._pricing, self._phases, self._topology = groups, pricing, phases, relaxation.topology
        self._kinds, self._everywhere = relaxation.calls, relaxation.everywhere
        self._mix = phases[KERNELS] @ pricing.mix
        self._units: Ints = np.flatnonzero(self._mix > 0)
        self._links = np.flatnonzero(ms_per_byte(self._topology) > 0)
        hidden = self._kinds * self._units.size
        # Rows: hidden units by call, forward and backward links, least calls, replicas by call and group, one mixture a group.
        self._of_links = hidden
        self._of_calls = hidden + 2 * self._links.size
        self._of_replicas = self._of_calls + 1
        self._of_groups = self._of_replicas + self._everywhere.size * self.groups
        self._solver = quiet_solver()
        upper = np.zeros(self._of_groups + self.groups)
        upper[self._of_links : self._of_calls] = np.tile(-np.array(self._topology.link_latency_ms)[self._links], 2)
        upper[self._of_calls] = -relaxation.least_made
        upper[self._of_groups :] = 1.0
        lower = np.where(np.arange(upper.size) < self._of_groups, -INFINITE, 1.0)
        empty = np.zeros(0, dtype=np.int32)
        self._solver.addRows(upper.size, lower, upper, 0, np.zeros(upper.size, dtype=np.int32), empty, np.zeros(0))
        self._add_slacks(hidden)

    def _add_slacks(self, hidden: int) -> None:
        """Add all variables except the columns' shares."""
        made = float(self._pricing.bias @ self._phases[KERNELS])
        matrix = np.zeros((hidden + self._kinds + 2, self._of_groups + self.groups))
        matrix[np.arange(hidden), np.arange(hidden)] = -1.0
        for call in range(self._kinds):
            of_call = matrix[hidden + call]
            own = slice(call * self._units.size, (call + 1) * self._units.size)
            of_call[own] = (self._mix * self._pricing.hidden_bias)[self._units]
            of_call[self._of_calls] = -float(call not in self._everywhere)
            of_call[self._of_replicas : self._of_groups] = np.where(
                np.repeat(self._everywhere == call, self.groups), -1.0, 0.0
            )
        for of_pass in range(2):
            start = self._of_links + of_pass * self._links.size
            matrix[hidden + self._kinds + of_pass, start : start + self._links.size] = -1.0
        cost = np.concatenate([np.ones(hidden), np.full(self._kinds, made), self._phases[LINKS]])
        upper = np.concatenate([np.full(hidden, INFINITE), np.ones(self._kinds), np.full(2, INFINITE)])
        self._add(cost, upper, matrix)

    def add(self, vectors: Floats, links: Floats) -> None:
        """Add a column for each group of tables, from what it adds to all devices together; see `Relaxation.sums`."""
        devices, topology = self._topology.devices, self._topology
        vectors, (served, reduced) = vectors / devices, np.split(links / devices, 2, axis=1)
        each, bandwidth = ms_per_byte(topology)[self._links], np.array(topology.link_bandwidth)[self._links]
        forward = served.sum(axis=1)[:, None] * each
        backward = served[:, :1] * each + reduced[:, self._links] / bandwidth * 1e3
        matrix = np.zeros((self.groups, self._of_groups + self.groups))
        hidden = vectors[:, :, self._units] * self._mix[self._units]
        matrix[:, : self._of_links] = hidden.reshape(self.groups, -1)
        matrix[:, self._of_links : self._of_calls] = np.hstack([forward, backward])
        copied = vectors[:, self._everywhere].any(axis=2)
        group, place = np.nonzero(copied)
        matrix[group, self._of_replicas + place * self.groups + group] = 1.0
        matrix[np.arange(self.groups), self._of_groups + np.arange(self.groups)] = 1.0
        self._add(vectors[:, :, -2:].sum(axis=1) @ self._phases[KERNELS], np.full(self.groups, INFINITE), matrix)

    def _add(self, cost: Floats, upper: Floats, matrix: Floats) -> None:
        """Add variables with their costs, limits and `(variables, rows)` coefficients."""
        variable, row = np.nonzero(matrix)
        starts = np.searchsorted(variable, np.arange(cost.size)).astype(np.int32)
        values = matrix[variable, row]
        self._solver.addCols(
            cost.size, cost, np.zeros(cost.size), upper, values.size, starts, row.astype(np.int32), values
        )

    def solve(self) -> tuple[float, Prices] | None:
        """The least cost of the mean device, and the prices that prove it; None if numbers are beyond the solver's reach."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        self._solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        duals = -np.array(self._solver.getSolution().row_dual)
        bias, mix = self._pricing.hidden_bias, self._mix
        weight = np.tile(bias > 0, (self._kinds, 1)).astype(np.float64)
        weight[:, self._units] = np.clip(duals[: self._of_links], 0.0, 1.0).reshape(self._kinds, self._units.size)
        shares = np.zeros((2, 2))
        shares[:, self._links] = np.maximum(duals[self._of_links : self._of_calls].reshape(2, -1), 0.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        if self._links.size:
            shares[shares.sum(axis=1) < 0.5, self._links[0]] = 1.0
        vector = np.hstack([mix * weight, np.tile(self._phases[KERNELS], (self._kinds, 1))])
        least = self._solver.getInfo().objective_function_value + float(self._pricing.once @ self._phases[KERNELS])
        return least, Prices(vector, shares * self._phases[LINKS, None])
