"""`flexshard`: a table's hottest rows on every device, the next on every host, the cold rest once; `recshard` has no host tier."""

from shardwright.search.flexshard.strategy import FlexShard, RecShard, TierPlan, tier_plan

__all__ = ["FlexShard", "RecShard", "TierPlan", "tier_plan"]
