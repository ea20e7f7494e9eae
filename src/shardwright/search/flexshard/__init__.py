"""`flexshard`: a table's hottest rows on every device, the next on every host, the cold rest once; `two_tiers` has no host tier."""

from shardwright.search.flexshard.strategy import FlexShard, TierPlan, TwoTiers, tier_plan

__all__ = ["FlexShard", "TierPlan", "TwoTiers", "tier_plan"]
