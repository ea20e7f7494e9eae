"""The linear program that finds the prices of the bound.

It mixes the tables' ways (`search.relaxation`) so that the mean device costs least; its duals are the prices. Its variables are the cost of
each hidden unit of each call, the share of devices that make each call, the ms of the forward and of the backward links, and the share of
each column. A column is the cheapest ways of a group of tables at some prices. Columns are added as they are found, and the solver
continues from its last solution.
"""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.model import Pricing
from shardwright.cost.prices import KINDS, Prices, pass_ms, peers_of
from shardwright.linear_programs import INFINITE, quiet_solver
from shardwright.search.relaxation import Relaxation
from shardwright.sharding.costs import KERNELS, LINKS

_PRIMAL_SIMPLEX = 4  # new columns leave the basis primal feasible


class Line(NamedTuple):
    """One of the lower limits of a pass, on each link class: some of its traffic, less what dense layers hide of that.

    Attributes:
        of_pass: 0 forward, 1 backward.
        values: 1 if values, or their gradients, count.
        ids: 1 if ids count.
    """

    of_pass: int
    values: float
    ids: float

    def waits(self, waits: Floats) -> float:
        """Ms of the line, from `(3,)` ms for values, gradients and ids."""
        return float(waits[self.of_pass] * self.values + waits[2] * self.ids)


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
        self._fixed = float(pricing.once @ phases[KERNELS])
        self._hides = bool(relaxation.hidden.any())
        self._lines = [Line(0, 1.0, 1.0), Line(1, 1.0, 0.0)]
        if self._hides:
            self._lines += [Line(0, 1.0, 0.0), Line(0, 0.0, 1.0)]
            waits = (
                relaxation.waits[np.argmin(relaxation.waits.sum(axis=1))]
                if len(relaxation.waits)
                else -relaxation.hidden
            )
        else:
            waits = np.zeros(3)
            self._fixed += relaxation.least_waits(phases[KINDS])
        self._units: Ints = np.flatnonzero(self._mix > 0)
        self._links = np.flatnonzero(peers_of(self._topology) > 0)
        self._pass_ms = pass_ms(relaxation.catalog.task)[:, self._links]
        hidden = self._kinds * self._units.size
        # Rows: hidden units by call, lines of link classes, least calls, replicas by call and group, one mixture a group.
        self._of_links = hidden
        self._of_calls = hidden + len(self._lines) * self._links.size
        self._of_replicas = self._of_calls + 1
        self._of_groups = self._of_replicas + self._everywhere.size * self.groups
        self._solver = quiet_solver()
        upper = np.zeros(self._of_groups + self.groups)
        upper[hidden : self._of_calls] = np.repeat([-line.waits(waits) for line in self._lines], self._links.size)
        upper[self._of_calls] = -relaxation.least_made
        upper[self._of_groups :] = 1.0
        lower = np.where(np.arange(upper.size) < self._of_groups, -INFINITE, 1.0)
        empty = np.zeros(0, dtype=np.int32)
        self._solver.addRows(upper.size, lower, upper, 0, np.zeros(upper.size, dtype=np.int32), empty, np.zeros(0))
        self._add_slacks(hidden)

    def _add_slacks(self, hidden: int) -> None:
        """Add all variables except the columns' shares."""
        made = float(self._pricing.bias @ self._phases[KERNELS])
        # A sequence table has a call for every width of its blocks, so there may be a thousand calls: no dense matrix.
        bias = np.tile((self._mix * self._pricing.hidden_bias)[self._units], self._kinds)
        of_units, others = np.arange(hidden), np.setdiff1d(np.arange(self._kinds), self._everywhere)
        copied = np.repeat(self._everywhere, self.groups)
        passes = np.repeat([line.of_pass for line in self._lines], self._links.size)
        blocks = [
            (of_units, of_units, np.full(hidden, -1.0)),
            (hidden + of_units // max(1, self._units.size), of_units, bias),
            (hidden + others, np.full(others.size, self._of_calls), np.full(others.size, -1.0)),
            (hidden + copied, self._of_replicas + np.arange(copied.size), np.full(copied.size, -1.0)),
            (hidden + self._kinds + passes, self._of_links + np.arange(passes.size), np.full(passes.size, -1.0)),
        ]
        cost = np.concatenate([np.ones(hidden), np.full(self._kinds, made), self._phases[LINKS]])
        upper = np.concatenate([np.full(hidden, INFINITE), np.ones(self._kinds), np.full(2, INFINITE)])
        variable, row, values = map(np.concatenate, zip(*blocks, strict=True))
        order = np.lexsort((row, variable))
        order = order[values[order] != 0]
        self._add(cost, upper, variable[order], row[order], values[order])

    def add(self, vectors: Floats, links: Floats) -> None:
        """Add a column for each group of tables, from its addition to all devices together; see `Relaxation.sums`."""
        devices = self._topology.devices
        vectors, links = vectors / devices, links / devices
        values, apart = (
            links[:, self._links],
            links[:, 3:, None],
        )  # near and far values are in the order of the link classes
        ms = [
            (values * line.values + links[:, 2:3] * line.ids) * self._pass_ms[line.of_pass]
            + apart[:, line.of_pass] * line.values
            for line in self._lines
        ]
        matrix = np.zeros((self.groups, self._of_groups + self.groups))
        hidden = vectors[:, :, self._units] * self._mix[self._units]
        matrix[:, : self._of_links] = hidden.reshape(self.groups, -1)
        matrix[:, self._of_links : self._of_calls] = np.hstack(ms)
        copied = vectors[:, self._everywhere].any(axis=2)
        group, place = np.nonzero(copied)
        matrix[group, self._of_replicas + place * self.groups + group] = 1.0
        matrix[np.arange(self.groups), self._of_groups + np.arange(self.groups)] = 1.0
        cost = vectors[:, :, -2:].sum(axis=1) @ self._phases[KERNELS]
        variable, row = np.nonzero(matrix)
        self._add(cost, np.full(self.groups, INFINITE), variable, row, matrix[variable, row])

    def _add(self, cost: Floats, upper: Floats, variable: Ints, row: Ints, values: Floats) -> None:
        """Add variables with their costs, limits and coefficients, sorted by variable."""
        starts = np.searchsorted(variable, np.arange(cost.size)).astype(np.int32)
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
        of_lines = np.zeros((len(self._lines), 2))
        of_lines[:, self._links] = np.maximum(duals[self._of_links : self._of_calls].reshape(len(self._lines), -1), 0.0)
        if self._hides:  # the lines of a pass share a weight of at most 1
            forward = np.array([line.of_pass == 0 for line in self._lines])
            of_lines[forward] /= max(1.0, float(of_lines[forward].sum()))
            of_lines[~forward] /= max(1.0, float(of_lines[~forward].sum()))
            shares = np.stack([of_lines[0] + of_lines[2], of_lines[1], of_lines[0] + of_lines[3]])
        else:
            of_lines /= np.maximum(of_lines.sum(axis=1, keepdims=True), 1e-300)
            if self._links.size:
                of_lines[of_lines.sum(axis=1) < 0.5, self._links[0]] = 1.0
            shares = of_lines[[0, 1, 0]]
        vector = np.hstack([mix * weight, np.tile(self._phases[KERNELS], (self._kinds, 1))])
        least = self._solver.getInfo().objective_function_value + self._fixed
        return least, Prices(vector, shares * self._phases[KINDS, None])
