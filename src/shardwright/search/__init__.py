"""Strategies: task + cost model → plan."""

from shardwright.search.registry import best_strategy, register, rival_names, strategy_named, strategy_names
from shardwright.search.solve import plan
from shardwright.search.strategy import Strategy

__all__ = ["Strategy", "best_strategy", "plan", "register", "rival_names", "strategy_named", "strategy_names"]
