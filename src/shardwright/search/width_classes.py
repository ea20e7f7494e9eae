"""Bounds by the number of devices that hold blocks of each class of widths; see "Width classes" in `search.bound`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

import highspy
import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.model import OPEN
from shardwright.linear_programs import INFINITE, quiet_solver
from shardwright.search.holders import Holders, Loads

_MOST = 250  # vectors of devices by class: all of 8 devices
_GROUPS = 40  # groups of tables, each with separate cutting planes
_CLOSE = 5e-4  # share of the bound: distance of the planes from the best weights at which the search ends
_CUTS = 24  # most cutting planes a group for a vector


class Vector(NamedTuple):
    """Devices of each class, the bound of the plans that have them, and whether it was raised as far as possible."""

    ms: float
    devices: tuple[int, ...]
    raised: bool = False


class WidthClasses:
    """Bounds by the number of devices of each class of widths, on clusters that have few such vectors.

    Args:
        holders: loads of all ways at the point where the head is linearised.
    """

    def __init__(self, holders: Holders) -> None:
        self._holders, self._relaxation = holders, holders.relaxation
        self._devices = self._relaxation.topology.devices
        of_pieces, of_parts = holders.gate_units()
        costs, other = self._relaxation.catalog.forms.costs, self._relaxation.other
        here, here_too = (calls == _widest_call(costs.call, of_pieces) for calls in (costs.call, other.call))
        self._level = (of_pieces[:, :, 0] > OPEN).sum(axis=1) * here
        self._spread_level = (of_parts[:, :, 0] > OPEN).sum(axis=1) * here_too
        legal = np.concatenate([self._level[self._relaxation.legal], self._spread_level[self._relaxation.other_legal]])
        self.classes = int(legal.max(initial=0)) + 1
        self._pieces, self._spreads = (
            [loads.with_kernels(units[:, :each, 1:].sum(axis=1) * of_call[:, None]) for each in range(self.classes)]
            for loads, units, of_call in (
                (holders.pieces, of_pieces, here),
                (holders.spreads, of_parts, here_too),
            )
        )
        self._group = np.arange(self._relaxation.tables) % min(self._relaxation.tables, _GROUPS)

    def bound(self, step_ms: float, known: float, late: Callable[[], bool]) -> float:
        """Lower bound on the step of every plan, at most `step_ms`; 0 if there are too many vectors, or no time to look at each once.

        Args:
            step_ms: step of a known plan.
            known: a bound that is already proven.
            late: whether time is up.
        """
        if self.classes < 2 or math.comb(self._devices + self.classes - 1, self.classes - 1) > _MOST:
            return 0.0
        vectors = []
        for devices in _vectors(self._devices, self.classes):
            if late():
                return 0.0
            vectors.append(Vector(self.value(devices, self._even(devices))[0], devices))
        heapify(vectors)
        while not (vectors[0].raised or vectors[0].ms >= step_ms or late()):
            least = vectors[0]
            heapreplace(vectors, Vector(self._highest(least, step_ms, known), least.devices, raised=True))
        return min(vectors[0].ms, step_ms)

    def _even(self, devices: tuple[int, ...]) -> Floats:
        return np.tile(np.array(devices)[:, None] / self._devices, (1, 4))

    def _highest(self, vector: Vector, step_ms: float, enough: float) -> float:
        """The bound at the best weights for a vector; lower if it is at least `step_ms`, or at most `enough`."""
        planes, weights, best = (
            _Planes(vector.devices, int(self._group.max()) + 1),
            self._even(vector.devices),
            vector.ms,
        )
        for _ in range(_CUTS):
            value, start, rise = self.value(vector.devices, weights)
            best = max(best, value)
            if best >= step_ms:
                break
            height, weights = planes.highest(start, rise)
            if (highest := height + self._holders.fixed) <= enough or highest - best <= _CLOSE * best:
                break
        return best

    def value(self, devices: tuple[int, ...], weights: Floats) -> tuple[float, Floats, Floats]:
        """The bound that weights prove for plans with so many devices of each class.

        Args:
            devices: how many devices each class has.
            weights: `(classes, 4)` weights of the classes' means by phase; those of a phase sum to 1.

        Returns:
            The bound, and by group of tables its part at weights of 0, `(groups,)`, and how that rises with them, `(groups, classes, 4)`.
        """
        relaxation, forms = self._relaxation, self._relaxation.catalog.forms
        spared = self._spared(devices, weights[:, 1])
        price = self._prices(self._pieces, self._level, devices, weights, spared)
        of_class = price.argmin(axis=0)
        least = np.where(relaxation.legal, price.min(axis=0), np.inf)
        of_form, uses = forms.cheapest(least)
        of_spread, parts = self._spread_prices(devices, weights, spared)
        best, worth, taken, spread = relaxation.settled(of_form, of_spread, self._holders.made)
        groups = int(self._group.max()) + 1
        start, rise = np.zeros(groups), np.zeros((groups, self.classes, 4))
        if not np.isfinite(best).all():
            return np.inf, start, rise
        used = uses * np.isin(forms.form, taken)
        for each in range(self.classes):
            rows = np.flatnonzero(used * (of_class == each))
            _add(start, rise[:, each], self._group, self._pieces[each], rows, used[rows], devices[each])
            _add(start, rise[:, each], self._group, self._spreads[each], spread, parts[each, spread], devices[each])
        value = self._holders.fixed + sum(self._holders.made[worth].tolist()) + float(best.sum())
        return value, start, rise

    def _prices(
        self, loads: list[Loads], level: Ints, devices: tuple[int, ...], weights: Floats, spared: float
    ) -> Floats:
        """`(classes, n)` ms that a part adds on a device of each class; infinite if it is too wide for the class."""
        prices = np.full((self.classes, level.size), np.inf)
        for each, (of_class, count) in enumerate(zip(loads, devices, strict=True)):
            if count:
                sent = max(0.0, 1.0 - weights[each, 1] / count - spared)
                ms = of_class.ms @ (weights[each] / count) + of_class.ids * sent
                prices[each] = np.where(level <= each, ms, np.inf)
        return prices

    def _spread_prices(self, devices: tuple[int, ...], weights: Floats, spared: float) -> tuple[Floats, Floats]:
        """`(spreads,)` ms of the other ways, parts on the cheapest classes that have room, and `(classes, spreads)` these parts."""
        price = self._prices(self._spreads, self._spread_level, devices, weights, spared)
        loads, places = self._spreads[0], np.arange(price.shape[1])
        room = np.where((loads.holders[:, 0] < loads.parts)[None], np.inf, np.array(devices)[:, None])
        left, parts, total = loads.parts.astype(np.float64), np.zeros_like(price), np.zeros(places.size)
        for each in np.argsort(price, axis=0):
            taken = np.minimum(left, room[each, places])
            parts[each, places] = taken
            total += np.where(taken > 0, taken * np.where(taken > 0, price[each, places], 0.0), 0.0)
            left -= taken
        total[(left > 0) | ~self._relaxation.other_legal] = np.inf
        return total, parts

    def _spared(self, devices: tuple[int, ...], weights: Floats) -> float:
        """The largest share of the ids' price that devices of a holder's host may save, over all classes that they may be in."""
        left, saved = self._holders.peers.others, 0.0
        ratios = [(weight / count, count) for weight, count in zip(weights.tolist(), devices, strict=True) if count]
        for ratio, count in sorted(ratios, reverse=True):
            saved += ratio * min(left, count)
            left -= min(left, count)
        return self._holders.peers.cheaper * saved


class _Planes:
    """Cutting planes of the value of a vector, for each group of tables, and the weights at which they are highest."""

    def __init__(self, devices: tuple[int, ...], groups: int) -> None:
        classes = len(devices)
        self._weights, self._groups, self._solver = 4 * classes, groups, quiet_solver()
        self._even = np.array(devices) / sum(devices)
        upper = np.concatenate([np.repeat(np.array(devices) > 0, 4).astype(np.float64), np.full(groups, INFINITE)])
        self._solver.addVars(upper.size, np.zeros(upper.size), upper)
        cost = np.concatenate([np.zeros(self._weights), np.full(groups, -1.0)])
        self._solver.changeColsCost(cost.size, np.arange(cost.size, dtype=np.int32), cost)
        for phase in range(4):
            self._solver.addRow(1.0, 1.0, classes, np.arange(phase, self._weights, 4, dtype=np.int32), np.ones(classes))

    def highest(self, start: Floats, rise: Floats) -> tuple[float, Floats]:
        """Add a plane of each group; returns the height of the highest point under all planes, and its `(classes, 4)` weights."""
        for group, (at_zero, slope) in enumerate(zip(start.tolist(), rise.reshape(self._groups, -1), strict=True)):
            place = np.flatnonzero(slope)
            columns = np.append(place, self._weights + group).astype(np.int32)
            self._solver.addRow(-INFINITE, at_zero, columns.size, columns, np.append(-slope[place], 1.0))
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return -np.inf, np.tile(self._even[:, None], (1, 4))
        values = np.array(self._solver.getSolution().col_value)
        weights = np.clip(values[: self._weights].reshape(-1, 4), 0.0, 1.0)
        return float(values[self._weights :].sum()), weights / weights.sum(axis=0)


def _add(start: Floats, rise: Floats, group: Ints, loads: Loads, rows: Ints, uses: Floats | Ints, devices: int) -> None:
    """Add the costs of used parts on devices of one class at weights of 0, and how these rise with the weights of the class."""
    if not devices or not rows.size:
        return
    of_group = group[loads.table[rows]]
    np.add.at(start, of_group, loads.ids[rows] * uses)
    each = loads.ms[rows] / devices
    each[:, 1] -= loads.ids[rows] / devices
    np.add.at(rise, of_group, each * np.asarray(uses, dtype=np.float64)[:, None])


def _widest_call(call: Ints, units: Floats) -> int:
    """The call whose blocks could pay most for open gates."""
    return int(np.bincount(call, units[:, :, 1:].sum(axis=(1, 2))).argmax())


def _vectors(devices: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Every way to give some devices to classes."""
    if classes == 1:
        yield (devices,)
        return
    for first in range(devices + 1):
        for rest in _vectors(devices - first, classes - 1):
            yield (first, *rest)
