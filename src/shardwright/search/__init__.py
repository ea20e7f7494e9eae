"""Strategies: task + cost model → plan."""

from shardwright.search.registry import register, rival_names, strategy_named, strategy_names
from shardwright.search.solve import plan
from shardwright.search.strategy import Strategy

__all__ = ["Strategy", "plan", "register", "rival_names", "strategy_named", "strategy_names"]
