"""Shardwright in TorchRec: a drop-in planner, conversion of problems and plans in both directions, and plan files.

    from shardwright.integrations.torchrec import ShardwrightPlanner

    planner = ShardwrightPlanner(topology=topology, batch_size=512, constraints=constraints)
    plan = planner.collective_plan(model, sharders, pg)

TorchRec is imported when one of these names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.integrations.torchrec.conversion import plan_of, sharding_plan_of
    from shardwright.integrations.torchrec.loader import SavedPlanLoader
    from shardwright.integrations.torchrec.plan_files import load_sharding_plan, save_sharding_plan
    from shardwright.integrations.torchrec.planner import ShardwrightPlanner
    from shardwright.integrations.torchrec.problem import TablePlace, TorchRecProblem, problem_of
    from shardwright.integrations.torchrec.profiles import with_profiles
    from shardwright.integrations.torchrec.sharding_groups import dmp_arguments

_HOMES = {
    "SavedPlanLoader": "loader",
    "ShardwrightPlanner": "planner",
    "TablePlace": "problem",
    "TorchRecProblem": "problem",
    "dmp_arguments": "sharding_groups",
    "load_sharding_plan": "plan_files",
    "plan_of": "conversion",
    "problem_of": "problem",
    "save_sharding_plan": "plan_files",
    "sharding_plan_of": "conversion",
    "with_profiles": "profiles",
}

__all__ = [
    "SavedPlanLoader",
    "ShardwrightPlanner",
    "TablePlace",
    "TorchRecProblem",
    "dmp_arguments",
    "load_sharding_plan",
    "plan_of",
    "problem_of",
    "save_sharding_plan",
    "sharding_plan_of",
    "with_profiles",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardwright.integrations.torchrec.requirements import require_torchrec

    require_torchrec()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
