"""The linear programme behind the bound: mix ways of the tables so that the mean device costs least. Its duals are the prices.

Variables are the cost of each hidden unit of each call, the share of devices that make each call, ms of the forward and of the backward
links, and the share of each column. A column is what a group of tables would choose at some prices. Columns are added as they are found,
and the solver goes on from where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np
import numpy.typing as npt

from shardwright.cost.model import Pricing
from shardwright.search.relaxation import Loads, Prices, ms_per_byte
from shardwright.task.task import Task

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_INFINITE = highspy.kHighsInf
_PRIMAL_SIMPLEX = 4  # after new columns a basis is primal feasible


@dataclass(eq=False)
class Programme:
    """The programme of a task.

    Attributes:
        task: the task.
        pricing: the cost model's head.
        kinds: how many kinds of fused calls there are.
        calls: how many calls the mean device makes at least.
        everywhere: calls of replicas alone: at least as many devices make one as the share of any table that is in it.
        groups: groups of tables; each takes a mixture of its columns.
        phases: `(4,)` 1 for phases that count.
    """

    task: Task
    pricing: Pricing
    kinds: int
    calls: float
    everywhere: Ints
    groups: int
    phases: Floats
    _solver: highspy.Highs = field(init=False, repr=False)
    _units: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._mix = self.phases[:2] @ self.pricing.mix
        self._units = np.flatnonzero(self._mix > 0)
        self._links = np.flatnonzero(ms_per_byte(self.task.topology) > 0)
        hidden = self.kinds * self._units.size
        # Rows: hidden units by call, forward and backward links, least calls, replicas by call and group, one mixture a group.
        self._of_links = hidden
        self._of_calls = hidden + 2 * self._links.size
        self._of_replicas = self._of_calls + 1
        self._of_groups = self._of_replicas + self.everywhere.size * self.groups
        self._solver = highspy.Highs()
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("log_to_console", False)
        self._solver.setOptionValue("threads", 1)
        latency = np.array([self.task.topology.intra_latency_ms, self.task.topology.inter_latency_ms])
        upper = np.zeros(self._of_groups + self.groups)
        upper[self._of_links : self._of_calls] = np.tile(-latency[self._links], 2)
        upper[self._of_calls] = -self.calls
        upper[self._of_groups :] = 1.0
        lower = np.where(np.arange(upper.size) < self._of_groups, -_INFINITE, 1.0)
        empty = np.zeros(0, dtype=np.int32)
        self._solver.addRows(upper.size, lower, upper, 0, np.zeros(upper.size, dtype=np.int32), empty, np.zeros(0))
        self._add_slacks(hidden)

    def _add_slacks(self, hidden: int) -> None:
        """All variables but the columns' shares."""
        made = float(self.pricing.bias @ self.phases[:2])
        matrix = np.zeros((hidden + self.kinds + 2, self._of_groups + self.groups))
        matrix[np.arange(hidden), np.arange(hidden)] = -1.0
        for call in range(self.kinds):
            of_call = matrix[hidden + call]
            own = slice(call * self._units.size, (call + 1) * self._units.size)
            of_call[own] = (self._mix * self.pricing.hidden_bias)[self._units]
            of_call[self._of_calls] = -1.0
            of_call[self._of_replicas : self._of_groups] = np.where(
                np.repeat(self.everywhere == call, self.groups), -1.0, 0.0
            )
        for of_pass in range(2):
            start = self._of_links + of_pass * self._links.size
            matrix[hidden + self.kinds + of_pass, start : start + self._links.size] = -1.0
        cost = np.concatenate([np.ones(hidden), np.full(self.kinds, made), self.phases[2:]])
        upper = np.concatenate([np.full(hidden, _INFINITE), np.ones(self.kinds), np.full(2, _INFINITE)])
        self._add(cost, upper, matrix)

    def add(self, loads: Loads) -> None:
        """A column for each group of tables."""
        devices, topology = self.task.topology.devices, self.task.topology
        vectors, (served, reduced) = loads.vectors / devices, np.split(loads.links / devices, 2, axis=1)
        each, bandwidth = ms_per_byte(topology)[self._links], np.array(topology.link_bandwidth)[self._links]
        forward = served.sum(axis=1)[:, None] * each
        backward = served[:, :1] * each + reduced[:, self._links] / bandwidth * 1e3
        matrix = np.zeros((self.groups, self._of_groups + self.groups))
        hidden = vectors[:, :, self._units] * self._mix[self._units]
        matrix[:, : self._of_links] = hidden.reshape(self.groups, -1)
        matrix[:, self._of_links : self._of_calls] = np.hstack([forward, backward])
        copied = vectors[:, self.everywhere].any(axis=2)
        group, place = np.nonzero(copied)
        matrix[group, self._of_replicas + place * self.groups + group] = 1.0
        matrix[np.arange(self.groups), self._of_groups + np.arange(self.groups)] = 1.0
        self._add(vectors[:, :, -2:].sum(axis=1) @ self.phases[:2], np.full(self.groups, _INFINITE), matrix)

    def _add(self, cost: Floats, upper: Floats, matrix: Floats) -> None:
        """Variables with their costs, limits and `(variables, rows)` coefficients."""
        variable, row = np.nonzero(matrix)
        starts = np.searchsorted(variable, np.arange(cost.size)).astype(np.int32)
        values = matrix[variable, row]
        self._solver.addCols(
            cost.size, cost, np.zeros(cost.size), upper, values.size, starts, row.astype(np.int32), values
        )

    def solve(self) -> tuple[float, Prices] | None:
        """What the mean device costs at least, and the prices at which that is so; None for numbers beyond the solver's reach."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        self._solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        duals = -np.array(self._solver.getSolution().row_dual)
        bias, mix = self.pricing.hidden_bias, self._mix
        weight = np.tile(bias > 0, (self.kinds, 1)).astype(np.float64)
        weight[:, self._units] = np.clip(duals[: self._of_links], 0.0, 1.0).reshape(self.kinds, self._units.size)
        shares = np.zeros((2, 2))
        shares[:, self._links] = np.maximum(duals[self._of_links : self._of_calls].reshape(2, -1), 0.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        if self._links.size:
            shares[shares.sum(axis=1) < 0.5, self._links[0]] = 1.0
        vector = np.hstack([mix * weight, np.tile(self.phases[:2], (self.kinds, 1))])
        least = self._solver.getInfo().objective_function_value + float(self.pricing.once @ self.phases[:2])
        return least, Prices(vector, shares * self.phases[2:, None])
