r"""A tighter bound where tables are hot: how many devices hold a table, and what that leaves to the others.

The bound of `search.bound` looks at the mean device, which has a share of every table. A table that takes most of a device can lie on few
devices only as far as these have room in every phase. If it is spread over many devices, it costs more. The mean device sees neither.

Proof. Take a table, and the plans in which k of D devices hold it. In each phase p the slowest device takes at least the mean of the k
holders, and at least the mean of the others. So for every weight μ_p in [0, 1] it takes at least

    M_p  ≥  μ_p · (mean of the holders) + (1 − μ_p) · (mean of the others).

As in `search.bound`, a device takes at least a_p + Σ of the loads of its pieces, linear at fixed λ. So every other table takes its cheapest
way, with each piece where it is cheaper: with the holders at its loads times μ / k, with the others at its loads times (1 − μ) / (D − k).
The table itself has at least k pieces, all with the holders. All devices send ids except the one that holds the piece. The right side is
concave in μ, so cutting planes find the best μ; any μ proves. The bound is the least over k, and over the table being replicated.

The numbers of holders are searched by ranges k₁ … k₂. The range of the least value is halved until it is a single number or time is up.
For a range, a holder counts μ / k₂ and another device (1 − μ) / (D − k₁), the least that a load can count there. Ids count as for k₁
holders and D − k₂ others, since what a device does not send is subtracted.

If the value of a range is no less than the step of a known plan, no better plan has so many holders. If all ranges up to k are refuted, the
table has more than k holders, and the values of the other tables take that into account.

Two details keep this safe. Loads are taken as at least 0: what they can be below 0 is subtracted from a_p, for all tables together. And
the mean of the others' kernels is over those that make a call. If none does, the holders do everything, which is no less than the
weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright._engine import cheapest_widths
from shardwright.arrays import Floats, Ints
from shardwright.cost.model import Pricing
from shardwright.search.program import Program
from shardwright.search.relaxation import Prices, Relaxation, first_at, least_calls, ms_per_byte
from shardwright.sharding.costs import KERNELS

_MOST_TABLES = 6
_RANGES = 24  # most ranges of the number of holders
_CUTS = 16  # most cutting planes for a range
_CLOSE = 5e-4  # share of the bound: how close the planes have to come to the best weights


class Count(NamedTuple):
    """Least and greatest number of devices of some kind: holders, or others."""

    fewest: int
    most: int


@dataclass(frozen=True, eq=False)
class Loads:
    """What n ways add to a device in each phase.

    Attributes:
        table: `(n,)`.
        parts: `(n,)` devices that hold a part each.
        ms: `(n, 4)` ms by phase, for kernels and for values and gradients sent, on each of these devices.
        ids: `(n,)` ms of the ids that each other device sends.
    """

    table: Ints
    parts: Ints
    ms: Floats
    ids: Floats

    def priced(self, weights: Floats, devices: Count) -> Floats:
        """`(n,)` ms that a part adds to the weighted mean of some devices, with `weights` `(4,)` by phase."""
        if not devices.most:
            return np.full(self.ids.size, np.inf)
        found: Floats = self.ms @ (weights / devices.most) + self.ids * (1.0 - weights[1] / devices.fewest)
        return found

    def change(self, devices: Count) -> Floats:
        """`(n, 4)` how `priced` rises with the weights."""
        found = self.ms / max(devices.most, 1)
        found[:, 1] -= self.ids / max(devices.fewest, 1)
        return found


class Holders:
    """Bounds by the number of devices that hold a table.

    Args:
        relaxation: the ways of all tables.
        pricing: the cost model's head.
        prices: where the head is taken as linear, and the weights of the link classes.
    """

    def __init__(self, relaxation: Relaxation, pricing: Pricing, prices: Prices) -> None:
        self._relaxation, self._devices = relaxation, relaxation.topology.devices
        forms = relaxation.catalog.forms
        slopes, intercepts = tangents(pricing, prices)
        self._pieces = _piece_loads(relaxation, slopes, prices)
        self._spreads = _spread_loads(relaxation, slopes, prices)
        everywhere = relaxation.everywhere
        self._made = dict(zip(everywhere.tolist(), intercepts[everywhere].sum(axis=1).tolist(), strict=True))
        self._call_of_copies = np.where(np.isin(relaxation.other.call, everywhere), relaxation.other.call, -1)
        rest = np.delete(intercepts, everywhere, axis=0)
        latency = np.array([relaxation.topology.intra_latency_ms, relaxation.topology.inter_latency_ms])
        self._fixed = float(sum(least_calls(of_phase, 1.0) for of_phase in rest.T) + pricing.once.sum())
        self._fixed += float((prices.links * latency).sum())
        for phase in range(4)[KERNELS]:
            below = np.where(relaxation.legal, np.minimum(self._pieces.ms[:, phase], 0.0), np.inf)
            least = np.zeros(relaxation.tables)
            np.minimum.at(least, forms.table, cheapest_widths(forms.first, below)[0])
            np.minimum.at(least, self._spreads.table, self._spreads.ms[:, phase] * self._spreads.parts)
            self._fixed += float(least.sum())
        for loads in (self._pieces, self._spreads):
            np.maximum(loads.ms, 0.0, out=loads.ms)
        self._forms_of = [np.flatnonzero(forms.table == table) for table in range(relaxation.tables)]
        self._least_holders: dict[int, int] = {}

    def bound(self, hot: Sequence[int], step_ms: float, known: float, late: Callable[[], bool]) -> float:
        """Lower bound on the step of every plan, at most `step_ms`.

        Args:
            hot: tables to look at, hottest first; at most six of them count.
            step_ms: step of a known plan.
            known: a bound that is already proven.
            late: whether time is up.
        """
        best = known
        for table in hot[:_MOST_TABLES]:
            found = 0.0 if late() else self._of_table(table, step_ms, best, late)
            best = max(best, found)
        return min(best, step_ms)

    def _of_table(self, table: int, step_ms: float, enough: float, late: Callable[[], bool]) -> float:
        """The least bound over a table's numbers of holders; lower if time is up, or if it is at most `enough`."""
        copied = self._value(table, Count(self._devices, self._devices), np.ones(4), copied=True)[0]
        found = {part: self._highest(table, part, step_ms, enough) for part in self._first_ranges()}
        while len(found) < _RANGES and not late():
            least = min(found, key=lambda part: (found[part], part))
            if found[least] >= min(copied, step_ms) or least.fewest == least.most:
                break
            middle = (least.fewest + least.most) // 2
            halves = Count(least.fewest, middle), Count(middle + 1, least.most)
            found |= {part: max(found[least], self._highest(table, part, step_ms, enough)) for part in halves}
            del found[least]
        refuted = 0
        for part in sorted(found):
            if found[part] < step_ms:
                break
            refuted = part.most
        self._least_holders[table] = refuted + 1
        return min(copied, *found.values())

    def _first_ranges(self) -> list[Count]:
        """The first ranges of holders: 1, 2 to D - 1, and D, where there are no others."""
        ends = (1, 1), (2, self._devices - 1), (self._devices, self._devices)
        return sorted({Count(*end) for end in ends if end[0] <= end[1]})

    def _highest(self, table: int, holders: Count, step_ms: float, enough: float) -> float:
        """The bound at the best weights for plans with so many holders; lower if it is at least `step_ms`, or at most `enough`."""
        weights, best = np.full(4, holders.most / self._devices), -np.inf
        planes: list[tuple[float, Floats]] = []
        for _ in range(_CUTS):
            value, rise = self._value(table, holders, weights)
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

    def _value(self, table: int, holders: Count, weights: Floats, *, copied: bool = False) -> tuple[float, Floats]:
        """The bound that `(4,)` weights prove if so many devices hold a table, and how it rises with the weights.

        Args:
            table: the table.
            holders: how many devices hold it.
            weights: weights of the holders' mean by phase; the others' mean has the rest.
            copied: whether the table is replicated everywhere instead.
        """
        relaxation, forms = self._relaxation, self._relaxation.catalog.forms
        others = self._others(holders)
        on, off = self._pieces.priced(weights, holders), self._pieces.priced(1.0 - weights, others)
        own = relaxation.table_of_row == table
        with_holders = own | (on <= off)
        price = np.where(relaxation.legal & ~(own & copied), np.where(with_holders, on, off), np.inf)
        best = np.full(relaxation.tables, np.inf)
        of_form, uses = cheapest_widths(forms.first, price)
        for held, least in {**self._least_holders, table: holders.fewest}.items():
            for form in self._forms_of[held] if least > 1 and np.isfinite(of_form[self._forms_of[held]]).any() else ():
                part = slice(forms.first[form], forms.first[form + 1])
                of_form[form], uses[part] = _in_pieces(price[part], least)
        np.minimum.at(best, forms.table, of_form)
        of_spread, rise_of_spread = self._spread_prices(table, holders, weights, copied=copied)
        single = self._call_of_copies < 0
        np.minimum.at(best, self._spreads.table[single], of_spread[single])
        made = 0.0
        for call, ms in self._made.items():
            these = self._call_of_copies == call
            these &= np.isfinite(of_spread)
            gain = np.maximum(best[self._spreads.table[these]] - of_spread[these], 0.0).sum()
            if gain > ms:
                made += ms
            else:
                of_spread[these] = np.inf
        np.minimum.at(best, self._spreads.table, of_spread)
        if not np.isfinite(best).all():
            return np.inf, np.zeros(4)
        taken = first_at(best, forms.table, of_form)
        spread = first_at(best, self._spreads.table, of_spread)
        spread = spread[~np.isin(self._spreads.table[spread], forms.table[taken])]
        used = uses * np.isin(np.repeat(np.arange(forms.table.size), forms.units), taken)
        inside, outside = used * with_holders, used * ~with_holders
        rise = inside @ self._pieces.change(holders) - outside @ self._pieces.change(others)
        return self._fixed + made + float(best.sum()), rise + rise_of_spread[spread].sum(axis=0)

    def _others(self, holders: Count) -> Count:
        return Count(self._devices - holders.most, self._devices - holders.fewest)

    def _spread_prices(self, table: int, holders: Count, weights: Floats, *, copied: bool) -> tuple[Floats, Floats]:
        """`(spreads,)` ms of the other ways, with as many parts on holders as pays, and `(spreads, 4)` how they rise with the weights."""
        loads, others = self._spreads, self._others(holders)
        on, off = loads.priced(weights, holders), loads.priced(1.0 - weights, others)
        most, fewest = np.minimum(loads.parts, holders.most), np.maximum(loads.parts - others.most, 0)
        inside = np.where(on <= off, most, fewest)
        outside = loads.parts - inside
        price = inside * on + np.where(outside > 0, outside * np.where(outside > 0, off, 0.0), 0.0)
        rise = inside[:, None] * loads.change(holders) - outside[:, None] * loads.change(others)
        copies = self._call_of_copies >= 0
        for held, least in self._least_holders.items():
            price[(loads.table == held) & (loads.parts < least) & ~copies] = np.inf
        own = loads.table == table
        if copied:
            price[own & ~copies] = np.inf
        else:
            price[own & (copies | (loads.parts < holders.fewest) | (loads.parts > holders.most))] = np.inf
        return price, rise


def tangents(pricing: Pricing, prices: Prices) -> tuple[Floats, Floats]:
    """`(2, calls, h + 2)` slopes and `(calls, 2)` intercepts of forward and backward time, with hidden units as active as in `prices`."""
    mix = pricing.mix.sum(axis=0)
    active = np.divide(prices.vector[:, :-2], mix, out=np.zeros_like(prices.vector[:, :-2]), where=mix > 0)
    ones = np.ones((len(active), 1))
    slopes = np.stack([np.hstack([pricing.mix[phase] * active, ones * np.eye(2)[phase]]) for phase in range(2)])
    return slopes, active @ (pricing.mix * pricing.hidden_bias).T + pricing.bias


def _loads(table: Ints, parts: Ints, kernels: Floats, links: Floats, relaxation: Relaxation, prices: Prices) -> Loads:
    """Loads from `(2, n)` kernel ms, and `(n, 4)` bytes of values and ids served, and of gradients reduced inside and between hosts."""
    topology = relaxation.topology
    bandwidth = np.array(topology.link_bandwidth) / 1e3
    forward, backward = prices.links @ ms_per_byte(topology)
    reduced = links[:, 2:] @ (prices.links[1] / bandwidth)
    present = ms_per_byte(topology) > 0
    asked = float((prices.links[0] / bandwidth)[present].min()) / topology.devices if present.any() else 0.0
    ms = np.stack([kernels[0], links[:, 0] * forward, links[:, 0] * backward + reduced, kernels[1]], axis=1)
    return Loads(table, parts, ms, links[:, 1] * asked)


def _piece_loads(relaxation: Relaxation, slopes: Floats, prices: Prices) -> Loads:
    forms = relaxation.catalog.forms
    links = np.hstack([relaxation.least_served(), np.zeros((forms.costs.call.size, 2))])
    ones = np.ones(forms.costs.call.size, dtype=np.int64)
    return _loads(relaxation.table_of_row, ones, relaxation.piece_prices(slopes), links, relaxation, prices)


def _spread_loads(relaxation: Relaxation, slopes: Floats, prices: Prices) -> Loads:
    other = relaxation.other
    kernels = np.stack([relaxation.other_prices(slope) for slope in slopes])
    return _loads(other.table, other.parts, kernels, other.links / other.parts[:, None], relaxation, prices)


def _in_pieces(price: Floats, least: int) -> tuple[float, Ints]:
    """The cheapest cut of a form into `least` pieces or more: its price, from `(units,)` prices by width, and `(units,)` uses of each."""
    units = price.size
    free, of_free = np.zeros(units + 1), np.zeros(units + 1, dtype=np.int64)
    for units_left in range(1, units + 1):
        found = free[:units_left][::-1] + price[:units_left]
        of_free[units_left] = 1 + int(np.argmin(found))
        free[units_left] = found.min()
    counted = np.concatenate([[0.0], np.full(units, np.inf)])
    steps: list[Ints] = []
    width = np.arange(units + 1)[:, None] - np.arange(units + 1)
    single = np.where(width > 0, np.append(price, np.inf)[width - 1], np.inf)
    for _ in range(least):
        found = counted + single
        steps.append(np.argmin(found, axis=1))
        counted = found.min(axis=1)
    total = counted + free[::-1]
    counted_units = int(np.argmin(total))
    uses = np.zeros(units, dtype=np.int64)
    if not np.isfinite(total.min()):
        return np.inf, uses
    left = units - counted_units
    while left:
        uses[of_free[left] - 1] += 1
        left -= int(of_free[left])
    for step in reversed(steps):
        uses[counted_units - step[counted_units] - 1] += 1
        counted_units = int(step[counted_units])
    return float(total.min()), uses
