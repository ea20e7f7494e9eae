"""`flexshard`: the hottest rows of a table on every device, the next on every host, the cold rest once; `recshard` without hosts."""

from shardwright.search.flexshard.strategy import FlexShard, RecShard, TierPlan, tier_plan

__all__ = ["FlexShard", "RecShard", "TierPlan", "tier_plan"]
