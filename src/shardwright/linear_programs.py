"""A linear program, with or without integer variables: built row by row, solved by HiGHS."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats, Ints
from shardwright.errors import ShardwrightError

INFINITE = highspy.kHighsInf
_STATUS = highspy.HighsModelStatus
_LIMITS = (_STATUS.kTimeLimit, _STATUS.kIterationLimit, _STATUS.kSolutionLimit)  # a node limit ends as the last one
_MOST_NODES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a solver run.

    Attributes:
        values: `(variables,)`; None if it found nothing.
        objective: of `values`; infinite without them.
        bound: no solution has a smaller objective; infinite if there is provably no solution.
        duals: `(rows,)` how much the objective rises with each row's limit; only from `relaxed`.
    """

    values: Floats | None
    objective: float
    bound: float
    duals: Floats | None = None


class Program:
    """min cost · x  with  low ≤ x ≤ high  and  low ≤ rows · x ≤ high, some x integer.

    Args:
        deadline: `time.monotonic()` at which building it ends with a TimeoutError; None for no limit.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self._deadline = deadline
        self._cost: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._integer: list[bool] = []
        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._limits: list[tuple[float, float]] = []

    def variables(
        self, high: Sequence[float] | Floats, *, low: float = 0.0, cost: float | Floats = 0.0, integer: bool = False
    ) -> Ints:
        """Add variables with the upper limits `high`, and return their indices."""
        first = len(self._cost)
        count = len(high)
        self._cost += np.broadcast_to(cost, count).tolist()
        self._low += [low] * count
        self._high += [float(value) for value in high]
        self._integer += [integer] * count
        return np.arange(first, first + count)

    def row(self, columns: npt.ArrayLike, values: npt.ArrayLike, low: float = -np.inf, high: float = np.inf) -> None:
        """Add a row: low ≤ values · x[columns] ≤ high. Columns may repeat."""
        self.check_time()
        flat = np.asarray(columns, dtype=np.int64).ravel()
        weights = np.broadcast_to(np.asarray(values, dtype=np.float64), flat.shape)
        unique, place = np.unique(flat, return_inverse=True)
        self._columns.append(unique)
        self._values.append(np.bincount(place, weights, unique.size).astype(np.float64))
        self._limits.append((low, high))

    def check_time(self) -> None:
        """Raise a TimeoutError if the deadline has passed."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeoutError

    def relaxed(self, seconds: float | None = None) -> Solution:
        """Solve without the integer constraints: the objective is a lower bound; if time runs out, there is no solution.

        Raises:
            ShardwrightError: the solver failed.
        """
        solver = self._run(seconds, whole=False)
        status = solver.getModelStatus()
        if status == _STATUS.kInfeasible:
            return Solution(None, np.inf, np.inf)
        if status == _STATUS.kTimeLimit:
            return Solution(None, np.inf, -np.inf)
        if status != _STATUS.kOptimal:
            raise _failed(solver)
        objective = solver.getInfo().objective_function_value
        solution = solver.getSolution()
        return Solution(np.array(solution.col_value), objective, objective, np.array(solution.row_dual))

    def solve(self, *, seconds: float | None, nodes: int | None, tolerance: float) -> Solution:
        """Solve with HiGHS.

        Args:
            seconds: time limit.
            nodes: limit on the nodes of the search tree.
            tolerance: relative gap at which a solution counts as optimal.

        Raises:
            ShardwrightError: the solver failed.
        """
        most = _MOST_NODES if nodes is None else nodes
        solver = self._run(seconds, whole=True, mip_rel_gap=tolerance, mip_max_nodes=most)
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == _STATUS.kInfeasible:
            return Solution(None, np.inf, np.inf)
        if status != _STATUS.kOptimal and status not in _LIMITS:
            raise _failed(solver)
        bound = info.mip_dual_bound
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Solution(None, np.inf, bound)
        return Solution(np.array(solver.getSolution().col_value), info.objective_function_value, bound)

    def _run(self, seconds: float | None, *, whole: bool, **options: float) -> highspy.Highs:
        solver = quiet_solver()
        for name, value in {"time_limit": INFINITE if seconds is None else seconds, **options}.items():
            solver.setOptionValue(name, value)
        low, high = np.array(self._limits).reshape(-1, 2).T
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self._cost), len(self._limits)
        program.col_cost_, program.col_lower_, program.col_upper_ = map(np.array, (self._cost, self._low, self._high))
        program.row_lower_, program.row_upper_ = low, high
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.concatenate([[0], np.cumsum([columns.size for columns in self._columns])])
        program.a_matrix_.index_ = np.concatenate(self._columns) if self._columns else np.zeros(0, dtype=np.int64)
        program.a_matrix_.value_ = np.concatenate(self._values) if self._values else np.zeros(0)
        if whole and any(self._integer):
            kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
            program.integrality_ = [kinds[integer] for integer in self._integer]
        with _STDOUT_ON_STDERR:
            solver.passModel(program)
            solver.run()
            if solver.getModelStatus() == _STATUS.kNotset:  # the simplex method gave up after presolve
                solver.setOptionValue("presolve", "off")
                solver.run()
        return solver


def quiet_solver() -> highspy.Highs:
    """A solver of one thread that prints nothing."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("log_to_console", False)
    solver.setOptionValue("threads", 1)
    return solver


def _failed(solver: highspy.Highs) -> ShardwrightError:
    status = solver.modelStatusToString(solver.getModelStatus())
    return ShardwrightError(f"the solver failed on the program of this task: {status}; use strategy certified")


class _Redirection:
    """Redirects standard output to standard error, for as long as any thread is inside.

    A process has one standard output. If every search saved and restored it separately, a search that begins during another one would save
    the redirected output, and restore that if it ends last. Output of other threads goes to standard error meanwhile.
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


# The solver's C++ code prints lines that no option turns off. They go where logs go: standard output may be one JSON document.
_STDOUT_ON_STDERR = _Redirection()
