"""Has the traffic moved away from a plan? Compares newly profiled tables with those that the plan was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput, InvalidPlan, some_of
from shardwright.questions.review import shorter
from shardwright.search.solve import plan as find_plan
from shardwright.sharding.diff import PlanDiff
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import RunsOn
from shardwright.task.access import AccessProfile
from shardwright.task.table import Table, shares_of_more_ids

WORTH_IT = 0.05


@dataclass(frozen=True)
class TableDrift:
    """A table's lookups in the plan and in the new profile.

    Attributes:
        before: the table as the plan knows it.
        now: the same table with the lookups of the new profile.
    """

    before: Table
    now: Table

    @property
    def lookups(self) -> float:
        """Relative change of the lookups a sample: now / before - 1."""
        return self.now.pooling / self.before.pooling - 1

    @property
    def skew(self) -> float:
        """Largest difference between the two access curves: the share of lookups that moved between hot and cold rows."""
        before, now = self.before.access, self.now.access
        rows = np.union1d(before.rows, now.rows)
        curves = [np.interp(rows, access.rows, access.share) for access in (before, now)]
        return float(np.abs(curves[1] - curves[0]).max())


@dataclass(frozen=True)
class Drift:
    """A plan under new lookups, and the best plan found for them.

    Attributes:
        tables: the plan's tables that the new profile has; those whose lookups changed most come first.
        absent: tables of the plan that the new profile lacks; they keep their old lookups.
        unknown: tables of the new profile that the plan does not have.
        plan: the plan with the new lookups, scored; None if it does not keep memory any more.
        why_not: why the plan does not keep memory any more; empty if it does.
        before_ms: predicted step of the plan with its old lookups, by the same cost model.
        better: the best plan found for the new lookups.
        worth_it: gain, as a share of a step, above which a new plan is worth it.
    """

    tables: tuple[TableDrift, ...]
    absent: tuple[str, ...]
    unknown: tuple[str, ...]
    plan: Plan | None
    why_not: str
    before_ms: float
    better: Plan
    worth_it: float

    @property
    def now_ms(self) -> float | None:
        """Predicted step of the plan now; None if it cannot run."""
        return self.plan.cost.step_ms if self.plan is not None and self.plan.cost is not None else None

    @property
    def better_ms(self) -> float:
        """Predicted step of the better plan."""
        assert self.better.cost is not None
        return self.better.cost.step_ms

    @property
    def gain(self) -> float:
        """Share of the step now that the better plan saves; 1 if the plan cannot run any more."""
        return 1.0 if self.now_ms is None else (1 - self.better_ms / self.now_ms if self.now_ms else 0.0)

    @property
    def is_worth_it(self) -> bool:
        """Whether a new plan should be put in place."""
        return self.now_ms is None or self.gain > self.worth_it


def drift(
    older: Plan,
    profiled: Sequence[Table],
    *,
    cost_model: CostModel | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    runs_on: RunsOn = "auto",
    move_cost: float = 0.0,
    worth_it: float = WORTH_IT,
) -> Drift:
    """Price a plan by the lookups of newer logs, and look for a better one.

    The new profile gives the lookups a sample and their spread over rows. Rows, dims and types stay those of the plan, whose model is being
    trained.

    Args:
        older: the plan.
        profiled: tables of newer logs, with the names they have in the plan.
        cost_model: prices all plans; by default as for `plan`.
        seed: of the search.
        time_limit: of the search, in seconds.
        runs_on: the runtime of the better plan.
        move_cost: ms of step time that moving a GB counts for.
        worth_it: share of a step that a new plan must save to be worth it.

    Raises:
        InvalidInput: the profile has none of the plan's tables, or an option breaks a rule.
        InfeasibleTask: no plan was found for the new lookups.
    """
    if isinstance(worth_it, bool) or not isinstance(worth_it, (int, float)) or not 0 <= worth_it < 1:
        raise InvalidInput(f"worth_it is {worth_it!r}, must be a share of a step of at least 0 and below 1")
    task, new = older.task, {table.name: table for table in profiled}
    drifts = [TableDrift(table, _looked_up_as(table, new[table.name])) for table in task.tables if table.name in new]
    if not drifts:
        raise InvalidInput(
            f"none of the profiled tables ({some_of(list(new)) or 'there are none'}) is in the plan, which has "
            f"{some_of([table.name for table in task.tables])}; name the logs of the same model"
        )
    changed = {drifted.now.name: drifted.now for drifted in drifts}
    today = replace(task, tables=[changed.get(table.name, table) for table in task.tables])
    model = for_task(resolve_cost_model(cost_model, today), today)
    kept, why_not = Plan(today, older.shards, older.strategy, older.seed), ""
    try:
        kept.check()
    except InvalidPlan as error:
        why_not = str(error)
    better = find_plan(
        today,
        cost_model=model,
        seed=seed,
        time_limit=time_limit,
        runs_on=runs_on,
        start=older if move_cost else None,
        move_cost=move_cost,
    )
    before, now = scored(older, model), None if why_not else scored(kept, model)
    assert before.cost is not None
    return Drift(
        tuple(sorted(drifts, key=lambda drifted: -max(abs(drifted.lookups), drifted.skew))),
        tuple(table.name for table in task.tables if table.name not in new),
        tuple(name for name in new if name not in task.table_by_name),
        now,
        why_not,
        before.cost.step_ms,
        better if now is None else shorter(now, better),
        worth_it,
    )


def moves(drifted: Drift) -> PlanDiff:
    """The blocks that devices must fetch for the better plan.

    Raises:
        InvalidPlan: the plan does not keep memory under the new lookups.
    """
    if drifted.plan is None:
        raise InvalidPlan(f"the plan does not fit any more ({drifted.why_not}); compare by older.diff(found.better)")
    return drifted.plan.diff(drifted.better)


def _looked_up_as(table: Table, profiled: Table) -> Table:
    """The table with a profile's lookups. A profile may have fewer rows (some are not looked up any more) or more (ids share rows)."""
    access = profiled.access
    if profiled.rows < table.rows:
        access = AccessProfile(np.append(access.rows, table.rows), np.append(access.share, 1.0))
    elif profiled.rows > table.rows:
        access = AccessProfile(access.rows * (table.rows / access.rows[-1]), access.share)
    by_feature = profiled.poolings if len(profiled.poolings) > 1 else table.poolings
    shares = shares_of_more_ids(profiled.id_shares, profiled.rows, table.rows)
    return replace(table, pooling=profiled.pooling, poolings=by_feature, access=access, id_shares=shares)
