"""Strategies by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput
from shardwright.search.auto import Auto
from shardwright.search.autoshard.strategy import AutoShard
from shardwright.search.certified import Certified
from shardwright.search.dreamshard.strategy import DreamShard, DreamShardPlus
from shardwright.search.exact import Exact
from shardwright.search.flexshard import FlexShard, RecShard
from shardwright.search.greedy import FusedGreedy
from shardwright.search.heuristics import HEURISTICS, Random
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.rnn.strategy import Rnn
from shardwright.search.strategy import Strategy
from shardwright.search.torchrec import TorchRec
from shardwright.search.uniform import UNIFORM
from shardwright.task.task import Task

AUTO = Auto()
_LEARNED: tuple[Strategy, ...] = (AutoShard(), DreamShard(), DreamShardPlus())
_BUILT_IN: tuple[Strategy, ...] = (
    Random(),
    *HEURISTICS,
    FusedGreedy(),
    NeuroShard(),
    *_LEARNED,
    Certified(),
    FlexShard(),
)
_STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
_APART: tuple[Strategy, ...] = (Exact(), Rnn(), RecShard(), *UNIFORM)
_UNLISTED: dict[str, Strategy] = {strategy.name: strategy for strategy in _APART}
"""Known by name, but not listed: one is for small tasks, one trains anew on each, the others are there to be compared with."""
_RIVALS: dict[str, Strategy] = {strategy.name: strategy for strategy in (TorchRec(),)}
"""Planners of others, to compare with: they take seconds to minutes, and need their own packages."""


def register(strategy: Strategy) -> Strategy:
    """Make a strategy known by its name; the name must be new.

    Raises:
        InvalidInput: another strategy has this name.
    """
    if {AUTO.name: AUTO, **_known()}.get(strategy.name, strategy) != strategy:
        raise InvalidInput(f"strategy name {strategy.name!r} is taken; register yours under another name")
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_named(name: str) -> Strategy:
    """The strategy of this name; "auto" is the best there is.

    Raises:
        InvalidInput: no strategy has this name.
    """
    known = {AUTO.name: AUTO, **_known()}
    if name not in known:
        raise InvalidInput(f"unknown strategy {name!r}; known strategies are {', '.join(known)}")
    return known[name]


def strategy_names(task: Task | None = None) -> tuple[str, ...]:
    """Names of all strategies for tasks of any size, in order of registration; with a task, of those that can plan it."""
    return tuple(name for name, strategy in _STRATEGIES.items() if task is None or strategy.supports(task) is None)


def rival_names(task: Task) -> tuple[str, ...]:
    """Names of the planners of others that are installed and can plan a task: what a comparison has beside `strategy_names`."""
    return tuple(name for name, strategy in _RIVALS.items() if strategy.supports(task) is None)


def _known() -> dict[str, Strategy]:
    return _STRATEGIES | _UNLISTED | _RIVALS
