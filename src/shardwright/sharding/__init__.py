"""Shards and plans: their check, their costs and memory account, their diff and their files."""

from shardwright.sharding.costs import BOUND_SCOPES, PHASES, SEARCH_ENDS, DeviceCost, PlanCost
from shardwright.sharding.memory import MemoryAccount, memory_account, shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.shard import RowLayout, Shard, dealt_ranges, sharding_type_of
from shardwright.sharding.work import ShardWork, shard_work

__all__ = [
    "BOUND_SCOPES",
    "PHASES",
    "SEARCH_ENDS",
    "DeviceCost",
    "MemoryAccount",
    "Plan",
    "PlanCost",
    "RankMap",
    "RowLayout",
    "Shard",
    "ShardWork",
    "dealt_ranges",
    "memory_account",
    "shard_bytes",
    "shard_work",
    "sharding_type_of",
]
