"""`exact`: the best plan of a small task, and the proof that it is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.baselines import HEURISTICS, FusedGreedy
from shardwright.search.bound import BoundProof
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.exact.formulation import Effort, all_ways, solve
from shardwright.search.exact.placement import Way, column_units
from shardwright.search.infeasible import prove_infeasible
from shardwright.search.strategy import BestPlan, check_number, check_whole, why_not_counted
from shardwright.search.units import remedy_for
from shardwright.sharding.plan import Plan
from shardwright.sharding.ways import allowed_devices, free_grid_counts
from shardwright.task.task import Task

MAX_TABLES, MAX_DEVICES = 20, 4


@dataclass(frozen=True)
class Exact:
    """A mixed-integer linear program, solved by HiGHS: the referee for small tasks and convex cost models.

    It chooses among these ways: a table whole; in column blocks of multiples of 4 columns (of any columns if the dim is no multiple of 4);
    in row blocks, one a device, of whole sixteenths of the table (if these have at least 64 rows) or of equal size over 2, 4, … devices,
    over those of a host, over those it is pinned to, or over all; in column blocks whose rows are each dealt to a host; or replicated
    everywhere. Colocated tables may be cut over the same devices. Grids of any row blocks are not among them. If a table
    may be one, the plan carries the lower bound, which covers them, in place of the proof that it is the best.

    Up to 6 tables on 4 devices, or 8 on 2, take seconds. More can take hours, so give them a time limit: the plan then carries the bound
    proven so far.

    Attributes:
        tolerance: relative gap at which a plan counts as the best. The solver's own precision is about 1e-6.
        units_per_table: most column units of a table; None for all. Fewer units make larger tasks solvable. The plan is then the best of
            that coarser choice only, without a bound on all plans.
        max_nodes: most nodes of the search tree, a limit that does not depend on the machine; None for no limit.
        any_size: whether to accept larger tasks too, as `mip` does, the strategy for comparisons. Give them a time limit: until the solver
            finds a better plan, the answer is the best heuristic's.
        name: name of the strategy.
    """

    tolerance: float = 1e-6
    units_per_table: int | None = None
    max_nodes: int | None = None
    any_size: bool = False
    name: str = field(default="exact")

    def __post_init__(self) -> None:
        check_number(self, "tolerance", 0, 1)
        check_whole(self, units_per_table=1, max_nodes=1)

    def supports(self, task: Task) -> str | None:
        """Tasks of up to 20 tables on up to 4 devices, or of any size with `any_size`."""
        tables, devices = len(task.tables), task.topology.devices
        if self.any_size:
            return why_not_counted(task)
        if tables > MAX_TABLES or devices > MAX_DEVICES:
            return (
                f"it has {tables} tables on {devices} devices, the exact search takes at most {MAX_TABLES} on {MAX_DEVICES}; "
                "use strategy certified"
            )
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search until the plan is proven to be the best; `seed` changes nothing.

        Raises:
            InfeasibleTask: there is no plan, or none was found before the deadline.
            InvalidInput: the cost model is not convex.
        """
        if not cost_model.pricing.convex:
            raise InvalidInput(
                f"strategy '{self.name}' needs a cost model with a convex head, and that of {cost_model.name} has negative weights: "
                "train one with head convex, or use strategy certified"
            )
        known = BestPlan(task, cost_model, seed, deadline)
        known.attempt(FusedGreedy(), *HEURISTICS)  # in case the solver has too little time
        ways = all_ways(task, cost_model, self.units_per_table)
        answer = solve(task, cost_model, ways, Effort(deadline, self.max_nodes, self.tolerance))
        of_heuristic = known.plan.shards if known.plan else None
        plans = [shards for shards in (answer.shards, of_heuristic) if shards is not None]
        all_known = not _has_other_grids(task)
        if not plans:
            raise InfeasibleTask(self._why_none(task, ways, proven=all_known and answer.bound_ms == np.inf))
        step_ms = [score(task, shards, cost_model).step_ms for shards in plans]
        best = int(np.argmin(step_ms))
        bound_ms = min(answer.bound_ms, step_ms[best])
        if not all_known:
            proof = BoundProof(make_catalog(task, cost_model), cost_model)
            bound_ms = min(bound_ms, proof.tightened(proof.solve(), step_ms[best]).ms)
        proven = bound_ms > 0 and not self._coarse(task)
        return Plan(task, plans[best], self.name, seed, bound_ms=bound_ms if proven else None)

    def _coarse(self, task: Task) -> bool:
        """Whether `units_per_table` gives some table fewer column units than it has."""
        limits = [(table, task.constraints.of(table.name)) for table in task.tables]
        return any(
            column_units(table, limit, self.units_per_table) < column_units(table, limit, None)
            for table, limit in limits
        )

    def _why_none(self, task: Task, ways: Sequence[Way], *, proven: bool) -> str:
        reason = prove_infeasible(task)
        if reason is not None:
            return reason
        missing = next((t.name for t in task.tables if all(way.table.name != t.name for way in ways)), None)
        if missing is not None:
            limits = task.constraints.of(missing)
            return (
                f"table '{missing}' allows only {', '.join(limits.sharding_types or ())}, and cannot be cut in that way: allow table_wise "
                f"for it, or {remedy_for(limits, task.topology.hosts)}"
            )
        if not proven:
            return "no plan was found within the limits of the exact search; raise time_limit or max_nodes, or use strategy certified"
        coarse = "raise units_per_table, " if self._coarse(task) else ""
        return (
            f"exhaustive search found no way to cut and place the {len(task.tables)} tables within memory and constraints: {coarse}allow "
            "more sharding_types or shards, or use more devices or memory"
        )


def _has_other_grids(task: Task) -> bool:
    """Whether a table may be a grid of any row blocks."""
    limits = [task.constraints.of(table.name) for table in task.tables]
    return any(
        free_grid_counts(table, limit) and allowed_devices(task.topology, limit).sum() > 1
        for table, limit in zip(task.tables, limits, strict=True)
    )
