"""Strategies: task + cost model → plan."""

from shardwright.search.registry import register, rival_names, strategy_named, strategy_names
from shardwright.search.solve import plan
from shardwright.search.statistics import SearchStatistics, search_statistics
from shardwright.search.strategy import Strategy

__all__ = [
    "SearchStatistics",
    "Strategy",
    "plan",
    "register",
    "rival_names",
    "search_statistics",
    "strategy_named",
    "strategy_names",
]
