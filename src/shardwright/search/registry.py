"""Find and register strategies by name, and give a strategy a learned policy that a user names.

The learned strategies and TorchRec's planner lie in `shardwright.learned` and `shardwright.integrations`. The core does not import these:
the registry finds their strategies as it finds plug-ins, by the entry points of this package.
"""

from __future__ import annotations

import reprlib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from shardwright.errors import InvalidInput
from shardwright.plugins import load_plugin, own_plugins, plugins
from shardwright.search.auto import Auto
from shardwright.search.baselines import HEURISTICS, UNIFORM, FusedGreedy, Random
from shardwright.search.certified import Certified
from shardwright.search.exact import Exact
from shardwright.search.flexshard import FlexShard, TwoTiers
from shardwright.search.hugectr import HugeCTR
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.strategy import Strategy
from shardwright.task.task import Task

AUTO = Auto()
_LEARNED = ("autoshard", "dreamshard", "dreamshard+")
"""Names of this package's own plug-ins that are listed, before `certified`; `rnn`, which trains anew on each task, is not."""
_BASELINES: tuple[Strategy, ...] = (Random(), *HEURISTICS, FusedGreedy(), NeuroShard())
_BUILT_IN: tuple[Strategy, ...] = (*_BASELINES, Certified(), FlexShard())
_STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
_MIP = Exact(units_per_table=4, any_size=True, name="mip")
_OF_HUGECTR: tuple[Strategy, ...] = (HugeCTR(), HugeCTR(hierarchical=True, name="hugectr_hier"))
_APART: tuple[Strategy, ...] = (Exact(), _MIP, TwoTiers(), *UNIFORM, *_OF_HUGECTR)
_UNLISTED: dict[str, Strategy] = {strategy.name: strategy for strategy in _APART}
"""Known by name, but not listed: `exact` is for small tasks, the others are for comparisons."""
_RIVALS = ("torchrec",)
"""Names of this package's own plug-ins that run third-party planners. They take seconds to minutes, and need further packages."""


def register(strategy: Strategy) -> Strategy:
    """Register a strategy under its name; the name must be new.

    Raises:
        InvalidInput: another strategy has this name.
    """
    if strategy.name in own_plugins("strategies") or _known().get(strategy.name, strategy) != strategy:
        raise InvalidInput(f"strategy name {strategy.name!r} is taken; register yours under another name")
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_named(name: str) -> Strategy:
    """The strategy of this name: a built-in one, a registered one or a plug-in.

    Raises:
        InvalidInput: no strategy has this name, or it is that of a plug-in that cannot be loaded.
    """
    known = _known()
    if name in known:
        return known[name]
    added = (
        own_plugins("strategies") | plugins("strategies") | own_plugins("strategies")
    )  # a plug-in cannot replace one of our strategies
    if name not in added:
        raise InvalidInput(f"unknown strategy {name!r}; known strategies are {', '.join(known | added)}")
    return cast(Strategy, load_plugin(added[name], ("supports", "search")))


def strategy_of(given: str | Strategy) -> Strategy:
    """The strategy that a user names or gives.

    Raises:
        InvalidInput: as of `strategy_named`; or it is no strategy.
    """
    if isinstance(given, str):
        return strategy_named(given)
    if not (callable(getattr(given, "supports", None)) and callable(getattr(given, "search", None))):
        raise InvalidInput(
            f"strategy is {reprlib.repr(given)}, must be a name of strategy_names() or an object with supports and search"
        )
    return given


def strategy_names(task: Task | None = None) -> tuple[str, ...]:
    """Names of all listed strategies, registered ones last; with a task, only of those that can plan it."""
    own = own_plugins("strategies")
    names = list(_STRATEGIES)
    names[len(_BASELINES) : len(_BASELINES)] = [name for name in _LEARNED if name in own]
    return tuple(name for name in names if task is None or strategy_named(name).supports(task) is None)


def rival_names(task: Task) -> tuple[str, ...]:
    """Names of third-party planners that are installed and can plan a task; comparisons add them to `strategy_names`."""
    own = own_plugins("strategies")
    return tuple(name for name in _RIVALS if name in own and strategy_named(name).supports(task) is None)


def _known() -> dict[str, Strategy]:
    return {AUTO.name: AUTO} | _STRATEGIES | _UNLISTED


def takes_policy(strategy: Strategy) -> bool:
    """Whether a strategy places by a learned policy, that is, has a field `policy`."""
    return is_dataclass(strategy) and any(field.name == "policy" for field in fields(strategy))


def with_policy(strategy: Strategy, policy: Path) -> Strategy:
    """The strategy with this policy instead of the bundled one.

    Raises:
        InvalidInput: the strategy takes no policy.
    """
    if not takes_policy(strategy):
        raise InvalidInput(
            f"strategy '{strategy.name}' takes no policy; name one that places by a learned policy, such as dreamshard, or leave the "
            "policy out"
        )
    return cast(Strategy, replace(cast(Any, strategy), policy=policy))
