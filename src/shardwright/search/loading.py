"""Compiled code is loaded before the clock of a search starts.

numba loads the machine code of a function when it is first called, and compiles it where there is none: about a second for all of a search,
more than most plans get. A toy is planned for that, since nothing else calls every function with the types that it gets later.
"""

from __future__ import annotations

from shardwright.cost.model import CostModel
from shardwright.search.best import BestPlan
from shardwright.search.certified import Certified
from shardwright.search.strategy import Strategy
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_COMPILED = ("auto", "certified", "dreamshard+", "neuroshard")
_loaded: set[tuple[str, bool]] = set()


def load_search(strategy: Strategy, cost_model: CostModel, *, warm: bool = False) -> bool:
    """Load what a strategy's search calls, once a process and cost model; nothing for strategies without compiled code.

    Args:
        strategy: which is to search.
        cost_model: as the search gets it.
        warm: whether the search starts from a plan.

    Returns:
        False where Ctrl-C was pressed: the search has no time then.
    """
    key = (cost_model.name, warm)
    if strategy.name not in _COMPILED or key in _loaded:
        return True
    toy = _toy()
    tireless = Certified(tolerance=0.0, patience=1, threads=1)
    seen = BestPlan(toy, cost_model, seed=0, deadline=None)
    with seen.until_interrupted():
        seen.attempt(tireless)
        if warm and seen.plan is not None:
            tireless.search_from(toy, cost_model, start=seen.plan, move_cost=0.001, seed=0, deadline=None)
    if not seen.interrupted:
        _loaded.add(key)
    return not seen.interrupted


def _toy() -> Task:
    """Two tables that may be cut, spread and replicated, on two devices."""
    limits = TableConstraint(min_columns=4, column_multiple=4, equal_rows=True, equal_columns=True)
    tables = [Table(f"t{index}", 1000, 16 * index, 4.0) for index in (1, 2)]
    constraints = Constraints({table.name: limits for table in tables})
    return Task(tables, Topology(devices_per_host=2, memory="1 GB"), 64, constraints=constraints)
