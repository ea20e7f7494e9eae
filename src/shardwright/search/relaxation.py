"""The relaxed problem behind the bound: the ways of all tables, and each table's cheapest way at given prices.

A table's ways (see `engine.catalog`) are single column blocks and single row blocks of its forms; equal row blocks over 2, 4, 8, … devices,
over as many as a host has, over those the table is pinned to, or over all; grids, any number of whose column blocks share a host, or
whose column blocks are each in such row blocks; and replicas on all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from shardwright._engine import least_bottlenecks
from shardwright.arrays import Floats, Ints
from shardwright.cost.blocks import BlockCosts, Blocks, priced, priced_at_all, spread_links
from shardwright.cost.collectives import WAYS, Way, prices_of, row_ways, set_of, waits_of
from shardwright.cost.model import Pricing
from shardwright.cost.prices import Prices, link_prices, piece_links, served_price
from shardwright.search.engine.catalog import Catalog, largest_memory
from shardwright.sharding.shard import equal_sizes
from shardwright.sharding.ways import free_grid_counts, grid_counts, row_counts, row_units
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Choice:
    """The way that every table chooses.

    Attributes:
        everywhere: fused calls of replicas only that lower the cost, and so are made on all devices.
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


SINGLE, DEALT, COPIED = WAY_KINDS = range(3)
"""Kinds of ways: single blocks; several blocks at once, such as equal row blocks; replicas in a call of their own."""


class Branch(NamedTuple):
    """A part of all plans.

    Attributes:
        case: the case of sets of collectives that the plans need; None for any.
        decided: pairs of a table and the kind of its way.
    """

    case: int | None = None
    decided: tuple[tuple[int, int], ...] = ()


class Relaxation:
    """The ways of all tables, and the cheapest of them for any prices.

    Attributes:
        catalog: the ways of every table.
        legal: `(pieces,)` whether each piece may be used.
        other_legal: `(others,)` whether each of the other ways may be used.
        low_rows: pieces that may be a row shorter than the catalog states.
        low: the costs of these pieces if they are a row shorter.
        other: the ways that use several devices at once.
        branch: the plans whose ways alone are left.
        hidden: `(3,)` ms for which values, gradients and ids travel behind dense layers.
        everywhere: calls that hold only replicas, which all devices make or none.
        copied: `(others,)` which of the other ways are in these calls.
        least_made: least mean number of calls outside `everywhere` that a device in use makes.
    """

    def __init__(self, catalog: Catalog) -> None:
        task, forms = catalog.task, catalog.forms
        self.catalog, self.legal = catalog, forms.legal.copy()
        self.topology, self.sets = task.topology, Sets(catalog)
        self.hidden = hidden_ms(task)
        self.branch = Branch()
        self.low_rows, self.low = _row_pieces_with_fewest_rows(catalog)
        self.legal[self.low_rows] |= self.low.bytes <= largest_memory(task)[forms.pieces.table[self.low_rows]]
        self.other = _other_ways(catalog)
        self.other_legal = np.ones(self.other.table.size, dtype=bool)
        copies = (self.other.holders == task.topology.devices).all(axis=1)
        copies &= self.other.links[:, :3].sum(axis=1) == 0
        self.everywhere = np.setdiff1d(
            self.other.call[copies], np.concatenate([forms.costs.call, self.other.call[~copies]])
        )
        self.copied = np.isin(self.other.call, self.everywhere)
        self.least_made = self._least_made()

    @property
    def tables(self) -> int:
        """Number of tables."""
        return len(self.catalog.task.tables)

    @property
    def calls(self) -> int:
        """Number of kinds of fused calls that serve the ways."""
        return self.catalog.tables.calls

    def _least_made(self) -> float:
        """1 or more, or 0 if there are no calls outside `everywhere`.

        Tables whose ways have no call in common, directly or through other tables, each need a separate call on some device.
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
            prices: ms of the resources that the ways need.
            made: `(calls,)` ms times devices that making each call of `everywhere` costs.
            weight: factor on the kernels of all ways except those in the calls of `everywhere`.
        """
        forms, costs = self.catalog.forms, self.catalog.forms.costs
        price = self._priced(costs, prices, weight)
        if self.low_rows.size:  # such a piece may have a row less than the catalog states
            price[self.low_rows] = np.minimum(price[self.low_rows], self._priced(self.low, prices, weight))
        price[~self.legal] = np.inf
        of_form, uses = forms.cheapest(price)
        of_other = self.other.priced(self.catalog.task, prices, np.where(self.copied, 1.0, weight))
        of_other[~self.other_legal] = np.inf
        best, worth, form, other = self.settled(of_form, of_other, made)
        in_use = np.zeros(forms.table.size, dtype=bool)
        in_use[form] = True
        rows = np.flatnonzero(uses * in_use[forms.form])
        return Choice(worth, best, rows, uses[rows], other)

    def settled(self, of_form: Floats, of_other: Floats, made: Floats) -> tuple[Floats, Ints, Ints, Ints]:
        """Every table's cheapest way, given the price of each; replicas count if they gain more than their call costs.

        Args:
            of_form: `(forms,)` least price of each form.
            of_other: `(others,)` prices of the other ways; infinite afterwards for replicas that do not pay.
            made: `(calls,)` ms times devices that making each call of `everywhere` costs.

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
        """The additions of the tables' choices to all devices together, summed by group of tables.

        Args:
            choice: the way of every table.
            group: `(tables,)` the group of each table.
            groups: how many groups there are.

        Returns:
            `(groups, calls, h + 2)` vectors by fused call, and `(groups, 5)` link terms; see `link_prices`.
        """
        costs, others, rows = self.catalog.forms.costs, self.other, choice.rows
        tables = self.catalog.forms.pieces.table[rows]
        vectors, links = np.zeros((groups, self.calls, costs.vectors.shape[1])), np.zeros((groups, 5))
        of_row, of_other = group[tables], group[others.table[choice.others]]
        np.add.at(vectors, (of_row, costs.call[rows]), costs.vectors[rows] * choice.uses[:, None])
        np.add.at(vectors, (of_other, others.call[choice.others]), others.vectors[choice.others])
        np.add.at(links, of_row, piece_links(costs.served[rows]) * choice.uses[:, None])
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
        """The largest figure over tables. A table's figure is the smallest of its ways', a way's figure the largest of its pieces'.

        Args:
            pieces: `(pieces,)` figures of single pieces.
            others: `(others,)` figures of the other ways.
        """
        forms = self.catalog.forms
        best = np.full(self.tables, np.inf)
        np.minimum.at(best, forms.table, least_bottlenecks(forms.first, np.where(self.legal, pieces, np.inf)))
        np.minimum.at(best, self.other.table, np.where(self.other_legal, others, np.inf))
        return float(best.max())

    def _priced(self, costs: BlockCosts, prices: Prices, weight: float) -> Floats:
        ms: Floats = priced(costs.vectors, costs.call, prices.vector) * weight
        near, far, ids = served_price(self.catalog.task, prices)
        ms += costs.served @ [near + far, ids]
        return ms

    @property
    def waits(self) -> Floats:
        """`(cases, 3)` ms of latencies for values, gradients and ids, less what dense layers hide, in the cases that are left."""
        return (self.sets.waits if self.branch.case is None else self.sets.waits[[self.branch.case]]) - self.hidden

    @property
    def least_each(self) -> Floats:
        """`(3,)` the least `waits` of each kind on its own."""
        least: Floats = self.waits.min(axis=0) if len(self.waits) else -self.hidden
        return least

    def least_waits(self, weights: Floats) -> float:
        """Least ms of latencies that a plan pays at `(3,)` weights of values, gradients and ids, less what dense layers hide.

        It does not replicate everything.
        """
        return float((self.waits @ weights).min()) if len(self.sets.waits) else -float(self.hidden @ weights)

    def all_replicated_ms(self, pricing: Pricing) -> float:
        """Step of the plan that replicates all tables, which pays no latency for lookups; infinite if it is not allowed."""
        spreads, task = self.catalog.spreads, self.catalog.task
        copies = spreads.copies
        if copies.size < self.tables:
            return float("inf")
        calls, call = np.unique(spreads.costs.call[copies], return_inverse=True)
        sums = np.zeros((calls.size, spreads.costs.vectors.shape[1]))
        np.add.at(sums, call, spreads.costs.vectors[copies])
        kernels = pricing.times(sums).sum(axis=0) + pricing.once
        waits = waits_of(prices_of(task), {set_of("data_parallel", table.pooled) for table in task.tables})
        links = float(spreads.links.apart[copies].sum() + waits.sum() - self.hidden[1])
        return float(kernels.sum()) + max(0.0, links)

    @contextmanager
    def only(self, branch: Branch) -> Iterator[None]:
        """Leave only the ways of the plans of a branch."""
        kept = (self.legal, self.other_legal)
        try:
            self.legal, self.other_legal, self.branch = self.legal.copy(), self.other_legal.copy(), branch
            if branch.case is not None:
                sets = list(self.sets.cases[branch.case])
                self.legal &= np.isin(self.sets.of_pieces, sets)
                self.other_legal &= np.isin(self.other.sets, sets)
            for table, kind in branch.decided:
                self.legal &= (self.catalog.forms.pieces.table != table) | (kind == SINGLE)
                self.other_legal &= (self.other.table != table) | (np.where(self.copied, COPIED, DEALT) == kind)
            yield
        finally:  # an interrupt must not leave a bound over fewer ways
            (self.legal, self.other_legal), self.branch = kept, Branch()


class Sets:
    """The sets of collectives that plans of a task may need, and their latencies; see `cost.collectives`.

    Attributes:
        cases: every selection of sets that a plan may need which does not replicate everything.
        waits: `(cases, 3)` ms of their latencies, for values, gradients and ids; those of ids are among those of values if dense layers
            hide nothing.
        of_pieces: `(pieces,)` the set that each piece needs.
    """

    def __init__(self, catalog: Catalog) -> None:
        tables, forms = catalog.task.tables, catalog.forms
        single = np.array([set_of("all_to_all", table.pooled) for table in tables], dtype=np.int64)
        self.of_pieces = single[forms.pieces.table]
        needs: list[set[int]] = [set() for _ in tables]
        for table in np.unique(forms.pieces.table[forms.legal]).tolist():
            needs[table].add(int(single[table]))
        for table, way in zip(catalog.spreads.table.tolist(), catalog.spreads.ways, strict=True):
            needs[table].add(set_of(way, tables[table].pooled))
        task = catalog.task
        counts = {task.topology.devices, task.topology.devices_per_host}
        # Row blocks that a search leaves out, such as those on other hosts, count too.
        for index, table in enumerate(tables):
            if any(map(task.constraints.of(table.name).allows, ("row_wise", "table_row_wise", "grid"))):
                dealt = (way for count in counts for way in row_ways(task, table, count))
                needs[index] |= {set_of(way, table.pooled) for way in ("all_to_all", *dealt)}
        every, wanted = sorted(set().union(*needs)), {frozenset(needed) for needed in needs if needed}
        exchanged = {kind for kind in every if kind % len(WAYS) != WAYS.index("data_parallel")}
        some = (frozenset(chosen) for count in range(1, len(every) + 1) for chosen in combinations(every, count))
        self.cases = [case for case in some if case & exchanged and all(case & needed for needed in wanted)]
        prices = prices_of(catalog.task)
        waits = np.array([waits_of(prices, case) for case in self.cases]).reshape(-1, 2)
        hides = hidden_ms(catalog.task).any()
        ids = np.array([prices.inputs[list(case)].sum() * hides for case in self.cases])
        self.waits = np.column_stack([waits[:, 0] - ids, waits[:, 1], ids])


@dataclass(frozen=True, eq=False)
class OtherWays:
    """Ways that use several devices at once: equal row blocks, grids and replicas.

    Attributes:
        table: `(k,)`.
        parts: `(k,)` blocks, each on a device.
        holders: `(k, 2)` fewest and most devices that hold them.
        call: `(k,)` the kind of fused call that serves each part.
        vectors: `(k, h + 2)` sums of vectors over all devices.
        links: `(k, 5)` link terms over all devices; see `link_prices`.
        sets: `(k,)` the set of collectives that each needs.
        part_vectors: `(2, k, h + 2)` addition of one part, of the larger ones and of the smaller ones.
        part_links: `(2, k, 5)` likewise.
    """

    table: Ints
    parts: Ints
    holders: Ints
    call: Ints
    vectors: Floats
    links: Floats
    sets: Ints
    part_vectors: Floats
    part_links: Floats

    def priced(self, task: Task, prices: Prices, weight: Floats) -> Floats:
        """`(k,)` ms of kernels, times a `(k,)` weight, and of links."""
        kernels = priced(self.vectors, self.call, prices.vector) * weight
        total: Floats = kernels + self.links @ link_prices(task, prices).sum(axis=0)
        return total


def hidden_ms(task: Task) -> Floats:
    """`(3,)` ms for which values, gradients and ids travel behind dense layers."""
    hidden = task.exchange.hidden
    return np.array([hidden.values, hidden.gradients, hidden.ids])


def least_calls(intercepts: Floats, calls: float) -> float:
    """The least sum of the intercepts of `calls` calls or more; a fraction of a call counts in part."""
    made, share = np.sort(intercepts), np.clip(calls - np.arange(intercepts.size), 0.0, 1.0)
    return float((made * np.where(made < 0, 1.0, share)).sum())


def _first_at(best: Floats, table: Ints, price: Floats) -> Ints:
    """The first way of each table that reaches the table's best price; no way of a table that none reaches."""
    hits = np.flatnonzero((price == best[table]) & np.isfinite(price))
    _, first = np.unique(table[hits], return_index=True)
    return hits[first]


def _row_pieces_with_fewest_rows(catalog: Catalog) -> tuple[Ints, BlockCosts]:
    """Rows of the pieces that may be a row shorter than the catalog states, and the costs of the shorter ones.

    One of the pieces that lie on all devices of a host, or on all, may be shorter by another row: see `engine.plans.shards_of`.
    """
    pieces, rows, topology = catalog.forms.pieces, catalog.tables.rows, catalog.task.topology
    forms = catalog.forms
    units = forms.units[forms.form]
    alike = (forms.width * topology.devices == units) | (forms.width * topology.devices_per_host == units)
    fewest = rows[pieces.table] * forms.width // units
    fewest -= alike & (forms.width < units) & (fewest > 1)
    shorter = np.flatnonzero(forms.rows[forms.form] & (fewest < pieces.rows))
    blocks = Blocks(pieces.table[shorter], fewest[shorter], pieces.dim[shorter], pieces.replicas[shorter])
    return shorter, catalog.tables.costs(blocks)


def _other_ways(catalog: Catalog) -> OtherWays:
    task, tables, spreads = catalog.task, catalog.tables, catalog.spreads
    equal_rows = _equal_row_blocks(catalog)
    table, columns = (
        np.array([getattr(cut, name) for cut in equal_rows], dtype=np.int64) for name in ("table", "columns")
    )
    cuts = np.array([cut.sizes for cut in equal_rows], dtype=np.int64).reshape(-1, 4)
    sizes, counts = cuts[:, 0::2].T, (cuts[:, 1::2] * columns[:, None]).T[..., None]
    dim = tables.dim[table] // columns
    of_size = [tables.costs(Blocks(table, rows, dim, np.ones_like(table))) for rows in sizes]
    fits = of_size[0].bytes <= largest_memory(task)[table]
    vectors = np.stack([costs.vectors for costs in of_size])[:, fits]
    of_links = [spread_links(task, [cut.way for cut in equal_rows], costs, np.zeros_like(table)) for costs in of_size]
    links = np.stack([np.hstack(parts) for parts in of_links])[:, fits]
    counts, of_one = counts[:, fits], cuts[fits, 1::2].sum(axis=1)
    copies = spreads.copies
    devices = task.topology.devices
    everywhere = np.full(copies.size, devices)
    copied, of_copies = np.hstack(spreads.links)[copies], spreads.costs.vectors[copies]
    return OtherWays(
        np.concatenate([table[fits], spreads.table[copies]]),
        np.concatenate([counts.sum(axis=0)[:, 0], everywhere]),
        np.vstack(
            [
                np.stack([of_one, np.minimum(of_one * columns[fits], devices)], axis=1),
                np.stack([everywhere, everywhere], axis=1),
            ]
        ),
        np.concatenate([of_size[0].call[fits], spreads.costs.call[copies]]),
        np.vstack([(vectors * counts).sum(axis=0), of_copies * devices]),
        np.vstack([(links * counts).sum(axis=0), copied * devices]),
        np.array(
            [
                set_of(way, task.tables[index].pooled)
                for index, way in (
                    *((equal_rows[fit].table, equal_rows[fit].way) for fit in np.flatnonzero(fits)),
                    *((int(spreads.table[copy]), spreads.ways[copy]) for copy in copies),
                )
            ],
            dtype=np.int64,
        ),
        np.concatenate([vectors, np.stack([of_copies, of_copies])], axis=1),
        np.concatenate([links, np.stack([copied, copied])], axis=1),
    )


class EqualRows(NamedTuple):
    """Column blocks of one width, each in equal row blocks.

    Attributes:
        table: the table.
        columns: how many column blocks.
        sizes: rows and number of a column block's larger row blocks, then of the smaller ones.
        way: how the outputs reach the devices.
    """

    table: int
    columns: int
    sizes: tuple[int, int, int, int]
    way: Way


def _equal_row_blocks(catalog: Catalog) -> list[EqualRows]:
    task = catalog.task
    gridded = set(catalog.forms.table[catalog.forms.rows].tolist())
    equal_rows: list[EqualRows] = []
    for index, table in enumerate(task.tables):
        limits, near = task.constraints.of(table.name), task.topology.devices_per_host
        in_rows = limits.allows("row_wise") or limits.allows("table_row_wise")
        cut = [*([1] if in_rows else []), *free_grid_counts(table, limits)]
        counts = _block_counts(task, index) if cut else []
        for count in counts:
            every_way = row_ways(task, table, count)
            # A table of few rows has no more blocks on several hosts than on one.
            across = limits.allows("row_wise") and count == counts[-1]
            for way in every_way[:1] if limits.equal_rows and not across else every_way:
                dealt = way != "all_to_all"
                if not dealt and index in gridded and row_units(table.rows) % count == 0:
                    continue
                for columns in cut:
                    for sizes in equal_sizes(table.rows, count, as_torchrec=limits.equal_rows or dealt):
                        as_dealt = way if sizes[1] + sizes[3] == count else "all_to_all"
                        equal_rows.append(EqualRows(index, columns, sizes, as_dealt))
        for columns in grid_counts(table, limits, task.topology):
            for sizes in equal_sizes(table.rows, near):
                way = row_ways(task, table, near)[0] if sizes[1] + sizes[3] == near else "all_to_all"
                equal_rows.append(EqualRows(index, columns, sizes, way))
    return equal_rows


def _block_counts(task: Task, index: int) -> list[int]:
    table, devices = task.tables[index], task.topology.devices
    limits = task.constraints.of(table.name)
    if limits.equal_rows:
        most = min(devices, table.rows, limits.max_shards or devices)
        return sorted({min(most, wide) for wide in (devices, task.topology.devices_per_host)} - {1})
    return row_counts(task, table, limits)
