"""The strategies `flexshard` and `recshard`: one plan for sequence tables in tiers and everything else around them."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost.model import CostModel
from shardwright.search.flexshard.others import place_others, tiered_tables, why_no_others
from shardwright.search.flexshard.planning import ALL_TIERS, tier_plan
from shardwright.search.flexshard.rates import Tier
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

HOT_AND_COLD: tuple[Tier, ...] = ("cold", "hot")


@dataclass(frozen=True)
class FlexShard:
    """Sequence tables in tiers, chosen together; pooled tables by `certified` in the memory that equal cold rows leave.

    Attributes:
        tiers: tiers to use, "cold" first.
        name: name of the strategy.
    """

    tiers: tuple[Tier, ...] = ALL_TIERS
    name: str = "flexshard"

    def supports(self, task: Task) -> str | None:
        """Tasks with sequence tables that are not tied to other tables."""
        if all(table.pooled for table in task.tables):
            return "it has pooled tables only, of which partial sums travel and no rows; use strategy certified"
        tied = {name for group in (*task.constraints.colocate, *task.constraints.apart) for name in group}
        clash = next((table.name for table in task.tables if not table.pooled and table.name in tied), None)
        if clash is not None:
            return f"sequence table '{clash}' is to be colocated with or kept apart from another; drop that, or use strategy certified"
        return why_no_others(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place what is not tiered, then choose the tiers; the cost model is asked for pooled tables only.

        Raises:
            InfeasibleTask: the memory does not hold the tables.
        """
        others = place_others(task, tiered_tables(task), cost_model, seed, deadline)
        found = tier_plan(task, tiers=self.tiers, others=others)
        return Plan(task, found.shards, self.name, seed, bound_ms=found.plans_bound_ms or None)


@dataclass(frozen=True)
class RecShard(FlexShard):
    """Two tiers only: rows replicated on all devices, and rows dealt out to all; what a planner without regard to hosts does."""

    tiers: tuple[Tier, ...] = HOT_AND_COLD
    name: str = "recshard"
