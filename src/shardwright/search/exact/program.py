"""A mixed-integer linear programme under construction, and its solution by HiGHS."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.errors import ShardwrightError

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_MOST_NODES = 2**31 - 1
_INFEASIBLE = 2  # status of scipy.optimize.milp, which does not tell a limit on nodes from failures; its message does


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found.

    Attributes:
        values: `(variables,)`; None if it found nothing.
        objective: of `values`; infinite without them.
        bound: no solution has a smaller objective; infinite where there is provably no solution.
    """

    values: Floats | None
    objective: float
    bound: float


class Program:
    """min cost · x  with  low ≤ x ≤ high  and  low ≤ rows · x ≤ high, some x integer."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._integer: list[bool] = []
        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._limits: list[tuple[float, float]] = []

    def variables(
        self, high: Sequence[float] | Floats, *, low: float = 0.0, cost: float = 0.0, integer: bool = False
    ) -> Ints:
        """New variables up to `high`; their indices."""
        first = len(self._cost)
        count = len(high)
        self._cost += [cost] * count
        self._low += [low] * count
        self._high += [float(value) for value in high]
        self._integer += [integer] * count
        return np.arange(first, first + count)

    def row(self, columns: npt.ArrayLike, values: npt.ArrayLike, low: float = -np.inf, high: float = np.inf) -> None:
        """A row: low ≤ values · x[columns] ≤ high. Columns may repeat."""
        found = np.asarray(columns, dtype=np.int64).ravel()
        self._columns.append(found)
        self._values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), found.shape))
        self._limits.append((low, high))

    def relaxed(self) -> float:
        """The smallest objective where nothing need be whole: a lower bound; infinite where there is no solution even so."""
        found = self._run(whole=False)
        if found.status == _INFEASIBLE:
            return math.inf
        if found.x is None:
            raise _failed(found.message)
        return float(found.fun)

    def solve(self, *, seconds: float | None, nodes: int | None, tolerance: float) -> Solution:
        """Solve with HiGHS.

        Args:
            seconds: time limit.
            nodes: limit on the nodes of the search tree.
            tolerance: relative gap at which a solution counts as optimal.

        Raises:
            ShardwrightError: the solver failed.
        """
        found = self._run(whole=True, seconds=seconds, nodes=nodes, tolerance=tolerance)
        if found.status == _INFEASIBLE:
            return Solution(None, np.inf, np.inf)
        bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
        if found.x is not None:
            return Solution(np.asarray(found.x), float(found.fun), bound)
        if "limit" not in found.message:
            raise _failed(found.message)
        return Solution(None, np.inf, bound)

    def _run(
        self, *, whole: bool, seconds: float | None = None, nodes: int | None = None, tolerance: float = 0.0
    ) -> OptimizeResult:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        begins = np.concatenate([[0], np.cumsum([columns.size for columns in self._columns])])
        entries = np.concatenate(self._values), np.concatenate(self._columns), begins
        matrix = csr_array(entries, shape=(len(self._limits), len(self._cost)))
        matrix.sum_duplicates()
        low, high = np.array(self._limits).T
        with _STDOUT_ON_STDERR:
            return milp(
                np.array(self._cost),
                integrality=np.array(self._integer, dtype=np.int64) * whole,
                bounds=Bounds(np.array(self._low), np.array(self._high)),
                constraints=LinearConstraint(matrix, low, high),
                options={
                    "mip_rel_gap": tolerance,
                    "time_limit": math.inf if seconds is None else seconds,
                    "node_limit": _MOST_NODES if nodes is None else nodes,
                },
            )


def _failed(message: str) -> ShardwrightError:
    return ShardwrightError(f"the solver failed on the programme of this task: {message}; use strategy certified")


class _Redirection:
    """Standard output sent to standard error, for as long as any thread is inside.

    A process has one standard output. Where every search saved and restored it by itself, a search that begins during another one would
    save what is redirected already, and restore that when it ends last. What other threads print meanwhile goes to standard error, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._kept = -1

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                sys.stdout.flush()
                self._kept = os.dup(1)
                try:
                    os.dup2(2, 1)
                except BaseException:
                    os.close(self._kept)
                    raise
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                os.dup2(self._kept, 1)
                os.close(self._kept)


# What the solver's C++ code prints, which no option turns off, goes where logs go: standard output may be one JSON document.
_STDOUT_ON_STDERR = _Redirection()
