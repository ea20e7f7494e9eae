"""`auto`: run every strategy that fits into the time, and keep the best plan.

1. If sequence tables may be tiered: `flexshard`, then `two_tiers` around the same pooled tables.
2. `certified`, which begins with `greedy` and also starts from uniform plans and from `neuroshard`'s plan. It searches on to a smaller gap
   than when it is called alone. If rows of sequence tables are de-duplicated, it plans as if all of them travelled.
3. The baselines. On small tasks, and if `certified` cannot plan, also each sharding type for all tables.
4. `exact`, if it takes about a second: few tables, two devices and a linear cost model. On few tables and devices also if nothing else
   finds a plan.

It leaves out the learned strategies: `rnn` trains anew on every task, and `dreamshard+` takes as long as `certified` for plans that are
hardly better. It also leaves out TorchRec's planner and strategies that users have registered. With a time limit, tiers get at most half
of the time that is left, and the last steps run only if time is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.baselines import HEURISTICS, UNIFORM, FusedGreedy, Random
from shardwright.search.certified import Certified, Restated
from shardwright.search.exact import Exact
from shardwright.search.flexshard.strategy import (
    ALL_TIERS,
    HOT_AND_COLD,
    FlexShard,
    place_others,
    tier_plan,
    tiered_tables,
)
from shardwright.search.strategy import ROUNDING, BestPlan, search_end
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

_SMALL = 512  # tables × devices up to which every uniform plan is made
_TINY, _NODES = (12, 2), 200  # tables and devices up to which `exact` runs, and its most search nodes
_FEW = 32  # tables × devices up to which `exact` runs if there is no plan
_TIERS = 0.5  # share of the time left for the tables that are not tiered


@dataclass(frozen=True)
class Auto:
    """Run every strategy that fits into the time; the best plan carries the name of the strategy that found it.

    Attributes:
        tolerance: as in `Certified`.
        patience: as in `Certified`.
        name: name of the strategy.
    """

    tolerance: float = 0.002
    patience: int | None = None
    name: str = field(default="auto")

    def supports(self, task: Task) -> str | None:
        """Any task that `certified`, `flexshard` or `greedy` can plan."""
        reasons = [strategy.supports(task) for strategy in (Certified(), FlexShard(), FusedGreedy())]
        return None if None in reasons else reasons[-1]

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Run the strategies one after another. At the deadline and on Ctrl-C, return the best plan so far.

        Raises:
            InfeasibleTask: no strategy finds a plan; the message is `certified`'s, or else that of the last strategy asked.
        """
        seen = BestPlan(task, cost_model, seed, deadline)
        with seen.collecting(last=FusedGreedy()):
            self._attempt_all(seen)
        if seen.plan is None:
            raise seen.refused.get("certified") or list(seen.refused.values())[-1]
        bounds = [plan.bound_ms for _, plan in seen.seen if plan.bound_ms is not None]
        bound_ms = max((bound for bound in bounds if bound <= seen.step_ms * (1 + ROUNDING)), default=None)
        end = search_end(seen.step_ms, bound_ms, self.tolerance, interrupted=seen.interrupted, late=seen.late)
        return replace(seen.plan, bound_ms=bound_ms, search_end=end)

    def search_from(
        self, task: Task, cost_model: CostModel, *, start: Plan, move_cost: float, seed: int, deadline: float | None
    ) -> Plan:
        """Let `certified` improve the plan.

        Raises:
            InvalidInput: `certified` cannot plan the task.
        """
        reason = Certified().supports(task)
        if reason is not None:
            raise InvalidInput(f"this task cannot be planned from a plan: {reason}; leave the plan out")
        return self._certified().search_from(
            task, cost_model, start=start, move_cost=move_cost, seed=seed, deadline=deadline
        )

    def _certified(self) -> Certified:
        return Certified(self.tolerance, self.patience)

    def _attempt_all(self, seen: BestPlan) -> None:
        task = seen.task
        self._attempt_tiers(seen)
        certified = self._certified()
        seen.attempt(certified if certified.supports(task) is None else Restated(certified, _every_row_sent))
        seen.attempt(FusedGreedy(), *HEURISTICS, Random())
        if len(task.tables) * task.topology.devices <= _SMALL or Certified().supports(task) is not None:
            seen.attempt(*UNIFORM)
        pricing, tables, devices = seen.cost_model.pricing, len(task.tables), task.topology.devices
        tiny = tables <= _TINY[0] and devices <= _TINY[1] and not pricing.hidden.size
        if tiny or (seen.plan is None and pricing.convex and tables * devices <= _FEW):
            seen.attempt(Exact(max_nodes=_NODES))

    def _attempt_tiers(self, seen: BestPlan) -> None:
        """Offer the plans of `flexshard` and `two_tiers`, which differ only in their tiers."""
        task, tables = seen.task, tiered_tables(seen.task)
        if not tables or FlexShard().supports(task) is not None or (seen.plan is not None and seen.late):
            return
        try:
            others = place_others(task, tables, seen.cost_model, seen.seed, seen.until(_TIERS))
            for tiers, name in ((ALL_TIERS, "flexshard"), (HOT_AND_COLD, "two_tiers")):
                if seen.plan is not None and seen.late:
                    return
                tiered = tier_plan(task, tiers=tiers, others=others)
                seen.offer(Plan(task, tiered.shards, name, seen.seed, bound_ms=tiered.plans_bound_ms or None))
        except InfeasibleTask as error:
            seen.refused["flexshard"] = error


def _every_row_sent(task: Task) -> Task:
    """The task with an exchange that `certified` counts."""
    return replace(task, exchange=replace(task.exchange, deduplicate="none", replica_gradients="whole"))
