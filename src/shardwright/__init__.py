"""Shardwright: which piece of which embedding table goes on which device, and how far that is from the best possible.

import shardwright as sw

task = sw.Task.load("task.yaml")
plan = sw.plan(task)
plan.save("plan.json")
"""

from __future__ import annotations

from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan, ShardwrightError
from shardwright.search import plan, register, strategy_names
from shardwright.sharding import Plan, PlanCost, Shard
from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology

__version__ = "0.1.0"

__all__ = [
    "AccessProfile",
    "Constraints",
    "InfeasibleTask",
    "InvalidInput",
    "InvalidPlan",
    "Plan",
    "PlanCost",
    "Shard",
    "ShardwrightError",
    "Table",
    "TableConstraint",
    "Task",
    "Topology",
    "plan",
    "register",
    "strategy_names",
]
