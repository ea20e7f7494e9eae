"""Bounds by the number of devices that hold a table, or blocks that open a gate; see "Holders" and "Gates" in `search.bound`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.collectives import prices_of
from shardwright.cost.model import OPEN, Pricing, gate_units
from shardwright.cost.prices import Prices, link_prices, piece_links, tangents
from shardwright.linear_programs import Program
from shardwright.search.relaxation import Relaxation, least_calls
from shardwright.sharding.costs import KERNELS

_MOST_TABLES = 6
_FAILED = 2  # hot tables in a row without a gain, after which the search ends
_RANGES = 24  # most ranges of the number of holders
_CUTS = 16  # most cutting planes for a range
_CLOSE = 5e-4  # share of the bound: distance of the planes from the best weights at which the search ends


class Count(NamedTuple):
    """Least and greatest number of devices of some kind: holders, or others."""

    fewest: int
    most: int


@dataclass(frozen=True, eq=False)
class Loads:
    """The loads that n ways add to a device in each phase.

    Attributes:
        table: `(n,)`.
        parts: `(n,)` parts, each on a device.
        holders: `(n, 2)` fewest and most devices that hold them; as many as the parts if no two parts share a device.
        ms: `(n, 4)` ms by phase, for kernels and for values and gradients sent, on each of these devices.
        ids: `(n,)` ms of the ids that each device of another host sends.
    """

    table: Ints
    parts: Ints
    holders: Ints
    ms: Floats
    ids: Floats

    def priced(self, weights: Floats, devices: Count, spared: float) -> Floats:
        """`(n,)` ms that a part on some devices adds to the weighted mean.

        Args:
            weights: `(4,)` weights by phase of the mean of these devices.
            devices: how many there are.
            spared: share of the ids' price that devices of the part's host save; see `Peers`.
        """
        if not devices.most:
            return np.full(self.ids.size, np.inf)
        sent = max(0.0, 1.0 - weights[1] / devices.fewest - spared)
        ms: Floats = self.ms @ (weights / devices.most) + self.ids * sent
        return ms

    def with_kernels(self, extra: Floats) -> Loads:
        """The same loads plus `(n, 2)` ms of forward and of backward kernels."""
        ms = self.ms.copy()
        ms[:, KERNELS] += extra
        return replace(self, ms=ms)

    def change(self, devices: Count) -> Floats:
        """`(n, 4)` how `priced` rises with the weights."""
        slopes = self.ms / max(devices.most, 1)
        slopes[:, 1] -= self.ids / max(devices.fewest, 1)
        return slopes


class Peers(NamedTuple):
    """The other devices of a holder's host, which send the holder's ids over the faster links.

    Attributes:
        others: how many other devices the host has.
        cheaper: share by which their ids are cheaper than those of devices of other hosts.
    """

    others: int
    cheaper: float

    def spared(self, weight: float, holders: Count, others: Count) -> tuple[float, float]:
        """The largest share of the ids' price that peers may save, and how it rises with the weight of the holders' mean.

        Either as many as possible of them are holders, or none.
        """
        if not others.most:
            return self.cheaper * self.others / holders.fewest, 0.0
        near, far = self._first(holders.fewest, others.fewest), self._first(others.fewest, holders.fewest)[::-1]
        saved, rise = max((weight * on + (1 - weight) * off, on - off) for on, off in (near, far))
        return self.cheaper * saved, self.cheaper * rise

    def _first(self, some: int, rest: int) -> tuple[float, float]:
        """The peers' share of a group of devices if as many as possible belong to it, and of the other devices."""
        return min(1.0, self.others / some), max(0, self.others - some) / rest


@dataclass(frozen=True, eq=False)
class Held:
    """Blocks whose holders are counted: all those of a table, or those that open a gate of a call.

    Attributes:
        pieces: `(pieces,)` whether each piece is one of them.
        spreads: `(spreads,)` whether each other way is of them.
        table: the table; None for a gate.
        of_pieces: pieces with their loads on a holder; those of other tables pay an open gate there.
        of_spreads: likewise.
    """

    pieces: Bools
    spreads: Bools
    table: int | None
    of_pieces: Loads
    of_spreads: Loads


class Holders:
    """Bounds by the number of devices that hold a table, or blocks that open a gate.

    Args:
        relaxation: the ways of all tables.
        pricing: the cost model's head.
        prices: the point at which the head is linearised, and the weights of the link classes.

    Attributes:
        relaxation: the ways.
        pieces: the loads of each piece on a device.
        spreads: the loads of a part of each other way on a device.
        peers: the other devices of a holder's host.
        made: `(calls,)` ms that making each call costs.
        fixed: ms that every plan pays.
    """

    def __init__(self, relaxation: Relaxation, pricing: Pricing, prices: Prices) -> None:
        self.relaxation, self._devices, self._gates = relaxation, relaxation.topology.devices, pricing.gates
        forms = relaxation.catalog.forms
        slopes, intercepts = tangents(pricing, prices)
        self.pieces = _piece_loads(relaxation, slopes, prices)
        self.spreads = _spread_loads(relaxation, slopes, prices)
        near, far = _asked(relaxation, prices)
        topology = relaxation.topology
        cheaper = max(0.0, 1.0 - near / far) if topology.hosts > 1 and far > 0 else 0.0
        self.peers = Peers(topology.devices_per_host - 1, cheaper)
        self.made = intercepts.sum(axis=1)
        rest = np.delete(intercepts, relaxation.everywhere, axis=0)
        self.fixed = float(sum(least_calls(of_phase, 1.0) for of_phase in rest.T) + pricing.once.sum())
        self.fixed += relaxation.least_waits(prices.links.sum(axis=1))
        for phase in range(4)[KERNELS]:
            below = np.where(relaxation.legal, np.minimum(self.pieces.ms[:, phase], 0.0), np.inf)
            least = np.zeros(relaxation.tables)
            np.minimum.at(least, forms.table, forms.cheapest(below)[0])
            np.minimum.at(least, self.spreads.table, self.spreads.ms[:, phase] * self.spreads.parts)
            self.fixed += float(least.sum())
        for loads in (self.pieces, self.spreads):
            np.maximum(loads.ms, 0.0, out=loads.ms)
        self._least_holders: dict[int, int] = {}

    def bound(self, hot: Sequence[int], step_ms: float, known: float, late: Callable[[], bool]) -> float:
        """Lower bound on the step of every plan, at most `step_ms`.

        Args:
            hot: tables to look at, hottest first; at most six of them count.
            step_ms: step of a known plan.
            known: a bound that is already proven.
            late: whether time is up.
        """
        best, failed = known, 0
        for held in (*self.of_gates(), *map(self.of_table, hot[:_MOST_TABLES])):
            ms = 0.0 if late() or failed >= _FAILED else self._least(held, step_ms, best, late)
            failed = failed + 1 if held.table is not None and ms <= best else 0
            best = max(best, ms)
        return min(best, step_ms)

    def of_table(self, table: int) -> Held:
        """All blocks of a table."""
        return Held(self.pieces.table == table, self.spreads.table == table, table, self.pieces, self.spreads)

    def of_gates(self) -> Iterator[Held]:
        """The blocks that open each gate of each call; the extra time of narrower blocks counts on their holders."""
        relaxation, gates = self.relaxation, self._gates
        costs, other = relaxation.catalog.forms.costs, relaxation.other
        of_pieces, of_parts = self.gate_units()
        for call, gate in product(range(relaxation.calls), range(gates)):
            opening = (costs.call == call) & (of_pieces[:, gate, 0] > OPEN)
            opening_parts = (other.call == call) & (of_parts[:, gate, 0] > OPEN)
            # A block wider than this gate's width is also wider than those of the gates before it.
            pays, pays_parts = (
                units[:, : gate + 1, 1:].sum(axis=1) * (calls == call)[:, None]
                for units, calls in ((of_pieces, costs.call), (of_parts, other.call))
            )
            if (opening.any() or opening_parts.any()) and (pays.any() or pays_parts.any()):
                inside, parts_inside = self.pieces.with_kernels(pays), self.spreads.with_kernels(pays_parts)
                yield Held(opening, opening_parts, None, inside, parts_inside)

    def gate_units(self) -> tuple[Floats, Floats]:
        """`(pieces, gates, 3)` least `cost.model.gate_units` of each piece, and `(spreads, gates, 3)` of a part of each other way."""
        relaxation, gates = self.relaxation, self._gates
        of_pieces = gate_units(relaxation.catalog.forms.costs.vectors, gates)
        low = gate_units(relaxation.low.vectors, gates)
        of_pieces[relaxation.low_rows] = np.minimum(of_pieces[relaxation.low_rows], low)
        return of_pieces, gate_units(relaxation.other.part_vectors, gates).min(axis=0)

    def _least(self, held: Held, step_ms: float, enough: float, late: Callable[[], bool]) -> float:
        """The least bound over the numbers of holders; lower if time is up, or if it is at most `enough`."""
        everyone = Count(self._devices, self._devices)
        absent = self.value(held, everyone, np.ones(4), absent=True)[0]
        single = {everyone: self._highest(held, everyone, step_ms, enough)}  # by a single number of holders
        ranges = {} if self._hopeless(absent, single, enough) else self._first_ranges(held, single, step_ms, enough)
        while ranges and len(ranges) < _RANGES and not late():
            least = min(ranges, key=lambda part: (ranges[part], part))
            if ranges[least] >= min(absent, step_ms) or least.fewest == least.most:
                break
            middle = (least.fewest + least.most) // 2
            at_middle = Count(middle, middle)
            single[at_middle] = self._highest(held, at_middle, step_ms, enough)
            if self._hopeless(absent, single, enough):
                break
            halves = Count(least.fewest, middle), Count(middle + 1, least.most)
            ranges |= {
                part: max(ranges[least], single[part] if part in single else self._highest(held, part, step_ms, enough))
                for part in halves
            }
            del ranges[least]
        refuted = 0
        for part in sorted(ranges):
            if ranges[part] < step_ms:
                break
            refuted = part.most
        if held.table is not None:
            self._least_holders[held.table] = refuted + 1
        return min(absent, *ranges.values()) if ranges else 0.0

    def _hopeless(self, absent: float, single: Mapping[Count, float], enough: float) -> bool:
        """Whether the least over all numbers of holders is hardly more than the proven bound."""
        return min(absent, *single.values()) <= enough * (1 + _CLOSE)

    def _first_ranges(
        self, held: Held, single: dict[Count, float], step_ms: float, enough: float
    ) -> dict[Count, float]:
        """Bounds for 1, 2 to D - 1, and D holders; there are no others with D."""
        ends = (1, 1), (2, self._devices - 1), (self._devices, self._devices)
        parts = sorted({Count(*end) for end in ends if end[0] <= end[1]})
        return {part: single[part] if part in single else self._highest(held, part, step_ms, enough) for part in parts}

    def _highest(self, held: Held, holders: Count, step_ms: float, enough: float) -> float:
        """The bound at the best weights for plans with so many holders; lower if it is at least `step_ms`, or at most `enough`."""
        weights, best = np.full(4, holders.most / self._devices), -np.inf
        planes: list[tuple[float, Floats]] = []
        for _ in range(_CUTS):
            value, rise = self.value(held, holders, weights)
            best = max(best, value)
            if best >= step_ms or holders.fewest == self._devices:
                break
            planes.append((value - float(rise @ weights), rise))
            program = Program()
            share, height = program.variables(np.ones(4)), program.variables([2 * step_ms], cost=-1.0)
            for start, slope in planes:
                program.row(np.append(height, share), np.append(1.0, -slope), high=start)
            values = program.relaxed().values
            if values is None or values[4] <= enough or values[4] - best <= _CLOSE * best:
                break
            weights = np.clip(values[:4], 0.0, 1.0)
        return best

    def value(self, held: Held, holders: Count, weights: Floats, *, absent: bool = False) -> tuple[float, Floats]:
        """The bound that `(4,)` weights prove if so many devices hold blocks, and how it rises with the weights.

        Args:
            held: the blocks.
            holders: how many devices hold some of them.
            weights: weights of the holders' mean by phase; the others' mean has the rest.
            absent: whether the table is replicated everywhere instead, or no block opens the gate.
        """
        relaxation, forms = self.relaxation, self.relaxation.catalog.forms
        others, own = self._others(holders), held.pieces
        with_holders = self.pieces if absent else held.of_pieces
        spared, rise_of_spared = self.peers.spared(float(weights[1]), holders, others)
        on, off = with_holders.priced(weights, holders, spared), self.pieces.priced(1.0 - weights, others, spared)
        is_inside = own | (on <= off)
        price = np.where(relaxation.legal & ~(own & absent), np.where(is_inside, on, off), np.inf)
        fewest = np.ones(relaxation.tables, dtype=np.int64)
        fewest[list(self._least_holders)] = list(self._least_holders.values())
        if held.table is not None:
            fewest[held.table] = holders.fewest
        of_form, uses = forms.cheapest(price, fewest[forms.table])
        of_spread, rise_of_spread = self._spread_prices(held, holders, weights, absent=absent)
        best, worth, taken, spread = relaxation.settled(of_form, of_spread, self.made)
        if not np.isfinite(best).all():
            return np.inf, np.zeros(4)
        used = uses * np.isin(forms.form, taken)
        inside, outside = used * is_inside, used * ~is_inside
        rise = inside @ with_holders.change(holders) - outside @ self.pieces.change(others)
        sent = used @ self.pieces.ids + (self.spreads.parts * self.spreads.ids)[spread].sum()
        rise[1] -= rise_of_spared * sent
        value = self.fixed + sum(self.made[worth].tolist()) + float(best.sum())
        return value, rise + rise_of_spread[spread].sum(axis=0)

    def _others(self, holders: Count) -> Count:
        return Count(self._devices - holders.most, self._devices - holders.fewest)

    def _spread_prices(self, held: Held, holders: Count, weights: Floats, *, absent: bool) -> tuple[Floats, Floats]:
        """`(spreads,)` ms of the other ways, with as many parts on holders as pays, and `(spreads, 4)` how they rise with the weights."""
        loads, others, copies = self.spreads, self._others(holders), self.relaxation.copied
        with_holders = loads if absent else held.of_spreads
        spared = self.peers.spared(float(weights[1]), holders, others)[0]
        on, off = with_holders.priced(weights, holders, spared), loads.priced(1.0 - weights, others, spared)
        stacked, parts = loads.holders[:, 0] < loads.parts, loads.parts
        most = np.where(stacked, parts, np.minimum(parts, holders.most))
        fewest = np.where(stacked, 0, np.maximum(parts - others.most, 0))
        inside = np.where(held.spreads, parts, np.where(on <= off, most, fewest))
        outside = loads.parts - inside
        price = inside * on + np.where(outside > 0, outside * np.where(outside > 0, off, 0.0), 0.0)
        rise = inside[:, None] * with_holders.change(holders) - outside[:, None] * loads.change(others)
        for table, least in self._least_holders.items():
            price[(loads.table == table) & (loads.holders[:, 1] < least) & ~copies] = np.inf
        few, many = loads.holders.T
        barred = np.full(few.size, absent) | (few > holders.most)
        if held.table is not None:
            barred = ~copies if absent else barred | copies | (many < holders.fewest)
        price[~self.relaxation.other_legal | (held.spreads & barred)] = np.inf
        return price, rise


def _asked(relaxation: Relaxation, prices: Prices) -> tuple[float, float]:
    """Ms of a byte of ids that goes to a device of the same host, and to one of another host."""
    near, far = (prices.links[2] * prices_of(relaxation.catalog.task).forward).tolist()
    return near, far


def _loads(
    table: Ints,
    parts: Ints,
    holders: Ints,
    kernels: Floats,
    links: Floats,
    relaxation: Relaxation,
    prices: Prices,
) -> Loads:
    """Loads from `(2, n)` kernel ms and `(n, 5)` link terms of a part."""
    task = relaxation.catalog.task
    near, far = _asked(relaxation, prices)
    asked = far if relaxation.topology.hosts > 1 else near
    forward, backward = link_prices(task, prices, own=True)
    sent = np.delete(links, 2, axis=1) @ np.delete(np.stack([forward, backward]), 2, axis=1).T
    ms = np.stack([kernels[0], *sent.T, kernels[1]], axis=1)
    return Loads(table, parts, holders, ms, links[:, 2] * asked / relaxation.topology.devices)


def _piece_loads(relaxation: Relaxation, slopes: Floats, prices: Prices) -> Loads:
    forms, links = relaxation.catalog.forms, piece_links(relaxation.least_served())
    ones = np.ones(forms.costs.call.size, dtype=np.int64)
    alone = np.stack([ones, ones], axis=1)
    return _loads(forms.pieces.table, ones, alone, relaxation.piece_prices(slopes), links, relaxation, prices)


def _spread_loads(relaxation: Relaxation, slopes: Floats, prices: Prices) -> Loads:
    """Loads of the smaller parts, or of the larger ones if these are less."""
    other = relaxation.other
    kernels = np.stack([relaxation.other_prices(slope).min(axis=0) for slope in slopes])
    return _loads(other.table, other.parts, other.holders, kernels, other.part_links.min(axis=0), relaxation, prices)
