"""Before anything else runs in a process: TorchRec's planner notes when it plans, or is ours.

Tests start processes of their own, which no plugin of pytest reaches; Python imports this module in each of them, since its folder is on
PYTHONPATH. `SUITE_PLANNER` is the planner ("torchrec" or "shardwright"), `SUITE_PLANNED` a file that gets the time whenever a planner is
made or plans, in any process: the test that runs at that time is one that plans.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "torchrec.distributed.planner"


class Swap:
    """Finds TorchRec's package of planners as ever, and puts the planner into it once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of that package alone."""
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(_load_and_swap, load)  # type: ignore[method-assign]
        return spec


def _load_and_swap(load: Any, package: ModuleType) -> None:
    load(package)
    planners = sys.modules[f"{PACKAGE}.planners"]
    if os.environ["SUITE_PLANNER"] == "shardwright":
        from shardwright.integrations.torchrec.planner import ShardwrightPlanner

        package.EmbeddingShardingPlanner = planners.EmbeddingShardingPlanner = ShardwrightPlanner  # type: ignore[attr-defined]
    planner: Any = planners.EmbeddingShardingPlanner  # type: ignore[attr-defined]
    for name in ("__init__", "plan"):
        setattr(planner, name, _noted(getattr(planner, name)))


def _noted(method: Any) -> Any:
    @functools.wraps(method)
    def noted(*args: Any, **fields: Any) -> Any:
        with Path(os.environ["SUITE_PLANNED"]).open("a") as file:
            file.write(f"{time.time()}\n")
        return method(*args, **fields)

    return noted


if "SUITE_PLANNER" in os.environ:
    sys.meta_path.insert(0, Swap())
