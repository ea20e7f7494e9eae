"""Shardwright decides which piece of each embedding table goes on which device, and proves how far the plan is from the best possible.

import shardwright as sw

task = sw.Task.load("task.yaml")
plan = sw.plan(task)
plan.save("plan.json")
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; importing `typing` would slow the start
if TYPE_CHECKING:
    from shardwright.calibration import Calibration, Tuned, calibrate, tune
    from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan, ShardwrightError
    from shardwright.questions.drift import Drift, drift
    from shardwright.questions.group_sizes import plan_groups
    from shardwright.questions.review import Review, review
    from shardwright.questions.scale import Scaling, scale
    from shardwright.search import plan, register, strategy_names
    from shardwright.sharding import Plan, PlanCost, Shard
    from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology

__version__ = "0.3.0"

__all__ = [
    "AccessProfile",
    "Calibration",
    "Constraints",
    "Drift",
    "InfeasibleTask",
    "InvalidInput",
    "InvalidPlan",
    "Plan",
    "PlanCost",
    "Review",
    "Scaling",
    "Shard",
    "ShardwrightError",
    "Table",
    "TableConstraint",
    "Task",
    "Topology",
    "Tuned",
    "calibrate",
    "drift",
    "plan",
    "plan_groups",
    "register",
    "review",
    "scale",
    "strategy_names",
    "tune",
]

_HOMES = {
    "calibration": ("Calibration", "Tuned", "calibrate", "tune"),
    "errors": ("InfeasibleTask", "InvalidInput", "InvalidPlan", "ShardwrightError"),
    "questions.group_sizes": ("plan_groups",),
    "questions.drift": ("Drift", "drift"),
    "questions.review": ("Review", "review"),
    "questions.scale": ("Scaling", "scale"),
    "search": ("plan", "register", "strategy_names"),
    "sharding": ("Plan", "PlanCost", "Shard"),
    "task": ("AccessProfile", "Constraints", "Table", "TableConstraint", "Task", "Topology"),
}
"""Module of each public name. A name is imported at its first use, so that the program handles Ctrl-C before it imports anything large."""


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    attribute = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
